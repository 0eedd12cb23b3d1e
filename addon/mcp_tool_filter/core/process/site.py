"""One upstream with all that belongs to it: its listener, its login, and whether it is lost.

Both hosts open their sites through ``Proxy.open``. A host finds the site of a connection, and gives
it to the engine, whose service it is.

``UpstreamWatch`` watches an upstream while we serve it: it is lost, comes back, its tools change.
It is lost only if a new connection cannot be made. A reset, a GOAWAY, a disconnect or an error on
our side fails only one request; each makes us probe. A lost upstream ends the process, or with
``--keep-running`` we wait until it is back and take its new list.

A SIGHUP also makes us take the new list of each upstream. Clients are told of changes only if the
upstream has declared such notifications: on the GET stream of a session, and on the streams that
clients of 2026-07-28 open for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.memory import Fetched, unlisted
from mcp_tool_filter.core.engine.service import EffectRunner, InLane, Seats, Service, nothing
from mcp_tool_filter.core.errors import ListsAfterLogin, LostUpstream, StartError
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.http.urls import UpstreamNames, parse_origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.situation import Client
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.core.process.sentences import Introduction
from mcp_tool_filter.core.sockets.connect import Reach, probe
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target, find_names

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.policy_in_force import Judged
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.upstream import Upstream
    from mcp_tool_filter.core.policy.situation import Link
    from mcp_tool_filter.core.process.plugs import Entry, Sink
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.sockets.client import Login
    from mcp_tool_filter.core.sockets.served import AnswerRequest

type Fetcher = Callable[[Target], Awaitable[Fetched]]
type TargetFinder = Callable[[Config], Target]
type Connect = Callable[[Exchange], Upstream | None]


@dataclass(frozen=True, slots=True)
class ServedCommand:
    """An upstream that is a command. It answers in this process; its URL is only a name."""

    answer: AnswerRequest
    called: str
    """What people call it, without secrets."""
    connect: Callable[[Callable[[int], None]], Connect]
    """Returns how exchanges ask it; gets what counts the bytes of its answers."""
    words: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str | None = None


type NamesFinder = Callable[[str], Awaitable[UpstreamNames]]


def _cannot_edit(_deny: list[str], _exceptions: list[str]) -> str:
    return "The patterns cannot be edited here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a host gives the proxy."""

    warn: Callable[[str], None]
    render: Callable[[Introduction, Snapshot, Sequence[str]], str]
    """Puts the report about an upstream into words, with lines of the rooms."""
    report: Callable[[str], None]
    """Gets the report about each upstream, once its tools are known."""
    leave: Callable[[str], None]
    """Ends the process with an error, after the clients have their answers. Gets its text."""
    make_tls: Callable[[], ssl.SSLContext]
    """Returns the TLS settings towards any server, with the user's authorities."""
    rooms: Sequence[Entry]
    """The rooms that may plug in."""
    is_offline: bool = False
    """True in a replay: nothing may be sent to anybody."""
    fetch: Fetcher = fetch
    find_names: NamesFinder = find_names
    edit_deny: Callable[[list[str], list[str]], str] = _cannot_edit
    """Sets the deny patterns and their exceptions for the dashboard; returns the problem."""
    savings: Callable[[], object] = lambda: None
    """Returns what saves them in the config file; the room that shows a page knows how."""
    config_file: str = ""
    """The config file from which servers have their names."""
    hang_up: Callable[[], Awaitable[None]] | None = None
    """Called at SIGHUP instead of taking new lists."""
    links: tuple[Link, ...] = ()
    """The chain after the tool filter."""
    sinks: Sequence[Sink] = ()
    """They get an entry for each message that matters."""
    on_end: Callable[[], None] = lambda: None
    """Called after the last message, if anything gets entries."""
    tell: Callable[[str, Judged], None] | None = None
    """Gets each verdict with the name of its site: the views of mitmproxy."""
    name_flow: Callable[[Exchange | InLane], str] = lambda _exchange: ""
    """Returns what the host calls an exchange, where people can look at it."""


