"""Take new snapshots while we run: when the user asks for it, and when an upstream is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mitmproxy import ctx

from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.listener import Listener

log = logging.getLogger(__name__)

_MOST_NEWS = 12  # changes that we list


class NewLists:
    """Fetches lists again, each upstream separately: one that fails keeps its old list."""

    def __init__(self, listeners: Listeners, tell_changed: Callable[[Listener], None]) -> None:
        """``tell_changed`` gets each listener whose clients may see another list now."""
        self._listeners = listeners
        self._tell_changed = tell_changed
        self._turn = asyncio.Lock()

    async def take(self, mode: str) -> Sequence[str]:
        """Take a new snapshot; return the changes. If it raises StartError, nothing has changed."""
        new = await self._listeners.fetch_again(mode, ctx.options)
        if new.has_changed:
            self._tell_changed(self._listeners.by_mode[mode])
        return new.news

    async def take_all(self, warn: Callable[[str], None]) -> None:
        """Do so for all upstreams, because of SIGHUP; report the result for each."""
        async with self._turn:  # a second SIGHUP must wait for the first
            modes = list(self._listeners.by_mode)
            for said in await asyncio.gather(*map(self._take_and_describe, modes)):
                warn(said)

    async def _take_and_describe(self, mode: str) -> str:
        name = self._listeners.name_of(mode)
        of = f" of{name}" if name else ""
        try:
            return f"SIGHUP: took a new list{of}: {named(await self.take(mode))}"
        except StartError as error:
            return f"Warning: SIGHUP: the old list{of} stays: {error.why}"
        except Exception as error:
            log.exception("cannot take a new list")
            return f"Warning: SIGHUP: the old list{of} stays: {error!r}"


def named(news: Sequence[str]) -> str:
    """Describe the changes in one line.

    >>> named(["new tool a"]), named([])
    ('new tool a', 'its tools are the same')
    """
    more = len(news) - _MOST_NEWS
    said = ", ".join(news[:_MOST_NEWS]) or "its tools are the same"
    return f"{said} and {more} more" if more > 0 else said
