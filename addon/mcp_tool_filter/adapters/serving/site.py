"""One upstream with all that belongs to it: its listener, its login, and whether it is lost.

Both hosts open their sites through ``Proxy.open``. A host finds the site of a connection, and gives
its ``service`` to the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.sockets.connect import Reach, probe
from mcp_tool_filter.adapters.upstream.as_client import asked_by, fetch_as_client
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.memory import Fetched, unlisted
from mcp_tool_filter.engine.service import Service
from mcp_tool_filter.errors import ListsAfterLogin, StartError
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.protocol.messages import Notification, Request

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.sockets.client import Login, Room
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


@dataclass(frozen=True, slots=True)
class NewList:
    """The changes in a new snapshot."""

    news: tuple[str, ...]
    has_changed: bool
    """True if lists that clients may have seen have changed."""


@dataclass(slots=True, eq=False, kw_only=True)
class Site:
    """One upstream."""

    name: str
    """Unique in the process; for mitmproxy the full text of its mode."""
    listener: Listener
    service: Service
    find_target: TargetFinder
    """Returns how to reach the upstream; the options may be edited while we run."""
    login: Login | None = None
    """The stored login, if there is one."""
    is_lost: bool = False
    """True while the upstream is lost, and reported as lost."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
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

    async def fetch_again(self, fetch: Fetcher) -> NewList:
        """Take a new snapshot. If it raises StartError, nothing has changed."""
        listener = self.listener
        if listener.is_forward:  # each asker's next list becomes its new snapshot
            listener.policy.kinds.forget_all()
            return NewList(("each client gets a new list when it asks for one",), has_changed=True)
        was_listed = listener.fetched.is_listed
        fetched = await (
            fetch(self.target)
            if was_listed
            else fetch_or_wait(fetch, self.target, requires_list=listener.config.requires_list)
        )
        old = listener.snapshot
        has_changed = fetched.pages != listener.fetched.pages
        listener.policy.take(fetched)
        listener.policy.kinds.forget_all()
        before, after = ({*one.allowed, *one.denied} for one in (old, listener.snapshot))
        news = [f"new tool {shown(name)}" for name in sorted(after - before)]
        news += [f"tool {shown(name)} is gone" for name in sorted(before - after)]
        news += [
            f"tool {shown(name)} has changed"
            for name, raw in old.allowed.items()
            if listener.snapshot.allowed.get(name, raw) != raw
        ]
        if not fetched.is_listed:
            news = ["its tools are listed when a client logs in"]
        return NewList(tuple(news), has_changed or not fetched.is_listed)

    async def fetch_as_client(
        self, exchange: HttpExchange, message: Request | Notification, room: Room | None
    ) -> tuple[bytes, ...]:
        """Return the list that a client would get. Raises CannotList."""
        asker = asked_by(self.listener, exchange, message)
        return await fetch_as_client(self.target, asker, room)


class SiteService(Service):
    """The service of a site."""

    site: Site


def site_of(exchange: Exchange) -> Site:
    """Return the site of an exchange."""
    assert isinstance(exchange.service, SiteService)
    return exchange.service.site


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


def reason_in(error: Exception) -> str:
    """Return why an upstream's new list could not be taken."""
    return error.why if isinstance(error, StartError) else repr(error)