class Site(Service):
    """One upstream."""

    def __init__(
        self,
        name: str,
        listener: Listener,
        effects: EffectRunner,
        seats: Seats,
        find_target: TargetFinder,
    ) -> None:
        """``find_target`` returns how to reach the upstream; the options may be edited while we
        run."""
        authority = parse_origin(listener.upstream).authority
        super().__init__(listener, authority.encode(), effects, seats=seats)
        self.name = name
        """Unique in the process; for mitmproxy the full text of its mode."""
        self.find_target = find_target
        self.login: Login | None = None
        """The stored login, once it was looked for, and if there is one."""
        self.on_change: Callable[[], None] = nothing
        """Called when its list has changed, or it is lost, or back."""
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
    def shown_target(self) -> str:
        """The URL with its path, or the command, without secrets."""
        listener = self.listener
        return listener.called or shown_url(listener.upstream + listener.fetched.endpoint)

    def login_for(self, head: Head) -> Login | None:
        """Return the login for a request, or for our own message that belongs to it."""
        listener = self.listener
        if (
            self.login is None
            or not listener.config.uses_login
            or head.credentials
            or not listener.takes_headers(head.target)
            or any(name.lower() == "authorization" for name, _ in listener.headers_for(head))
        ):
            return None
        return self.login

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


def site_of(exchange: Exchange | InLane) -> Site:
    """Return the site of an exchange."""
    assert isinstance(exchange.service, Site)
    return exchange.service


def head_of(exchange: Exchange) -> Head:
    """Return the head of a request as the core reads it."""
    head = exchange.head
    known = head.notes.head
    return known or Head(head.method, head.target, head.fields, exchange.down.host.peer)


def move_to(exchange: Exchange, service: Service) -> None:
    """Let another service judge a request, because its upstream runs only now."""
    exchange.service.exchanges.discard(exchange)
    exchange.service = service
    service.exchanges.add(exchange)
    exchange.guarded(exchange.judge)
    exchange.down.host.wake()


def client_of(exchange: Exchange) -> Client | None:
    """Return the client that waits for the answer; None if it waits on another stream."""
    asked = exchange.asked
    if asked is None or (asked.is_legacy and exchange.head.method != "GET"):
        return None
    return asked.conversation.client


async def fetch_or_wait(fetch: Fetcher, target: Target, *, requires_list: bool = False) -> Fetched:
    """Fetch the tools; return an empty list if the upstream requires a login and says how."""
    try:
        return await fetch(target)
    except ListsAfterLogin as error:
        if requires_list:
            raise
        return unlisted(error.path)


log = logging.getLogger(__name__)

PAUSE = 0.25
"""Seconds between two probes of one upstream, because clients can make requests fail at will."""
_FIRST_PAUSE = 0.05
"""Seconds after a failure: what has broken off a connection may be about to close its port."""
PROBES = 2
"""A dying process may still accept a connection after it has broken off others: ask again."""
PATIENCE = 1.0
"""Seconds between two probes if the first was unclear."""
_BACK_PAUSE = 0.5
"""Seconds between two checks whether an upstream is back. A client that reaches it ends the
wait."""
_BACK_PATIENCE = 10.0
"""Seconds for an upstream that accepts connections again to list its tools."""


