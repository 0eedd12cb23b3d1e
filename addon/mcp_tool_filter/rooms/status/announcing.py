"""Let ``status`` and the pages of other filters find this process, where that is possible."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site
from mcp_tool_filter.core.process.statistics import JsonObject, Statistics
from mcp_tool_filter.rooms.status.running import (
    Announced,
    announce,
    describe_filter,
    describe_server,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.http.listener import Listener
    from mcp_tool_filter.core.process.proxy import Proxy

_LONGEST_ANSWER = 1.0  # seconds for the event loop to answer another process
_LONGEST_FOR_PAGE = 4.0


class Announcement(Plug):
    """What other programs of this user learn about the process."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._announced: Announced | None = None
        self._is_announced = False

    def announce(self) -> None:
        if self._is_announced:
            return
        self._is_announced = True
        started, loop = time.time(), asyncio.get_running_loop()

        async def describe_to_page(question: JsonObject) -> JsonObject | bytes:
            from mcp_tool_filter.rooms.page.page import LivePage  # seldom asked

            return self.proxy.plugs.find(LivePage).answer_other(question, await describe())

        async def describe() -> JsonObject:
            servers = list(map(self._describe, self.proxy.sites.values()))
            servers += [self._beside(*one) for one in self.proxy.shown_besides().items()]
            facts = {"audit_log": None, "dashboard": None} | self.proxy.plugs.facts()
            return describe_filter(
                servers, started=started, config_file=self.proxy.around.config_file, **facts
            )

        def answer() -> JsonObject:
            return asyncio.run_coroutine_threadsafe(describe(), loop).result(_LONGEST_ANSWER)

        def answer_page(question: JsonObject) -> JsonObject | bytes:
            answering = asyncio.run_coroutine_threadsafe(describe_to_page(question), loop)
            return answering.result(_LONGEST_FOR_PAGE)

        self._announced = announce(answer, answer_page)

    async def close(self) -> None:
        if self._announced:
            self._announced.close()

    def _beside(self, name: str, listener: Listener) -> JsonObject:
        return describe_server(
            name, listener.called, listener.snapshot, Statistics(), config=listener.config
        )

    def _describe(self, site: Site) -> JsonObject:
        listener, counted = site.listener, self.proxy.statistics.get(site.name) or Statistics()
        fetched = listener.fetched
        return describe_server(
            None if "://" in site.name else site.name,  # a server's in the file, else its URL
            site.shown_target,
            listener.snapshot if fetched.is_listed else None,
            counted,
            server=f"{fetched.server_name} {fetched.server_version}".strip(),
            listens_at=self.proxy.addresses.get(site.name),
            has_login=site.login is not None,
            config=listener.config,
        )
