"""What happens to an upstream while we serve it: it is lost, it comes back, its tools change.

It is lost only if a new connection cannot be made. A reset, a GOAWAY, a disconnect or an error on
our side fails only one request; each makes us probe. A lost upstream ends the process, or with
``--keep-running`` we wait until it is back and take its new list.

A SIGHUP also makes us take the new list of each upstream. Clients are told of changes only if the
upstream has declared such notifications: on the GET stream of a session, on a WebSocket, and on the
streams that clients of 2026-07-28 open for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.background import in_background
from mcp_tool_filter.adapters.serving.site import Site, fetch_or_wait
from mcp_tool_filter.adapters.sockets.connect import Reach
from mcp_tool_filter.errors import LostUpstream, StartError
from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.protocol.sse import render_event

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.serving.proxy import Proxy

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
_MOST_NEWS = 12  # changes that we list


class Changes:
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
        if site.listener.is_forward or self._proxy.has_failed:
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
        if site.listener.config.fail_fast:
            self._proxy.lose_all()
        elif not site.is_lost:
            site.is_lost = True
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
            self._proxy.warn(said)
            return

    # New lists

    async def take_list(self, site: Site) -> str:
        """Take a new snapshot; return the changes in one line. If it raises StartError, nothing has
        changed."""
        listener, policy, old = site.listener, site.listener.policy, site.listener.fetched
        if listener.is_forward:  # each asker's next list becomes its new snapshot
            policy.kinds.forget_all()
            tell_list_changed(site)
            return "each client gets a new list when it asks for one"
        requires_list = old.is_listed or listener.config.requires_list
        fetch = self._proxy.around.fetch
        fetched = await fetch_or_wait(fetch, site.target, requires_list=requires_list)
        before = listener.snapshot
        for _ in policy.take(fetched):  # a long list must not keep clients waiting
            await asyncio.sleep(0)
        policy.kinds.forget_all()
        if fetched.pages != old.pages or not fetched.is_listed:
            tell_list_changed(site)
        if not fetched.is_listed:
            return "its tools are listed when a client logs in"
        return _changes_in(before, listener.snapshot)

    async def take_all_lists(self) -> None:
        """Take a new list of each upstream, and report the result; one that fails keeps its old
        list."""
        await self._proxy.ready.wait()
        async with self._turn:  # a second SIGHUP must wait for the first
            sites = list(self._proxy.sites.values())
            for said in await asyncio.gather(*map(self._take_and_describe, sites)):
                self._proxy.warn(said)

    async def _take_and_describe(self, site: Site) -> str:
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
        except (NotImplementedError, RuntimeError, ValueError):  # not the main thread
            return
        self._loop = loop

    def close(self) -> None:
        if self._loop is not None and sys.platform != "win32":
            self._loop.remove_signal_handler(signal.SIGHUP)
            self._loop = None

    def _hang_up(self) -> None:
        """Take new lists; but a terminal that closes, which sends the same signal, ends us."""
        if all(os.isatty(number) for number in self._terminals):
            in_background(self.take_all_lists())
        elif sys.platform != "win32":
            self.close()
            os.kill(os.getpid(), signal.SIGTERM)  # so that commands and files are closed, too


def tell_list_changed(site: Site) -> None:
    """Tell all clients of a site that have a suitable open stream that their list has changed."""
    for exchange in list(site.exchanges):
        if exchange.seat is not None:
            exchange.seat.tell_list_changed()
        elif exchange.stream is not None:
            # Not in the answer to a POST, unless the client has subscribed with it.
            in_session = exchange.head.method == "GET"
            conversation = exchange.stream.conversation
            for notice in conversation.list_changed_notices(in_session=in_session):
                exchange.inject(render_event(notice))


def _changes_in(old: Snapshot, new: Snapshot) -> str:
    before, after = ({*one.allowed, *one.denied} for one in (old, new))
    news = [f"new tool {shown(name)}" for name in sorted(after - before)]
    news += [f"tool {shown(name)} is gone" for name in sorted(before - after)]
    news += [
        f"tool {shown(name)} has changed"
        for name, raw in old.allowed.items()
        if new.allowed.get(name, raw) != raw
    ]
    more = len(news) - _MOST_NEWS
    said = ", ".join(news[:_MOST_NEWS]) or "its tools are the same"
    return f"{said} and {more} more" if more > 0 else said


def _why(error: Exception) -> str:
    """Return why an upstream's new list could not be taken; log what must not happen."""
    if isinstance(error, StartError):
        return error.why
    log.error("cannot take a new list", exc_info=error)
    return repr(error)
