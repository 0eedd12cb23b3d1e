"""One upstream with all that belongs to it: its listener, its login, and whether it is lost.

Both hosts open their sites through ``Proxy.open``. A host finds the site of a connection, and gives
it to the engine, whose service it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.sockets.connect import Reach, probe
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.memory import Fetched, unlisted
from mcp_tool_filter.engine.service import Effects, Seats, Service
from mcp_tool_filter.errors import ListsAfterLogin
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.sockets.client import Login
    from mcp_tool_filter.adapters.sockets.server import AnswerRequest
    from mcp_tool_filter.engine.exchange import Exchange

type Fetcher = Callable[[Target], Awaitable[Fetched]]
type TargetFinder = Callable[[Config], Target]


@dataclass(frozen=True, slots=True)
class Command:
    """An upstream that is a command. It answers in this process; its URL is only a name."""

    answer: AnswerRequest
    called: str
    """What people call it, without secrets."""


class Site(Service):
    """One upstream."""

    def __init__(
        self,
        name: str,
        listener: Listener,
        effects: Effects,
        seats: Seats,
        find_target: TargetFinder,
    ) -> None:
        """``find_target`` returns how to reach the upstream; the options may be edited while we
        run."""
        authority = parse_origin(listener.upstream).authority
        super().__init__(listener, authority, effects, seats=seats)
        self.name = name
        """Unique in the process; for mitmproxy the full text of its mode."""
        self.find_target = find_target
        self.login: Login | None = None
        """The stored login, if there is one."""
        self.is_lost = False
        """True while the upstream is lost, and reported as lost."""
        self.reached = asyncio.Event()
        """Set when a client has reached a lost upstream again."""

    @property
    def target(self) -> Target:
        return self.find_target(self.listener.config)

    @property
    def shown(self) -> str:
        return self.listener.called or shown_url(self.listener.upstream)

    @property
    def url(self) -> str:
        """The URL of the MCP endpoint, without its query."""
        return self.listener.upstream + self.listener.fetched.endpoint.partition("?")[0]

    def note_connection(self) -> None:
        """Note that a client's request has reached the upstream."""
        if self.is_lost:
            self.reached.set()

    async def probe(self) -> Reach:
        """Return whether the upstream still accepts connections."""
        target, config = self.target, self.listener.config
        if target.answer is not None:
            return Reach.REACHED
        return await probe(parse_origin(target.url), target.tls, config.connection_timeout)


def site_of(exchange: Exchange) -> Site:
    """Return the site of an exchange."""
    assert isinstance(exchange.service, Site)
    return exchange.service


def head_of(exchange: Exchange) -> Head:
    """Return the head of a request as the core reads it."""
    head = exchange.head
    known = head.notes.head
    return known or Head(head.method, head.target, head.fields, exchange.down.host.peer)


def client_of(exchange: Exchange) -> Client | None:
    """Return the client that waits for the answer; None if it waits on another stream."""
    if exchange.socket is not None:
        return exchange.socket.client
    asked = exchange.asked
    if asked is None or (asked.is_legacy and exchange.head.method != "GET"):
        return None
    return asked.conversation.client


async def fetch_or_wait(fetch: Fetcher, target: Target, *, requires_list: bool) -> Fetched:
    """Fetch the tools; return an empty list if the upstream requires a login and says how."""
    try:
        return await fetch(target)
    except ListsAfterLogin as error:
        if requires_list:
            raise
        return unlisted(error.path)
