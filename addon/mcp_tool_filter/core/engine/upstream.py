"""A connection to the upstream: when it may be used again, and what its end means.

A connection carries one request at a time. After an answer it is idle, and the host may give it the
next exchange. It is closed instead if either side wants that, if the answer came before the request
was complete, or if more came than the answer.

A server may close an idle connection while we send on it. The request is then repeated once, on a
new connection, if it cannot have run twice with any effect: not one byte of an answer has come, and
running it twice would change nothing. A call is therefore sent only on a connection that was idle
for less than two seconds (``most_idle``): servers close idle ones after about five.

Some logins (NTLM, Negotiate) count for a connection and not for a request. A connection on which a
client has sent one is its own from then on (``owner``): others would act in its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_tool_filter.core.engine.wire import DEFAULT_LIMITS, AnswerWire, End, HttpLimits
from mcp_tool_filter.core.engine.writing import LONG
from mcp_tool_filter.core.http.head import WITHOUT_BODY

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.service import Asking, Host


class Upstream:
    """A connection to the upstream."""

    def __init__(
        self,
        *,
        write: Callable[[bytes], None],
        abort: Callable[[], None],
        hold: Callable[[bool], None],
        idle: Callable[[], None],
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        """``write`` and ``abort`` are for the connection, ``hold`` stops reading from it (or reads
        on). ``idle`` takes it back for the next exchange; if bytes are still unsent then, the
        answer came early, and the host closes it instead."""
        self.write, self.abort, self.hold, self.idle = write, abort, hold, idle
        self.owner: Host | None = None
        """The only client that may use the connection; None for all."""
        self.wire, self._turn = AnswerWire(limits), limits.turn
        self._exchange: Asking | None = None
        self._uses = 0
        self._keeps = True
        self._has_answered = False
        """True if a byte has come since the request was sent."""
        self._is_held = False
        self._client_is_slow = self._waits = False
        self._has_ended = False

    def begin(self, exchange: Exchange, *, head: bytes, method: str, body: bytes) -> None:
        """Send a request; ``head`` lacks its end and the length."""
        self.carry(exchange, method)
        if body or method not in WITHOUT_BODY:
            head = b"%bcontent-length: %d\r\n" % (head, len(body))
        if len(body) > LONG:  # joining would copy it
            self.write(head + b"\r\n")
            self.write(body)
        else:
            self.write(b"%b\r\n%b" % (head, body))

    def carry(self, exchange: Asking, method: str) -> None:
        """Expect the answer to a request that writes its own bytes."""
        self._exchange = exchange
        self._uses += 1
        self._has_answered = False
        self.wire.asked, self.wire.state = method, "head"

    def serve(self, exchange: Asking) -> None:
        """Answer another exchange, which goes on in place of the one that has asked."""
        self._exchange = exchange

    def receive(self, data: bytes) -> None:
        """Take bytes from the upstream."""
        exchange = self._exchange
        if exchange is None:  # bytes that nobody asked for
            return self.abort()
        self._has_answered = True
        return self._run(exchange, data)

    def lost(self) -> None:
        """The connection has ended."""
        self._has_ended = True
        self.wire.eof()
        if self._exchange is not None and not self._waits:
            self._run(self._exchange)

    def slow_down(self, on: bool) -> None:
        """Read no further while the client reads slowly."""
        self._client_is_slow = on
        self._pause()

    def _pause(self) -> None:
        on = self._client_is_slow or self._waits
        if self._is_held != on:
            self._is_held = on
            self.hold(on)

    def held(self, on: bool) -> None:
        """The upstream reads slowly, or again."""
        if self._exchange is not None:
            self._exchange.upstream_is_slow(on)

    def drop(self) -> None:
        """Close the connection: its exchange needs no answer any more."""
        self._exchange = None
        self.abort()

    def _run(self, exchange: Asking, data: bytes = b"") -> None:
        """Read what has come; an end counts only when all before it was read."""
        try:
            self._read(data)
            if self._has_ended and not self._waits and self._exchange is not None:
                exchange, self._exchange = self._exchange, None
                exchange.upstream_lost(was_idle=self._uses > 1 and not self._has_answered)
        except Exception as error:
            self._fail(exchange, error)

    def _go_on(self) -> None:
        """Continue after other connections were served."""
        self._waits = False
        if self._exchange is not None:
            self._pause()
            self._run(self._exchange)

    def _read(self, data: bytes = b"") -> None:
        wire = self.wire
        if self._waits:
            return wire.receive(data)
        last = wire.pieces + self._turn
        while (exchange := self._exchange) is not None:
            if wire.pieces >= last and wire.unread:
                self._waits = True
                self._pause()
                exchange.down.host.call_later(0, self._go_on)
                return None
            event = wire.next_joined(data)
            data = b""
            if event is None:
                return None
            if isinstance(event, bytes):
                exchange.on_data(event)
            elif isinstance(event, End):
                self._release()
                exchange.on_end()
            elif event.status >= 200:
                self._keeps = event.keeps
                if event.body is None:
                    exchange.on_head(event)
                else:
                    self._release()
                    exchange.on_answer(event, event.body)
            elif event.status == 101:
                exchange.on_head(event)
            # Other answers below 200 are dropped: we have sent our own 100 already.
        return None

    def _release(self) -> None:
        """The answer is complete."""
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.up = None
        self.slow_down(False)
        if self._keeps and not self.wire.unread:
            self.idle()
        else:
            self.abort()

    def _fail(self, exchange: Asking, error: Exception) -> None:
        exchange = self._exchange or exchange  # it may have turned out to be MCP
        if self._exchange is not None:
            self.drop()
        exchange.up = None
        exchange.fail(error)
