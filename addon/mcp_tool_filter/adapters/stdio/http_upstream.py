"""The other end of a pipe: an upstream that speaks HTTP, for a client that sends lines.

``StreamableUpstream`` posts each message and gets its answer there (since 2025-03-26): JSON, or an
event stream, which is resumed if it breaks. If the upstream has lost our session (404), we open
another one with the client's own ``initialize``, and send the message again: it has not run.
``LegacyUpstream`` gets all answers on one GET stream (HTTP+SSE, 2024-11-05).

Both send with the MCP client of ``adapters.upstream``, and pass each message of the upstream to an
``UpstreamListener``, which judges it; nothing is judged here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient, HttpResponse
from mcp_tool_filter.adapters.sockets.connect import (
    ConnectionLost,
    HttpFailed,
    LoginNeeded,
    NotConnected,
)
from mcp_tool_filter.adapters.upstream.clients import (
    EVENTS,
    JSON_BODY,
    JSON_OR_EVENTS,
    LegacyStream,
    Poster,
    read_away,
)
from mcp_tool_filter.adapters.upstream.replies import EventReader, Refused, plain, string_in
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import EVENT_STREAM
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_LOGGED_IN,
    UPSTREAM_LOST,
)
from mcp_tool_filter.protocol.sse import Event, Oversized

_ERROR_BODY: Final = 64 * 1024
_RETRY: Final = 1.0  # seconds, unless the upstream states another time
_LONGEST_RETRY: Final = 30.0
_MOST_TRIES: Final = 8  # attempts to resume a stream without receiving anything


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


class StreamableUpstream:
    """Answers come on each POST; in an older session, others on a GET stream."""

    def __init__(
        self, http: HttpClient, path: str, listener: UpstreamListener, limits: Limits
    ) -> None:
        self.poster = Poster(http, path, limit=limits.message)
        self._listener = listener
        self._limits = limits
        self._opening: bytes | None = None
        self._initialized: bytes | None = None
        self._replacing = asyncio.Lock()
        self._stream: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Do nothing: nothing must be open before the first message."""

    async def post(
        self, body: bytes, ids: Sequence[str], headers: Headers, *, method: str = ""
    ) -> None:
        """Send a message, and receive everything in its answer."""
        if method == "initialize":
            self.poster.session, self._opening, self._initialized = None, body, None
        elif method == "notifications/initialized":
            self._initialized = body
        async with reporting_failure(self._listener, ids):
            session = self.poster.session
            if not await self._post(body, ids, headers, method):
                return
            # The upstream has refused the message because of its session, so it has not run.
            if not (await self._replace(session) and not await self._post(body, ids, headers, "")):
                await self._listener.fail(ids, INVALID_REQUEST, "Session terminated")

    async def _post(self, body: bytes, ids: Sequence[str], headers: Headers, method: str) -> bool:
        """Send a message, and receive its answer; return whether the session is lost instead."""
        # A message may state its revision; then it belongs to no session.
        is_stateless = any(name == b"mcp-protocol-version" for name, _ in headers)
        session = [] if is_stateless else self.poster.headers
        sent = [JSON_OR_EVENTS, JSON_BODY, *session, *headers]
        async with self.poster.exchange(b"POST", sent, body) as response:
            if method == "initialize" and response.status < 300:
                self.poster.session = response.header(b"mcp-session-id") or None
            if response.status == 404 and any(name == b"mcp-session-id" for name, _ in sent):
                await read_away(response)
                return True
            await self._take(response, ids, method)
        return False

    async def _replace(self, lost: bytes | None) -> bool:
        """Open a session in the place of a lost one; return whether there is one now."""
        async with self._replacing:
            if self.poster.session == lost:  # else another message has replaced it
                self.poster.forget_session()
                if self._opening is None or not await self._reopen(self._opening):
                    self.poster.session = lost
                    return False
        if self._stream and self._stream.done():
            self._stream = asyncio.create_task(self._follow(_Place(endless=True)))
        return True

    async def _reopen(self, opening: bytes) -> bool:
        sent = [JSON_OR_EVENTS, JSON_BODY]
        async with self.poster.exchange(b"POST", sent, opening) as response:
            session = response.header(b"mcp-session-id")
            async for said in self._messages_in(response):
                revision = string_in(said, "result", "protocolVersion")
                if revision is not None and revision.isascii():
                    break
                await self._listener.receive(said)
            else:
                return False
            await read_away(response)
        if self.poster.revision and revision != self.poster.revision:
            return False  # the client relies on the revision that it knows
        self.poster.session = session
        if self._initialized:
            await self._post(self._initialized, (), (), "")
        return True

    async def _messages_in(self, response: HttpResponse) -> AsyncIterator[bytes]:
        if response.status != 200:
            return
        if response.media_type == EVENT_STREAM:
            async for event in EventReader(response, self._limits.pending):
                if isinstance(event, Event) and event.is_message and event.data:
                    yield event.data
        elif response.media_type == "application/json":
            yield await response.read(self._limits.message)

    def listen(self) -> None:
        """Open the GET stream, once a session is initialized."""
        if self._stream is None:
            self._stream = asyncio.create_task(self._follow(_Place(endless=True)))

    async def close(self) -> None:
        """End the session."""
        if self._stream:
            self._stream.cancel()
            await asyncio.wait([self._stream])
        await self.poster.close()

    async def _take(self, response: HttpResponse, ids: Sequence[str], method: str) -> None:
        if response.status >= 300:
            await self._take_refusal(response, ids, method)
        elif response.media_type == EVENT_STREAM and response.status == 200:
            await self._take_stream(response, ids)
        elif response.media_type == "application/json":
            await self._take_body(response, ids)
        else:
            await read_away(response)
        await self._listener.fail(ids, INTERNAL_ERROR, "The server sent no answer")

    async def _take_body(self, response: HttpResponse, ids: Sequence[str]) -> None:
        try:
            body = await response.read(self._limits.message)
        except ConnectionLost:
            raise
        except HttpFailed as error:  # too long, or not decodable
            await self._listener.fail(ids, INTERNAL_ERROR, words_for(error)[1])
            return
        if body.strip():
            await self._listener.receive(body)

    async def _take_refusal(self, response: HttpResponse, ids: Sequence[str], method: str) -> None:
        body = b""
        with suppress(HttpFailed):
            body = await response.read(_ERROR_BODY)
        for answer in _errors_in(body, ids):
            await self._listener.receive(answer)
        code, text = INTERNAL_ERROR, f"The server answered {plain(response.status_line)}"
        if response.status == 404 or (method == "server/discover" and response.status < 500):
            code, text = METHOD_NOT_FOUND, "Method not found"
        await self._listener.fail(ids, code, text)

    async def _take_stream(self, response: HttpResponse, ids: Sequence[str]) -> None:
        """Receive an answer that is a stream; resume it if it breaks."""
        place = _Place()
        try:
            await self._receive_events(response, place, ids)
        except (HttpFailed, ProtocolError) as error:
            if place.last_id is None:
                raise ConnectionLost(str(error)) from None
        await self._follow(place, ids)

    async def _follow(self, place: _Place, ids: Sequence[str] = ()) -> None:
        """Get a stream, again whenever it breaks, as long as one of these requests waits; if it is
        endless, as long as the upstream offers one."""
        is_first = place.endless
        while place.may_resume and (place.endless or self._listener.waits_for(ids)):
            if not is_first:
                await place.wait()
            is_first = False
            headers = [EVENTS, *self.poster.headers]
            if place.last_id:
                headers.append((b"last-event-id", place.last_id))
            try:
                async with self.poster.exchange(b"GET", headers) as response:
                    if response.status == 200 and response.media_type == EVENT_STREAM:
                        await self._receive_events(response, place, ids)
                    elif place.endless or response.status < 500:
                        return
            except NotConnected as error:
                await self._listener.missed(error)
            except HttpFailed:
                pass
            except ProtocolError:  # a stream that we cannot read
                return

    async def _receive_events(
        self, response: HttpResponse, place: _Place, ids: Sequence[str] = ()
    ) -> None:
        async for event in EventReader(response, self._limits.pending):
            place.note(event)
            await receive_event(event, self._listener)
            if ids and not self._listener.waits_for(ids):
                await read_away(response)
                return


