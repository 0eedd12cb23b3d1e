"""``mcp-tool-filter --port N -- CMD``: serve a command over HTTP, by the same proxy as any URL.

The proxy asks the command within this process: there is nothing at the URL that it has for it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from mcp_tool_filter.adapters.serving.proxy import Proxy
from mcp_tool_filter.adapters.serving.site import Command
from mcp_tool_filter.adapters.stdio.bridge import PATH, Bridge
from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.sessions import BridgeSessions, find
from mcp_tool_filter.adapters.upstream.fetch import fetch_from
from mcp_tool_filter.adapters.upstream.search import Found
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.observers.redaction.shown import shown_command
from mcp_tool_filter.protocol.limits import has_initialize

_ORIGIN: Final = "http://command.invalid"  # RFC 2606: nobody has this name


@dataclass(frozen=True, slots=True)
class BridgedCommand:
    """A command that can be asked like a URL."""

    typed: Settings = field(repr=False)
    """The settings with the command."""
    bridge: Bridge

    @property
    def settings(self) -> Settings:
        """The settings for the proxy in front of it."""
        texts = self.typed.texts | {"endpoint": PATH, "upstream_headers": ()}
        return replace(self.typed, origin=_ORIGIN, command=(), env={}, texts=texts)

    async def fetch(self, target: Target) -> Fetched:
        """Fetch the tools from the command itself. Raises StartError."""
        shown = replace(target, url=shown_command(self.typed.command))
        child = _start(self.typed)

        async def find_it(opened: AsyncExitStack) -> Found:
            later = AsyncExitStack()  # the start does not wait for the end of this child
            opened.callback(lambda: self.bridge.sessions.end_later(later.aclose()))
            return await find(child, later, limit=target.limit, say=say)

        fetched = await fetch_from(shown, find_it)
        return replace(fetched, endpoint=PATH, sessions=has_initialize(fetched.revision))

    def attach_to(self, proxy: Proxy) -> None:
        """Let a proxy ask the command, and name it."""
        typed = self.typed
        proxy.command = Command(self.bridge.answer, shown_command(typed.command))
        if typed.texts["rules"] or typed.set:
            from mcp_tool_filter.adapters.rules.state import credentials_of_command

            user = credentials_of_command(typed.env, typed.cwd)
            proxy.rules.command = shlex.join(typed.command), user


@asynccontextmanager
async def bridged(settings: Settings) -> AsyncIterator[BridgedCommand]:
    """Run a command for each session, until the end of the block."""
    limits, most = settings.config().limits, settings.max_children
    sessions = BridgeSessions(lambda: _start(settings), limits, say=say, most=most)
    try:
        yield BridgedCommand(settings, Bridge(sessions, limits))
    finally:
        await asyncio.shield(sessions.close())


def _start(settings: Settings) -> Child:
    return Child(settings.command, env=settings.env, cwd=settings.cwd)
