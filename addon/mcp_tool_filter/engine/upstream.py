"""A connection to the upstream: when it may be used again, and what its end means."""

from __future__ import annotations

from collections.abc import Callable

from mcp_tool_filter.engine.exchange import Exchange
from mcp_tool_filter.engine.wire import END, Fault, Message, Wire


class Upstream:
    """A connection to the upstream. The host sets ``write``, ``abort``, ``hold``, and ``idle`` to take it back."""

    def __init__(self, **orders: Callable[..., None]) -> None:
        self.wire = Wire(is_server=False)
        self.exchange: Exchange | None = None
        self.uses = 0
        self.keep = True
        self.write, self.abort, self.hold, self.idle = (
            orders["write"],
            orders["abort"],
            orders["hold"],
            orders["idle"],
        )

    def begin(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.uses += 1
        self.answered = False
        m = exchange.message
        self.write(
            self.wire.request(
                m.method, m.target, exchange.out_fields, exchange.body, exchange.wire_head
            )
        )

    def receive(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for
            return self.abort()
        if exchange.seat is not None:
            return exchange.seat.from_upstream(data)
        self.wire.receive(data)
        self._run()

    def _run(self) -> None:
        try:
            while self.exchange is not None:
                event = self.wire.next()
                if event is None:
                    return
                exchange = self.exchange
                if isinstance(event, Message):
                    if event.status < 200 and event.status != 101:
                        continue  # 100, 103: ours were sent already
                    self.answered, self.keep = True, event.keep
                    exchange.on_head(event)
                    if exchange.seat is not None and self.wire.buffer:
                        rest, self.wire.buffer = self.wire.buffer, b""
                        exchange.seat.from_upstream(rest)
                elif event is END:
                    self.exchange = None
                    exchange.up = None
                    if self.keep and not self.wire.buffer:
                        self.idle()
                    else:
                        self.abort()
                    exchange.on_end()
                else:
                    exchange.on_data(event)
        except Fault as fault:
            exchange, self.exchange = self.exchange, None
            self.abort()
            if exchange is not None:
                exchange.up = None
                exchange.refuse(fault)

    def drop(self) -> None:
        self.exchange = None
        self.abort()

    def lost(self) -> None:
        """The connection has ended."""
        self.wire.eof()
        if self.exchange is not None and self.exchange.seat is None:
            self._run()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            if exchange.seat is not None:
                exchange.seat.close()
                exchange.up = None
                return exchange.down.host.close()
            exchange.upstream_lost(was_idle=self.uses > 1 and not self.answered)