class UpstreamWatch:
    """Watches over the upstreams of all sites."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._suspected: dict[str, bool] = {}
        """The sites being probed, and whether a newer failure needs another probe."""
        self._turn = asyncio.Lock()
        self._terminals: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # Losses

    def suspect(self, site: Site) -> None:
        """Probe an upstream, because something with it has failed."""
        if site.listener.is_forward or site.is_ending:
            return
        if site.name in self._suspected:
            self._suspected[site.name] = True
            return
        self._suspected[site.name] = False
        in_background(self._look_after(site))

    def note_end_of_stream(self, site: Site) -> None:
        """Note the clean end of a long stream: an upstream that restarts also ends it like this."""
        if not site.listener.config.fail_fast:
            self.suspect(site)

    async def _look_after(self, site: Site) -> None:
        await asyncio.sleep(_FIRST_PAUSE)
        try:
            to_go = PROBES
            while to_go:
                self._suspected[site.name] = False
                if await self._is_lost(site):
                    self.lose(site)
                    return
                await asyncio.sleep(PAUSE)
                to_go = PROBES if self._suspected[site.name] else to_go - 1
        finally:
            del self._suspected[site.name]

    async def _is_lost(self, site: Site) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + site.listener.config.connection_timeout
        while True:
            with self._proxy.crowd.reserve.lent():
                reach = await site.probe()
            log.debug("the upstream was probed: %s", reach)
            if reach in (Reach.REACHED, Reach.LOST):
                return reach is Reach.LOST
            if loop.time() + PATIENCE > end:
                return reach is Reach.DOUBTFUL
            await asyncio.sleep(PATIENCE)

    def lose(self, site: Site) -> None:
        """End the process, or wait until a lost upstream is back."""
        if site.is_ending:
            return
        if site.listener.config.fail_fast:
            self._proxy.ending.lose_all()
        elif not site.is_lost:
            site.is_lost = True
            site.on_change()
            self._proxy.warn(
                f"Warning: {LostUpstream().what}{self._proxy.name_of(site)};"
                " waiting for it to come back"
            )
            in_background(self._until_back(site))

    async def _until_back(self, site: Site) -> None:
        """Wait for an upstream; then use its new list, and report the changes in it."""
        loop = asyncio.get_running_loop()
        end: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BACK_PAUSE):
                    await site.reached.wait()
            site.reached.clear()
            if site.is_ending:
                return
            if await site.probe() is not Reach.REACHED:
                end = None
                continue
            end = end or loop.time() + _BACK_PATIENCE
            said = f"The upstream{self._proxy.name_of(site)} is back"
            try:
                said = f"{said}: {await self.take_list(site)}"
            except Exception as error:
                if isinstance(error, StartError) and loop.time() < end:
                    continue  # the upstream may still be starting
                said = f"Warning: {said}, but the old list stays: {_why(error)}"
            site.is_lost = False
            site.on_change()
            self._proxy.warn(said)
            return

    # New lists

    async def take_list(self, site: Site) -> str:
        """Take a new snapshot; return the changes in one line. If it raises StartError, nothing has
        changed."""
        listener, policy, old = site.listener, site.listener.policy, site.listener.fetched
        if listener.is_forward:  # each asker's next list becomes its new snapshot
            policy.kinds.forget_all()
            _tell_of_new_list(site)
            return "each client gets a new list when it asks for one"
        fetch = self._proxy.around.fetch
        fetched = await fetch_or_wait(fetch, site.target, requires_list=old.is_listed)
        before = listener.snapshot
        for _ in policy.take(fetched):  # a long list must not keep clients waiting
            await asyncio.sleep(0)
        policy.kinds.forget_all()
        if fetched.pages != old.pages or not fetched.is_listed:
            _tell_of_new_list(site)
        if not fetched.is_listed:
            return "its tools are listed when a client logs in"
        return listener.snapshot.changes_since(before)

    async def take_all_lists(self) -> None:
        """Take a new list of each upstream, and report the result; one that fails keeps its old
        list."""
        await self._proxy.ready.wait()
        async with self._turn:  # a second SIGHUP must wait for the first
            self._proxy.plugs.reload()
            sites = list(self._proxy.sites.values())
            for said in await asyncio.gather(*map(self.take_and_describe, sites)):
                self._proxy.warn(said)

    async def _refresh(self) -> None:
        await (self._proxy.around.hang_up or self.take_all_lists)()

    async def take_and_describe(self, site: Site) -> str:
        """Take a new list because of SIGHUP; return what came of it."""
        name = self._proxy.name_of(site)
        of = f" of{name}" if name else ""
        try:
            return f"SIGHUP: took a new list{of}: {await self.take_list(site)}"
        except Exception as error:
            return f"Warning: SIGHUP: the old list{of} stays: {_why(error)}"

    def listen(self) -> None:
        """Listen for SIGHUP, unless it is ignored in this process."""
        if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            return
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        except RuntimeError:  # not the main thread, or an event loop that knows no signals
            return
        self._loop = loop

    def close(self) -> None:
        if self._loop is not None and sys.platform != "win32":
            self._loop.remove_signal_handler(signal.SIGHUP)
            self._loop = None

    def _hang_up(self) -> None:
        """Take new lists; but a terminal that closes, which sends the same signal, ends us."""
        if all(os.isatty(number) for number in self._terminals):
            in_background(self._refresh())
        elif sys.platform != "win32":
            self.close()
            os.kill(os.getpid(), signal.SIGTERM)  # so that commands and files are closed, too


def _tell_of_new_list(site: Site) -> None:
    """Tell the clients that they get another list now; with ``shadow``, the upstream tells them."""
    if not site.listener.config.shadow:
        tell_list_changed(site)


def tell_list_changed(site: Site) -> None:
    """Tell all clients of a site that have a suitable open stream that their list has changed."""
    for exchange in list(site.exchanges):
        if exchange.stream is not None:
            exchange.stream.tell_list_changed()
    site.on_change()


def _why(error: Exception) -> str:
    """Return why an upstream's new list could not be taken; log what must not happen."""
    if isinstance(error, StartError):
        return error.why
    log.error("cannot take a new list", exc_info=error)
    return repr(error)
