"""Speak MCP over HTTP+SSE (2024-11-05)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import ConnectionLost, HttpFailed
from mcp_tool_filter.adapters.upstream.replies import (
    INITIALIZE,
    INITIALIZED,
    Background,
    EventReader,
    Refused,
    Result,
    ResultReply,
    answer_to,
    is_response_to,
    look_at,
    plain,
    render_request,
    reply_in,
)
from mcp_tool_filter.adapters.upstream.streamable import (
    EVENTS,
    NO_ANSWER,
    Poster,
    no_mcp,
    refusal,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import EVENT_STREAM
from mcp_tool_filter.http.urls import Origin
from mcp_tool_filter.protocol.limits import Transport


class LegacyStream:
    """A GET stream that brings all answers, and names the path to post to."""

    events: EventReader

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        self._http = http
        self._limit = limit
        self._stack = AsyncExitStack()
        self._post_path = ""
        self.path = path
        self.revision = ""
        """What the upstream has agreed to, once it is known."""

    async def open(self) -> None:
        """Open the stream and wait until it names the path to post to.

        Raises Refused, ProtocolError, HttpFailed.
        """
        poster = Poster(self._http, self.path, limit=self._limit)
        response = await self._stack.enter_async_context(poster.exchange(b"GET", [EVENTS]))
        self.path = poster.path
        if response.status != 200:
            raise await refusal(response)
        if response.media_type != EVENT_STREAM:
            raise no_mcp(response)
        self.events = EventReader(response, self._limit)
        while (event := await self.events.next_event()) and event.name != b"endpoint":
            if event.data:
                raise ProtocolError("The event stream does not begin with an endpoint event")
        if event is None or event.data is None:
            raise ConnectionLost("The event stream ended without an endpoint event")
        self._post_path = _endpoint_path(event.data, self._http.origin, self.path)

    async def tell(self, message: bytes) -> None:
        """Post a message. Raises Refused, ProtocolError, HttpFailed."""
        poster = Poster(self._http, self._post_path, limit=self._limit)
        headers = [(b"mcp-protocol-version", self.revision.encode())] if self.revision else []
        await poster.tell(message, headers)

    async def close(self) -> None:
        await self._stack.aclose()


class LegacyClient:
    """Asks on a stream of its own."""

    transport = Transport.LEGACY_SSE
    has_session = False  # a session with an id

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        self._stream = LegacyStream(http, path, limit=limit)
        self._background = Background()
        self._waiting: dict[int, asyncio.Future[ResultReply]] = {}
        self._lost: Exception | None = None
        self._next_id = 0

    @property
    def path(self) -> str:
        return self._stream.path

    @property
    def revision(self) -> str:
        return self._stream.revision

    async def open(self) -> None:
        """Open the stream. Raises Refused, ProtocolError, HttpFailed."""
        await self._stream.open()
        self._background.start(self._listen(self._stream.events))

    async def initialize(self) -> ResultReply:
        return await self.request("initialize", INITIALIZE)

    async def initialized(self, revision: str) -> None:
        self._stream.revision = revision
        with suppress(Refused):
            await self._stream.tell(INITIALIZED)

    async def request(self, method: str, params: Result) -> ResultReply:
        self._next_id += 1
        number = self._next_id
        answered: asyncio.Future[ResultReply] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(look_at)
        self._waiting[number] = answered
        try:
            if self._lost:
                raise self._lost
            # The answer may arrive before the POST ends: some upstreams end it last.
            told = self._background.start(self._stream.tell(render_request(number, method, params)))
            either: set[asyncio.Future[Any]] = {told, answered}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                told.result()
            return await answered
        finally:
            del self._waiting[number]
            answered.cancel()

    async def close(self) -> None:
        await self._background.close()
        await self._stream.close()

    async def _listen(self, events: EventReader) -> None:
        try:
            while said := await events.next_message():
                self._receive(*said)
            self._lose(ConnectionLost(NO_ANSWER))
        except (HttpFailed, ProtocolError) as error:
            self._lose(error)

    def _receive(self, message: Result, raw: bytes) -> None:
        for number, answered in self._waiting.items():
            if is_response_to(number, message) and not answered.done():
                try:
                    answered.set_result(reply_in(message, raw))
                except (Refused, ProtocolError) as error:
                    answered.set_exception(error)
                return
        if answer := answer_to(message):
            self._background.answer(self._stream.tell(answer))

    def _lose(self, error: Exception) -> None:
        self._lost = error
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)


def _endpoint_path(data: bytes, origin: Origin, path: str) -> str:
    """Return the path that an ``endpoint`` event names. Raises ProtocolError."""
    said = data.decode("utf-8", "replace").strip()
    target = origin.path_to(said, at=path)
    if target is None:
        raise ProtocolError(f"The endpoint event names another origin: {plain(said)}")
    return target
