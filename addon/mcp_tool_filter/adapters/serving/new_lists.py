"""Take new snapshots while we run: on SIGHUP, and when an upstream is back; and tell clients.

We tell them only if the upstream has declared such notifications: on the GET stream of a session,
on a WebSocket, and on the streams that clients of 2026-07-28 open for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from mcp_tool_filter.adapters.serving.site import Fetcher, Site, reason_in
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.protocol.sse import render_event

log = logging.getLogger(__name__)

_MOST_NEWS = 12  # changes that we list


class NewLists:
    """Fetches lists again, each upstream separately: one that fails keeps its old list."""

    def __init__(self, fetch: Fetcher) -> None:
        self._fetch = fetch
        self._turn = asyncio.Lock()

    async def take(self, site: Site) -> Sequence[str]:
        """Take a new snapshot; return the changes. If it raises StartError, nothing has changed."""
        new = await site.fetch_again(self._fetch)
        if new.has_changed:
            tell_list_changed(site)
        return new.news

    async def take_all(self, sites: Iterable[Site], warn: Callable[[str], None]) -> None:
        """Do so for all upstreams, because of SIGHUP; report the result for each."""
        async with self._turn:  # a second SIGHUP must wait for the first
            all_ = list(sites)
            names = [f" of {one.shown}" if len(all_) > 1 else "" for one in all_]
            for said in await asyncio.gather(*map(self._take_and_describe, all_, names)):
                warn(said)

    async def _take_and_describe(self, site: Site, of: str) -> str:
        try:
            return f"SIGHUP: took a new list{of}: {named(await self.take(site))}"
        except Exception as error:
            if not isinstance(error, StartError):
                log.exception("cannot take a new list")
            return f"Warning: SIGHUP: the old list{of} stays: {reason_in(error)}"


def tell_list_changed(site: Site) -> None:
    """Tell all clients of a site that have a suitable open stream that their list has changed."""
    for exchange in list(site.service.exchanges):
        if exchange.seat is not None:
            exchange.seat.tell_list_changed()
        elif exchange.stream is not None:
            # Not in the answer to a POST, unless the client has subscribed with it.
            in_session = exchange.head.method == "GET"
            conversation = exchange.stream.conversation
            for notice in conversation.list_changed_notices(in_session=in_session):
                exchange.inject(render_event(notice))


def named(news: Sequence[str]) -> str:
    """Describe the changes in one line.

    >>> named(["new tool a"]), named([])
    ('new tool a', 'its tools are the same')
    """
    more = len(news) - _MOST_NEWS
    said = ", ".join(news[:_MOST_NEWS]) or "its tools are the same"
    return f"{said} and {more} more" if more > 0 else said
