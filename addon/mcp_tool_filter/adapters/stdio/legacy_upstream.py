"""Connect a client that sends lines to an upstream that speaks HTTP+SSE (2024-11-05).

All answers come on one stream. We pass each message of the upstream to an ``UpstreamListener``,
which judges it; nothing is judged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from mcp_tool_filter.adapters.fetch.http_client import Headers, HttpClient, HttpResponse
from mcp_tool_filter.adapters.fetch.http_failures import ConnectionLost, HttpFailed
from mcp_tool_filter.adapters.fetch.mcp_replies import plain
from mcp_tool_filter.adapters.fetch.poster import endpoint_path, read_away
from mcp_tool_filter.adapters.stdio.upstream_events import (
    EVENTS,
    JSON,
    UpstreamListener,
    events_of,
    receive_event,
    reporting_failure,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.origin import Origin
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp_tool_filter.protocol.sse import Event


class LegacyUpstream:
    """HTTP+SSE: a GET stream with all answers, and a path to post to, which it names."""

    def __init__(
        self,
        http: HttpClient,
        origin: Origin,
        path: str,
        listener: UpstreamListener,
        limits: Limits,
    ) -> None:
        self._http = http
        self._origin = origin
        self._path = path
        self._listener = listener
        self._limits = limits
        self._opened = AsyncExitStack()
        self._reader: asyncio.Task[None] | None = None
        self._post_path: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._revision: bytes | None = None

    async def open(self) -> None:
        """Open the stream, and wait until it names the path to post to. Raises HttpFailed."""
        request = self._http.exchange(b"GET", self._path, [EVENTS])
        response = await self._opened.enter_async_context(request)
        if response.status != 200 or response.media_type != "text/event-stream":
            raise HttpFailed(f"{plain(response.status_line)} instead of an event stream")
        self._reader = asyncio.create_task(self._read(response))
        either: set[asyncio.Future[Any]] = {self._post_path, self._reader}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._post_path.done():
            raise ConnectionLost("The event stream ended without an endpoint event")
        self._post_path.result()

    async def post(
        self, body: bytes, ids: Sequence[str], headers: Headers, *, method: str = ""
    ) -> None:
        """Send a message; its answer comes on the stream."""
        revision = [(b"mcp-protocol-version", self._revision)] if self._revision else []
        sent = [(b"accept", b"*/*"), JSON, *revision]
        async with reporting_failure(self._listener, ids):
            path = await self._post_path
            async with self._http.exchange(b"POST", path, sent, body) as response:
                if response.status >= 300:
                    text = f"The server answered {plain(response.status_line)}"
                    is_probe = method == "server/discover" and response.status < 500
                    code = METHOD_NOT_FOUND if is_probe else INTERNAL_ERROR
                    await self._listener.fail(ids, code, text)
                await read_away(response)

    def agree_on(self, revision: str) -> None:
        self._revision = revision.encode() if revision.isascii() else None

    def listen(self) -> None:
        """The stream is open already."""

    async def close(self) -> None:
        if self._reader:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._opened.aclose()

    async def _read(self, response: HttpResponse) -> None:
        error: HttpFailed = ConnectionLost("The event stream has ended")
        try:
            async for event in events_of(response, self._limits):
                if isinstance(event, Event) and event.name == b"endpoint":
                    self._meet_endpoint(event)
                else:
                    await receive_event(event, self._listener)
        except HttpFailed as failed:
            error = failed
        if self._post_path.done():
            await self._listener.missed(StreamEnded(str(error)))

    def _meet_endpoint(self, event: Event) -> None:
        if self._post_path.done():
            return
        try:
            path = endpoint_path(event.data or b"", self._origin, self._path)
        except ProtocolError as error:
            self._post_path.set_exception(HttpFailed(str(error)))
        else:
            self._post_path.set_result(path)


class StreamEnded(HttpFailed):
    """The one stream of an HTTP+SSE session is gone, and the session with it."""
