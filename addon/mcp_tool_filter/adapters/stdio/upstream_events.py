"""Shared by both kinds of HTTP upstream: the listener's interface, events, and error texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from mcp_tool_filter.adapters.fetch.http_client import HttpResponse
from mcp_tool_filter.adapters.fetch.http_failures import HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.fetch.mcp_replies import plain
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import NOT_LOGGED_IN, UPSTREAM_LOST
from mcp_tool_filter.protocol.sse import Event, EventParser, Oversized

EVENTS = (b"accept", b"text/event-stream")
JSON = (b"content-type", b"application/json")


class UpstreamListener(Protocol):
    """Receives the messages of an upstream."""

    async def receive(self, said: bytes | CutLine) -> None:
        """Take a message in any spelling, or the rest of one that is too long."""

    def waits_for(self, ids: Sequence[str]) -> bool:
        """Tell whether any of these requests has no answer yet."""

    async def fail(self, ids: Sequence[str], code: int, text: str) -> None:
        """Answer those of these requests that still wait with an error."""

    async def missed(self, error: HttpFailed) -> None:
        """Check whether an upstream that did not answer is lost."""


@asynccontextmanager
async def reporting_failure(listener: UpstreamListener, ids: Sequence[str]) -> AsyncIterator[None]:
    """Answer these requests with an error if the upstream cannot be reached."""
    try:
        yield
    except HttpFailed as error:
        await listener.fail(ids, *words_for(error))
        await listener.missed(error)


async def receive_event(event: Event | Oversized, listener: UpstreamListener) -> None:
    if isinstance(event, Oversized):
        await listener.receive(CutLine(event.beginning, b"", len(event.beginning)))
    elif event.is_message and event.data and event.data.strip():
        await listener.receive(event.data)


async def events_of(response: HttpResponse, limits: Limits) -> AsyncIterator[Event | Oversized]:
    """Yield the events of a response as they arrive. Raises HttpFailed."""
    if response.coding:
        raise HttpFailed(f"The event stream is compressed ({plain(response.coding)})")
    parser = EventParser(max_pending=limits.pending)
    while chunk := await response.next_chunk():
        for event in parser.feed(chunk):
            yield event


def words_for(error: HttpFailed) -> tuple[int, str]:
    """Return the error code and text for a request that got no answer."""
    if isinstance(error, LoginNeeded):
        return NOT_LOGGED_IN, plain(str(error))
    return UPSTREAM_LOST, f"Upstream connection lost: {plain(str(error))}"
