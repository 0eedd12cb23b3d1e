"""The filter on sockets in this process, as the launcher runs it, without mitmproxy.

    async with served(to=upstream.url, deny=["^wipe"], endpoint=["/mcp"]) as running:
        ...  # running.port, running.said, running.proxy

The options are those of the addon, so that a test can run on either host.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_tool_filter.cli.options import KEYS
from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Surroundings
from mcp_tool_filter.core.sockets.connect import make_tls_context
from mcp_tool_filter.core.sockets.serve import Server, bind, opening
from mcp_tool_filter.core.upstream.target import Target, target_for
from tests.proxy import certified, kept_log

type Options = dict[str, str | Sequence[str]]

_LISTS = {key for key, option in KEYS.items() if option.many}


@dataclass
class RunningSockets:
    """A filter in this process."""

    proxy: Proxy
    server: Server
    said: list[logging.LogRecord] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Why the process would have ended."""

    @property
    def port(self) -> int:
        return int(self.server.address.rpartition(":")[2])

    async def hang_up_on_upstream(self) -> None:
        """Close the idle connections, once all exchanges that clients wait for are over."""
        (pool,) = self.server.room.pools
        while any(one not in pool.idle and not one.is_closing for one in pool.all):
            if not self.proxy.exchanges:
                break
            await asyncio.sleep(0.005)
        for one in list(pool.idle):
            one.abort()

    def errors(self) -> list[str]:
        """What was logged at ERROR or above."""
        return [r.getMessage() for r in self.said if r.levelno >= logging.ERROR]

    def adopt(self, **options: str | Sequence[str]) -> None:
        """Edit the options."""
        self.proxy.adopt(config_of(options))


def config_of(options: Options) -> Config:
    """Check options in the form of mitmproxy's, which are lists of texts."""
    texts: dict[str, Any] = {
        name: given if isinstance(given, str) else tuple(given) if name in _LISTS else given[-1]
        for name, given in options.items()
    }
    return parse_config(texts)


@asynccontextmanager
async def served(
    *, to: str, home: Path | None = None, surroundings: Surroundings | None = None, **options: Any
) -> AsyncIterator[RunningSockets]:
    """Serve one upstream; a certificate for clients is made in ``home``."""
    tls = make_tls_context(insecure=True) if to.startswith("https") else None
    reports: list[str] = []
    warnings: list[str] = []
    ended: list[str] = []

    def find_target(config: Config) -> Target:
        return target_for(config, to, tls)

    def to_clients() -> ssl.SSLContext:
        assert home, "no place for a certificate"
        context = certified(home)
        context.set_alpn_protocols(["http/1.1"])
        return context

    around = surroundings or Surroundings(
        rooms=ROOMS,
        warn=warnings.append,
        render=render_report,
        report=reports.append,
        leave=ended.append,
        make_tls=lambda: make_tls_context(insecure=True),
    )
    proxy = Proxy(around)
    proxy.adopt(config_of(options))
    server = Server(proxy, bind("127.0.0.1", 0), opening(proxy, find_target), to_clients)
    running = RunningSockets(proxy, server, [], reports, warnings, ended)
    with kept_log(running.said):
        try:
            await server.start()
            yield running
        finally:
            await server.close()
