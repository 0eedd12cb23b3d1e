"""The page of a process: what it shows and switches, and the port that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.statistics import JsonObject
from mcp_tool_filter.rooms.page.dashboard import (
    Dashboard,
    Overview,
    SavesPatterns,
    Switches,
    answer_other,
    dashboard_server,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.proxy import Proxy

_UNSEEN = 10.0  # seconds without a question until nobody looks any more


class LivePage(Plug):
    """The page of all sites; a host with pages of its own may serve it, too."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._switches: WeakKeyDictionary[Proxy, Switches] = WeakKeyDictionary()
        self._opened = AsyncExitStack()
        self._address: str | None = None
        self._asked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def overview(self) -> Overview:
        """The present state of all sites, for the page and for commands."""
        proxy = self.proxy
        return Overview(
            proxy.listeners,
            proxy.statistics,
            besides=lambda: proxy.shown_besides(),
            places=proxy.addresses,
            names=lambda: proxy.runs() if proxy.runs else (),
            problem_of=self._problem_of,
        )

    @cached_property
    def dashboard(self) -> Dashboard:
        return Dashboard(
            self.overview.as_json,
            self._switches_of(self.proxy),
            lambda: {name: self._switches_of(one) for name, one in self.proxy.parts.items()},
            self.overview.definition,
        )

    def begin(self) -> None:
        if self.proxy.config.dashboard is not None or self.proxy.shows_page:
            self.proxy.page = self.dashboard.timeline.note

    async def serve(self) -> None:
        """Serve the page at a port of its own, if that is wanted. Raises StartError."""
        if (port := self.proxy.config.dashboard) is not None:
            server = dashboard_server(self.dashboard, port, self.proxy.around.report)
            self._address = await self._opened.enter_async_context(server)

    # For the page of another process

    def answer_other(self, question: JsonObject, described: JsonObject) -> JsonObject | bytes:
        """Answer another process of this user; its page gets the messages from now on."""
        self._asked_at = asyncio.get_running_loop().time()
        if self.proxy.page is None:
            self.proxy.page = self.dashboard.timeline.note
            self._watch_until_unseen()
        return answer_other(self.dashboard, question, described)

    def _watch_until_unseen(self) -> None:
        from mcp_tool_filter.rooms.telemetry.watchers import Watchers  # only while one looks

        loop = asyncio.get_running_loop()
        if loop.time() - self._asked_at > _UNSEEN:
            self.proxy.page = None
        else:
            self._timer = loop.call_later(_UNSEEN, self._watch_until_unseen)
        self.proxy.plugs.find(Watchers).show_page()

    def facts(self) -> Mapping[str, str | None]:
        return {"dashboard": self._address}

    async def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        await self._opened.aclose()

    def _problem_of(self, name: str) -> str | None:
        if site := self.proxy.sites.get(name):
            return "The server cannot be reached" if site.is_lost else None
        return self.proxy.problems().get(name)

    def _switches_of(self, proxy: Proxy) -> Switches:
        """Return the patterns of all sites, or of one server of several."""
        if (switches := self._switches.get(proxy)) is None:
            switches = self._switches[proxy] = Switches(
                lambda: proxy.config,
                lambda: [site.listener.snapshot for site in proxy.sites.values()],
                proxy.around.edit_deny,
                savings=cast("SavesPatterns | None", proxy.around.savings()),
                policies=lambda: [site.listener.policy for site in proxy.sites.values()],
                adopt=proxy.adopt,
                server="" if proxy is self.proxy else next(iter(proxy.sites)),
            )
        return switches