class _Place:
    """The position in a stream, and when it may be resumed."""

    def __init__(self, *, endless: bool = False) -> None:
        self.last_id: bytes | None = None
        self._retry = _RETRY
        self._tries = 0
        self.endless = endless

    def note(self, event: Event | Oversized) -> None:
        self._tries = 0
        if not isinstance(event, Event):
            return
        for line in event.others.split(b"\n"):
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"id" and b"\0" not in value:
                self.last_id = value or None
            elif key == b"retry" and value.isdigit():
                self._retry = min(int(value[:9]) / 1000, _LONGEST_RETRY)

    @property
    def may_resume(self) -> bool:
        return self.endless or (self.last_id is not None and self._tries < _MOST_TRIES)

    async def wait(self) -> None:
        delay = min(self._retry * 2 ** max(0, self._tries - 1), _LONGEST_RETRY)
        self._tries += 1
        await asyncio.sleep(delay)


class LegacyUpstream(LegacyStream):
    """HTTP+SSE: a GET stream with all answers, and a path to post to, which it names."""

    def __init__(
        self, http: HttpClient, path: str, listener: UpstreamListener, limits: Limits
    ) -> None:
        super().__init__(http, path, limit=limits.pending)
        self._listener = listener

    async def open(self) -> None:
        """Open the stream, and wait until it names the path to post to. Raises HttpFailed."""
        try:
            await super().open()
        except (Refused, ProtocolError) as error:
            raise HttpFailed(str(error)) from None

    async def post(
        self, body: bytes, ids: Sequence[str], headers: Headers, *, method: str = ""
    ) -> None:
        """Send a message; its answer comes on the stream."""
        async with reporting_failure(self._listener, ids):
            try:
                await self.poster.tell(body, self.poster.headers)
            except Refused as refused:
                text = f"The server answered {refused.status_line}"
                is_probe = method == "server/discover" and refused.status < 500
                code = METHOD_NOT_FOUND if is_probe else INTERNAL_ERROR
                await self._listener.fail(ids, code, text)

    def listen(self) -> None:
        """The stream is open already."""

    async def _read(self, events: EventReader) -> None:
        why = "The event stream has ended"
        try:
            async for event in events:
                await receive_event(event, self._listener)
        except (HttpFailed, ProtocolError) as error:
            why = str(error)
        await self._listener.missed(StreamEnded(why))


