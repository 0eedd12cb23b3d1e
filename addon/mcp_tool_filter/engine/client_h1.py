"""A client connection that speaks HTTP/1.1."""

from __future__ import annotations

from mcp_tool_filter.engine.exchange import INVALID_HTTP, Exchange, Fields
from mcp_tool_filter.engine.host import Host
from mcp_tool_filter.engine.service import Service
from mcp_tool_filter.engine.wire import END, Fault, Message, Wire
from mcp_tool_filter.policy.verdict import Reason, Reply, Why

MOST_AHEAD = 1 << 20
"""Bytes that a client may send ahead while we answer it."""


class H1Client:
    """A client connection that speaks HTTP/1."""

    def __init__(self, service: Service, host: Host) -> None:
        self.service, self.host = service, host
        self.wire = Wire(is_server=True)
        self.exchange: Exchange | None = None
        self.reads = self.runs = self.is_held = self.chunks = self.is_closed = False

    def receive(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.seat is not None:
            return exchange.seat.from_client(data)
        if not self.is_closed:
            self.wire.receive(data)
            self._run()

    def gone(self) -> None:
        if self.exchange is not None:
            if self.exchange.seat is not None:
                self.exchange.seat.close()
            self.exchange.client_left()

    def held(self, on: bool) -> None:
        """The client reads slowly: read slowly from the upstream."""
        if self.exchange is not None and self.exchange.up is not None:
            self.exchange.up.hold(on)

    def _run(self) -> None:
        if self.runs:
            return
        self.runs = True
        try:
            while (self.exchange is None or self.reads) and not self.is_closed:
                event = self.wire.next()
                if event is None:
                    break
                if isinstance(event, Message):
                    self.exchange, self.reads = Exchange(self.service, self, event), True
                    self.exchange.begin()
                elif event is END:
                    self.reads = False
                    self.exchange.end_of_request()
                else:
                    self.exchange.take(event)
            else:
                if len(self.wire.buffer) > MOST_AHEAD and not self.is_held:
                    self.is_held = True
                    self.host.hold(True)
        except Fault as fault:
            self._fault(fault)
        finally:
            self.runs = False

    def _fault(self, fault: Fault) -> None:
        self.service.listener.tell_refused(
            Reply(INVALID_HTTP, Reason(Why.MALFORMED, detail="not valid HTTP")), None
        )
        if self.exchange is not None and (self.exchange.has_all or self.exchange.is_over):
            return self.host.abort()
        if self.exchange is not None:
            self.exchange.is_over = True
        self.is_closed = True
        self.host.send(
            b"HTTP/1.1 %d Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (fault.status, len(INVALID_HTTP), INVALID_HTTP)
        )
        self.host.close()

    # What an exchange says

    def go_ahead(self) -> None:
        self.host.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _keeps(self) -> bool:
        return self.exchange.message.keep and not self.reads

    def respond(
        self, status: int, reason: bytes, fields: Fields, body: bytes, *, is_bare: bool
    ) -> None:
        if not self._keeps():
            fields = (*fields, (b"connection", b"close"))
        length = self.exchange.said_length if status in (204, 304) or is_bare else len(body)
        head = self.wire.answer(status, reason, fields, length, chunked=False)
        if len(body) > 65536:  # joining would copy it
            self.host.send(head)
            self.host.send(body)
        else:
            self.host.send(head + body if body else head)

    def begin(self, status: int, reason: bytes, fields: Fields) -> None:
        self.chunks = self.exchange.message.is_11
        if not self.chunks:
            self.exchange.message.keep = False
        if not self._keeps():
            fields = (*fields, (b"connection", b"close"))
        self.host.send(self.wire.answer(status, reason, fields, None, chunked=self.chunks))

    def data(self, data: bytes) -> None:
        if data:  # an empty chunk would end the answer
            self.host.send(self.wire.chunk(data) if self.chunks else data)

    def finish(self) -> None:
        if self.chunks:
            self.host.send(self.wire.last())

    def cut(self) -> None:
        self.host.abort()

    def done(self) -> None:
        if not self._keeps():
            self.exchange, self.is_closed = None, True
            return self.host.close()
        self.exchange = None
        if self.is_held:
            self.is_held = False
            self.host.hold(False)
        self.wire.next_cycle()
        if self.wire.buffer:
            self._run()
