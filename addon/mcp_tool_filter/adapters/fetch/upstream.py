"""Fetch all pages of the upstream's tool list, over any transport.

We also ask an upstream without a ``tools`` capability, because some forget to declare it. Only if
it then answers -32601 does it have no tools, and no pages.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from mcp_tool_filter.adapters.fetch.mcp_replies import (
    METHOD_NOT_FOUND,
    Refused,
    ResultReply,
    next_cursor,
    plain,
)
from mcp_tool_filter.adapters.fetch.problems import fetch_problem, hint_for
from mcp_tool_filter.adapters.fetch.search import FindTransport, Found, Search
from mcp_tool_filter.adapters.fetch.target import Target
from mcp_tool_filter.adapters.sockets.connect import HttpFailed, LoginNeeded
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.errors import ConnectFailed, FetchFailed, ProtocolError

MAX_PAGES: Final = 1000
MAX_TOTAL: Final = 8
"""All pages together may be so many times as long as one message."""
_NO_SUCH_PAGE = re.compile(r"HTTP 40[45]\b")


async def fetch(target: Target) -> Fetched:
    """Fetch the upstream's tools. Raises ConnectFailed, FetchFailed, LoggedOut."""
    try:
        return await fetch_from(target, lambda opened: Search(target, opened).find())
    except FetchFailed as error:
        if target.endpoint and _NO_SUCH_PAGE.search(error.why):
            error.hint = await _find_elsewhere(target)
        raise


async def _find_elsewhere(target: Target) -> str | None:
    """Return the usual path that speaks MCP, if the configured one does not."""
    try:
        async with AsyncExitStack() as opened, asyncio.timeout(target.connect_timeout):
            found = await Search(replace(target, endpoint=None), opened).find()
    except (TimeoutError, HttpFailed, Refused, ProtocolError, LoginNeeded):
        return None
    return f"MCP is at {target.url}{found.client.path}"


async def fetch_from(target: Target, find: FindTransport) -> Fetched:
    """Fetch the tools of the upstream that ``find`` finds. Raises ConnectFailed, FetchFailed."""
    async with AsyncExitStack() as opened:
        found = await _connect(target, find, opened)
        pages = await _all_pages(target, found)
    return Fetched(
        transport=found.client.transport,
        revision=found.client.revision,
        endpoint=found.client.path,
        server_name=found.introduction.server_name,
        server_version=found.introduction.server_version,
        sessions=found.client.has_session,
        pages=pages,
    )


async def _connect(target: Target, find: FindTransport, opened: AsyncExitStack) -> Found:
    try:
        async with asyncio.timeout(target.connect_timeout):
            return await find(opened)
    except TimeoutError:
        why = f"Connection timeout after {_milliseconds(target.connect_timeout)}ms"
        raise ConnectFailed(target.url, why=why) from None
    except LoginNeeded as needed:
        raise needed.error from None
    except HttpFailed as error:
        why = plain(str(error))
        raise ConnectFailed(target.url, why=why, hint=hint_for(why)) from None
    except (Refused, ProtocolError) as error:
        raise await fetch_problem(error, target) from None


async def _all_pages(target: Target, found: Found) -> tuple[bytes, ...]:
    try:
        async with asyncio.timeout(target.list_timeout):
            return tuple(await _pages(found, at_most=MAX_TOTAL * target.limit))
    except TimeoutError:
        why = f"Request timeout after {_milliseconds(target.list_timeout)}ms"
        raise FetchFailed(why=why) from None
    except LoginNeeded as needed:
        raise needed.error from None
    except (Refused, ProtocolError, HttpFailed) as error:
        raise await fetch_problem(error, target) from None


async def _pages(found: Found, *, at_most: int) -> list[bytes]:
    pages: list[bytes] = []
    cursors: list[str | None] = [None]
    while (reply := await _page(found, cursors[-1])) is not None:
        pages.append(reply.raw)
        if sum(map(len, pages)) > at_most:
            raise ProtocolError(f"The tool list is longer than {at_most} bytes")
        cursor = next_cursor(reply)
        if cursor is None:
            break
        if cursor in cursors:
            raise ProtocolError(
                f'The tool list never ends: it repeats the cursor "{plain(cursor)}"'
            )
        if len(pages) == MAX_PAGES:
            raise ProtocolError(f"The tool list has more than {MAX_PAGES} pages")
        cursors.append(cursor)
    return pages


async def _page(found: Found, cursor: str | None) -> ResultReply | None:
    """Return a page of the tool list; None if the upstream has no tools/list."""
    try:
        return await found.client.request("tools/list", {"cursor": cursor} if cursor else {})
    except Refused as refused:
        if refused.code == METHOD_NOT_FOUND and not found.introduction.has_tools:
            return None
        raise


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