class StreamEnded(HttpFailed):
    """The one stream of an HTTP+SSE session is gone, and the session with it."""


@asynccontextmanager
async def reporting_failure(listener: UpstreamListener, ids: Sequence[str]) -> AsyncIterator[None]:
    """Answer these requests with an error if the upstream gives no answer that can be read."""
    try:
        yield
    except ProtocolError as error:
        await listener.fail(ids, INTERNAL_ERROR, plain(str(error)))
    except HttpFailed as error:
        await listener.fail(ids, *words_for(error))
        await listener.missed(error)


async def receive_event(event: Event | Oversized, listener: UpstreamListener) -> None:
    if isinstance(event, Oversized):
        await listener.receive(CutLine(event.beginning, b"", len(event.beginning)))
    elif event.is_message and event.data and event.data.strip():
        await listener.receive(event.data)


def words_for(error: HttpFailed) -> tuple[int, str]:
    """Return the error code and text for a request that got no answer."""
    if isinstance(error, LoginNeeded):
        return NOT_LOGGED_IN, plain(str(error))
    return UPSTREAM_LOST, f"Upstream connection lost: {plain(str(error))}"


def _errors_in(body: bytes, ids: Sequence[str]) -> list[bytes]:
    """Return the JSON-RPC errors for a refusal, with the request's id if it has none."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(message, dict) or not isinstance(message.get("error"), dict):
        return []
    if message.get("id") is not None or len(ids) != 1:
        return [body]
    error = json.dumps(message["error"])
    return [f'{{"jsonrpc":"2.0","id":{ids[0]},"error":{error}}}'.encode()]
