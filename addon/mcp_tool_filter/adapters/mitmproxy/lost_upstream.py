"""What becomes of us when an upstream is lost, and when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine

from mitmproxy import ctx
from mitmproxy.connection import Client

from mcp_tool_filter.adapters.mitmproxy.descriptors import Reserve
from mcp_tool_filter.adapters.mitmproxy.exit import Ending
from mcp_tool_filter.adapters.mitmproxy.listeners import Listeners
from mcp_tool_filter.adapters.mitmproxy.losses import Losses
from mcp_tool_filter.adapters.mitmproxy.on_demand import named
from mcp_tool_filter.adapters.mitmproxy.streams import lose, open_flows
from mcp_tool_filter.errors import LostUpstream, StartError

log = logging.getLogger(__name__)

type InBackground = Callable[[Coroutine[None, None, None]], None]


class LossGuard:
    """Ends the process when an upstream is lost, or waits until it is back."""

    def __init__(
        self, listeners: Listeners, reserve: Reserve, ending: Ending, in_background: InBackground
    ) -> None:
        self._listeners = listeners
        self._ending = ending
        self._in_background = in_background
        self._losses = Losses(listeners.probe, self.lose, reserve)
        self.is_lost = False
        """An upstream is away, and that has been said."""

    def suspect(self, client: Client) -> None:
        """Something went wrong with an upstream: can it still be reached?"""
        self._losses.suspect(client.proxy_mode, self._listeners.config.connection_timeout)

    def lose(self) -> None:
        if not self._listeners.config.fail_fast:
            if not self.is_lost:
                log.warning("%s; waiting for it to come back", LostUpstream().what)
            self.is_lost = True
        elif not self._ending.has_begun:
            self._ending.fatal(str(LostUpstream()))
            for flow in open_flows():
                lose(flow)

    def server_connected(self) -> None:
        if self.is_lost:
            self.is_lost = False
            self._in_background(self._come_back())

    async def _come_back(self) -> None:
        """Tell what has changed in an upstream that was lost, and filter by its new list."""
        try:
            news = await self._listeners.fetch_again(ctx.options)
        except StartError as error:
            log.warning("The upstream is back, but the old list stays: %s", error.why)
            return
        log.warning("The upstream is back: %s", named(news))
