"""React when an upstream is lost, and when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from mitmproxy.connection import Client
from mitmproxy.proxy.mode_specs import ReverseMode

from mcp_tool_filter.adapters.mitmproxy.forward.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.losses import Losses
from mcp_tool_filter.adapters.mitmproxy.forward.new_lists import NewLists, named
from mcp_tool_filter.adapters.mitmproxy.forward.streams import lose, open_flows
from mcp_tool_filter.adapters.serving.background import in_background
from mcp_tool_filter.adapters.serving.limits import Reserve
from mcp_tool_filter.adapters.sockets.connect import Reach
from mcp_tool_filter.errors import LostUpstream, StartError

log = logging.getLogger(__name__)

type Say = Callable[[str], None]
"""Shows a sentence to the user."""


_PAUSE = 0.5
"""Seconds between two checks whether an upstream is back.

A client that reaches it ends the wait.
"""
_PATIENCE = 10.0
"""Seconds for an upstream that accepts connections again to list its tools."""


class LossGuard:
    """Ends the process when an upstream is lost, or waits until it is back."""

    def __init__(
        self,
        listeners: Listeners,
        new_lists: NewLists,
        reserve: Reserve,
        ending: Ending,
        warn: Say,
    ) -> None:
        self._listeners = listeners
        self._new_lists = new_lists
        self._ending = ending
        self._warn = warn
        self._losses = Losses(listeners.probe, self.lose, reserve)
        self._lost: dict[str, asyncio.Event] = {}
        """The lost upstreams by mode; the event is set when a client has reached one."""

    @property
    def is_lost(self) -> bool:
        """Whether an upstream is lost, and reported as lost."""
        return bool(self._lost)

    def suspect(self, client: Client) -> None:
        """Check whether a client's upstream can still be reached, because something failed."""
        self._losses.suspect(client.proxy_mode, self._listeners.config.connection_timeout)

    def note_end_of_stream(self, client: Client) -> None:
        """Note the clean end of a long stream: an upstream that restarts also ends it like this."""
        if not self._listeners.config.fail_fast:
            self.suspect(client)

    def lose(self, mode: ReverseMode) -> None:
        if not self._listeners.config.fail_fast:
            self._wait_for(mode)
        elif not self._ending.has_begun:
            self._ending.fatal(str(LostUpstream()))
            for flow in open_flows():
                lose(flow)

    def _wait_for(self, mode: ReverseMode) -> None:
        key = mode.full_spec
        if key in self._lost or key not in self._listeners.by_mode:
            return
        self._lost[key] = asyncio.Event()
        name = self._listeners.name_of(key)
        self._warn(f"Warning: {LostUpstream().what}{name}; waiting for it to come back")
        in_background(self._until_back(mode, self._lost[key]))

    def server_connected(self, client: Client) -> None:
        if event := self._lost.get(client.proxy_mode.full_spec):
            event.set()

    async def _until_back(self, mode: ReverseMode, reached: asyncio.Event) -> None:
        """Wait for an upstream; then use its new list, and report the changes in it."""
        name = self._listeners.name_of(mode.full_spec)
        loop = asyncio.get_running_loop()
        end: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await reached.wait()
            reached.clear()
            if await self._listeners.probe(mode) is not Reach.REACHED:
                end = None
                continue
            end = end or loop.time() + _PATIENCE
            try:
                news = await self._new_lists.take(mode.full_spec)
            except StartError as error:
                if loop.time() < end:  # the upstream may still be starting
                    continue
                said = f"Warning: The upstream{name} is back, but the old list stays: {error.why}"
            except Exception as error:
                log.exception("cannot take the list of an upstream that is back")
                said = f"Warning: The upstream{name} is back, but the old list stays: {error!r}"
            else:
                said = f"The upstream{name} is back: {named(news)}"
            del self._lost[mode.full_spec]
            self._warn(said)
            return
