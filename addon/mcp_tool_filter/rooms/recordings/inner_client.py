"""A client in this process: a replay asks with it, and needs no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.service import Asking, Host
    from mcp_tool_filter.core.engine.steps import Answer


class InnerClient:
    """A client of one request; it keeps the answer."""

    is_slow = False
    lacks_seat = False

    def __init__(self, host: Host | None = None) -> None:
        """Without a ``host``, the service must have an upstream in this process."""
        self.host: Host = host or _NoHost()
        self.answer: Answer | None = None
        self.body = bytearray()
        self.over = asyncio.Event()

    def ask(self, exchange: Exchange, body: bytes) -> None:
        """Ask for an exchange of ours."""
        try:
            exchange.begin()
            if body:
                exchange.take(body)
            exchange.end_of_request()
        except Exception as error:
            exchange.fail(error)

    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        self.answer = answer
        self.body += b"" if is_bare else answer.body
        self.over.set()

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        self.answer = head or self.answer
        self.body += data
        if is_last:
            self.over.set()

    def cut(self, _exchange: Exchange) -> None:
        self.over.set()

    def go_ahead(self) -> None:
        """The body goes at once."""


class _NoHost:
    """The host of a client without a connection: what is said to it is not heard."""

    own = peer = "127.0.0.1"
    port = 0
    is_tls = False

    def send(self, _data: object) -> None:
        """Do nothing."""

    def connect(self, exchange: Asking) -> None:
        exchange.unreachable("it has no connections")

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def wake(self) -> None:
        """Do nothing: what is ordered is carried out at once."""

    hold = send
    close = abort = wake
