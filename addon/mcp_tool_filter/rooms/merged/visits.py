"""One HTTP request of ours to a server's own listener, in this process: values, and no bytes.

    ask = Visit(visitor, take)
    ask.begin(servers, head, body)    # as if a client had sent it to /NAME/mcp
    ask.leave()                       # nobody wants the answer any more

The listener sees a client without credentials, and its policy judges all that is said. What takes
the answer is called within the call that brings the bytes, so an ordinary answer waits for no
task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.wire import RequestHead
from mcp_tool_filter.core.http.head import Fields

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.service import Asking, Host, Service
    from mcp_tool_filter.core.engine.upstream import Upstream

log = logging.getLogger(__name__)

type Connect = Callable[[Asking], Upstream | None]
type Route = Callable[[RequestHead], Service]
JSON_AND_EVENTS = (b"accept", b"application/json, text/event-stream")
_OURS: Fields = ((b"host", b"localhost"), (b"content-type", b"application/json"), JSON_AND_EVENTS)
_LISTENING: Fields = ((b"host", b"localhost"), (b"accept", b"text/event-stream"))


class Visitor:
    """The engine's ``Host`` of our requests for one client: there is no connection."""

    own = "127.0.0.1"
    is_tls = False

    def __init__(self, connect: Connect, peer: str = "127.0.0.1", port: int = 0) -> None:
        """``connect`` reaches upstreams that are not in this process."""
        self.connect, self.peer, self.port = connect, peer, port

    def send(self, _data: bytes) -> None:
        """Do nothing: an exchange speaks to its ``Visit``."""

    def hold(self, _on: bool) -> None:
        """Do nothing."""

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def wake(self) -> None:
        """Do nothing: what is ordered is carried out at once."""

    close = abort = wake


class Taker(Protocol):
    """What takes an answer."""

    def on_head(self, status: int, fields: Fields) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self, *, is_cut: bool) -> None: ...
    def on_failure(self) -> None:
        """Our own code has raised: nobody may wait for ever."""


class Visit:
    """One request; the engine's ``ClientSide``."""

    is_slow = False
    lacks_seat = False

    def __init__(self, visitor: Visitor, taker: Taker) -> None:
        self.host: Host = visitor
        self._taker: Taker | None = taker
        self._exchange: Exchange | None = None

    def begin(self, route: Route, head: RequestHead, body: bytes, called: str = "") -> None:
        """Visit. ``called`` is what our client calls the tool that is called."""
        exchange = self._exchange = Exchange(route(head), self, head, body)
        exchange.called = called
        try:
            exchange.begin()
        except Exception as error:
            exchange.fail(error)

    def leave(self) -> None:
        """Want no answer any more."""
        self._taker = None
        if self._exchange is not None:
            self._exchange.client_left()

    def slow_down(self, on: bool) -> None:
        """Let the server wait while our client reads slowly."""
        self.is_slow = on
        if self._exchange is not None and self._exchange.up is not None:
            self._exchange.up.slow_down(on)

    # Called by the exchange

    def go_ahead(self) -> None:
        """The body is there already."""

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        self._pass_on(answer, b"" if is_bare else answer.body, is_last=True)

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        self._pass_on(head, data, is_last=is_last)

    def cut(self, _exchange: Exchange) -> None:
        self._pass_on(None, b"", is_last=True, is_cut=True)

    def _pass_on(
        self, head: Answer | None, data: bytes, *, is_last: bool, is_cut: bool = False
    ) -> None:
        taker = self._taker
        if taker is None:
            return
        try:
            if head is not None:
                taker.on_head(head.status, head.fields)
            if data:
                taker.on_data(data)
            if is_last and self._taker is not None:
                self._taker = None
                taker.on_end(is_cut=is_cut)
        except Exception:
            log.exception("internal error; an answer was refused")
            self._taker = None
            taker.on_failure()

    def switch(self, _answer: Answer) -> bytes:
        return b""  # we ask for no WebSocket


def post_head(server: str, path: str, fields: Fields) -> RequestHead:
    """Return the head of a POST to a server's listener."""
    return RequestHead("POST", f"/{server}{path}", (*_OURS, *fields))


def get_head(server: str, path: str, fields: Fields) -> RequestHead:
    """Return the head of a request for a stream."""
    return RequestHead("GET", f"/{server}{path}", (*_LISTENING, *fields))


def delete_head(server: str, fields: Fields) -> RequestHead:
    """Return the head of a request that ends a session."""
    return RequestHead("DELETE", f"/{server}/mcp", (_LISTENING[0], *fields))
