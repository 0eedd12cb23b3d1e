"""``mcp-tool-filter --port N -- CMD``: serve a command over HTTP, by the same proxy as any URL."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from mcp_tool_filter.adapters.sockets.server import ServerLimits, http_server
from mcp_tool_filter.adapters.stdio.bridge import PATH, Bridge
from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.client import find
from mcp_tool_filter.adapters.stdio.sessions import BridgeSessions
from mcp_tool_filter.adapters.upstream.fetch import fetch_from
from mcp_tool_filter.adapters.upstream.search import Found
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.observers.redaction.shown import shown_command
from mcp_tool_filter.protocol.limits import Transport, has_initialize


@dataclass(frozen=True, slots=True)
class BridgedCommand:
    """A command that can be reached like a URL."""

    settings: Settings
    """The settings for the proxy in front of it."""
    command: tuple[str, ...]
    bridge: Bridge
    address: tuple[str, int]
    start: Callable[[], Child]
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None

    async def fetch(self, target: Target) -> Fetched:
        """Fetch the tools from the command itself. Raises StartError."""
        shown = replace(target, url=shown_command(self.command))
        child = self.start()

        async def find_it(opened: AsyncExitStack) -> Found:
            later = AsyncExitStack()  # the start does not wait for the end of this child
            opened.callback(lambda: self.bridge.sessions.end_later(later.aclose()))
            return await find(child, later, limit=target.limit, say=say)

        fetched = await fetch_from(shown, find_it)
        is_old = has_initialize(fetched.revision)
        return replace(
            fetched,
            transport=Transport.STREAMABLE if is_old else Transport.STATELESS,
            endpoint=PATH,
            sessions=is_old,
        )

    @property
    def identity(self) -> tuple[str, bytes]:
        """The command as rules name it, and what identifies its user."""
        from mcp_tool_filter.adapters.effects.rule_state import credentials_of_command

        return shlex.join(self.command), credentials_of_command(self.env, self.cwd)

    def name_in(self, report: str) -> str:
        """Return a report that names the command instead of its internal port."""
        return report.replace(self.settings.origin + PATH, shown_command(self.command))


@asynccontextmanager
async def bridged(settings: Settings) -> AsyncIterator[BridgedCommand]:
    """Serve a command on a port that only our own proxy can use, until the end of the block."""
    config = settings.config()

    def start() -> Child:
        return Child(settings.command, env=settings.env, cwd=settings.cwd)

    sessions = BridgeSessions(start, config.limits, say=say, most=settings.max_children)
    bridge = Bridge(sessions, config.limits)
    limits = ServerLimits(body=2 * config.limits.message, grace=0.2)
    async with http_server(bridge.answer, serves=bridge.serves, limits=limits) as server:
        texts = settings.texts | {"endpoint": PATH, "upstream_headers": ()}
        inner = replace(settings, origin=server.origin, command=(), env={}, texts=texts)
        try:
            yield BridgedCommand(
                inner,
                settings.command,
                bridge,
                (server.host, server.port),
                start,
                settings.env,
                settings.cwd,
            )
        finally:
            await asyncio.shield(sessions.close())
