"""Speak MCP over HTTP, as a client.

``Poster`` posts to one path, and has the rules for refusals, redirects and sessions.
``LegacyStream`` is the GET stream of HTTP+SSE. Two clients ask with them: ``StreamableClient``
(since 2025-03-26) and ``LegacyClient`` (2024-11-05).
Each returns a ``ResultReply`` with the original bytes, and closes what it has opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcp_tool_filter.adapters.background import Background, look_at
from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient, HttpResponse
from mcp_tool_filter.adapters.sockets.connect import ConnectionLost, HttpFailed
from mcp_tool_filter.adapters.upstream.replies import (
    INITIALIZE,
    INITIALIZED,
    EventReader,
    Refused,
    Result,
    ResultReply,
    answer_to,
    error_in,
    is_nameless_error,
    is_response_to,
    only_reply,
    plain,
    render_request,
    reply_in,
    stateless_meta,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import EVENT_STREAM
from mcp_tool_filter.http.urls import Origin
from mcp_tool_filter.protocol.limits import R2026_07_28, Transport

if TYPE_CHECKING:
    from mcp_tool_filter.conversation.conversation import Conversation

_ERROR_BODY_LIMIT: Final = 64 * 1024
MAX_REDIRECTS = 5
_STREAM_END_TIMEOUT = 0.1  # seconds for a stream to end after its answer, to keep the connection
_GOODBYE_TIMEOUT = 2.0  # seconds to close our sessions
_MOST_SESSIONS = 10  # that we close, if an upstream gives us one with each answer
NO_ANSWER = "The event stream ended without an answer"

JSON_OR_EVENTS: Final = (b"accept", b"application/json, text/event-stream")
EVENTS: Final = (b"accept", EVENT_STREAM.encode())
JSON_BODY: Final = (b"content-type", b"application/json")

type Answering = Callable[[bytes], Coroutine[None, None, None]]


class Poster:
    """Posts messages to one path, which a redirect may change."""

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        self._http = http
        self._limit = limit
        self._next_id = 0
        self.path = path
        self.session: bytes | None = None
        """The id of our session, and the revision in it, once we have agreed on them."""
        self.revision = ""
        self.offered: bytes | None = None
        """The last session id we got."""
        self._sessions: set[bytes] = set()  # all session ids we got, even with refusals

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of a message in our session."""
        session = [(b"mcp-session-id", self.session)] if self.session else []
        return [*session, *_version(self.revision)]

    async def ask(
        self, method: str, params: Result, headers: Headers = (), hears: Answering | None = None
    ) -> ResultReply:
        """Send a request and return its result. Raises Refused, ProtocolError, HttpFailed."""
        self._next_id += 1
        message = render_request(self._next_id, method, params)
        async with self.exchange(b"POST", [JSON_OR_EVENTS, JSON_BODY, *headers], message) as got:
            if got.status >= 300:
                refused = await refusal(got)
                refused.path = self.path
                raise refused
            if got.media_type == "application/json":
                return only_reply(self._next_id, await got.read(self._limit))
            if got.media_type == EVENT_STREAM:
                return await self._listen(got, self._next_id, hears)
            raise no_mcp(got)

    def begin_at(self, number: int) -> None:
        """Start request numbers here, because others may send requests in the same session."""
        self._next_id = number

    async def tell(self, message: bytes, headers: Headers = ()) -> None:
        """Send a message that has no answer. Raises Refused, HttpFailed."""
        async with self.exchange(b"POST", [JSON_OR_EVENTS, JSON_BODY, *headers], message) as got:
            if got.status >= 300:
                raise await refusal(got)
            if got.media_type != EVENT_STREAM:  # an event stream may never end
                await read_away(got)

    def forget_session(self) -> None:
        """The upstream has forgotten our session."""
        self._sessions.discard(self.session or b"")
        self.session = None

    async def close_sessions(self) -> None:
        """End every session we got. (An upstream may refuse that with 405.)"""
        with suppress(HttpFailed, ProtocolError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                while self._sessions:
                    named = [(b"mcp-session-id", self._sessions.pop()), *_version(self.revision)]
                    async with self.exchange(b"DELETE", named) as response:
                        await response.read(_ERROR_BODY_LIMIT)

    @asynccontextmanager
    async def exchange(
        self, method: bytes, headers: Headers, body: bytes = b""
    ) -> AsyncIterator[HttpResponse]:
        """Send a request; follow redirects that stay at the origin.

        Raises HttpFailed, and ProtocolError if a redirect leads elsewhere.
        """
        for _ in range(MAX_REDIRECTS):
            async with self._http.exchange(method, self.path, headers, body) as response:
                if method == b"POST" and (session := response.header(b"mcp-session-id")):
                    self.offered = session
                    if len(self._sessions) < _MOST_SESSIONS:
                        self._sessions.add(session)
                target = redirect_target(response, self._http.origin, self.path)
                if target is None:
                    yield response
                    return
                await read_away(response)
            self.path = target
        raise ProtocolError(f"More than {MAX_REDIRECTS} redirects, the last to {plain(self.path)}")

    async def _listen(
        self, response: HttpResponse, number: int, hears: Answering | None
    ) -> ResultReply:
        events = EventReader(response, self._limit)
        while said := await events.next_message():
            message, raw = said
            if is_response_to(number, message) or is_nameless_error(message):
                await read_away(response)
                return reply_in(message, raw)
            if hears and (answer := answer_to(message)):
                await hears(answer)
        raise ConnectionLost(NO_ANSWER)


async def refusal(response: HttpResponse) -> Refused:
    """Return the refusal in an unsuccessful response; its body may contain a JSON-RPC error."""
    error = None
    with suppress(HttpFailed):
        error = error_in(await response.read(_ERROR_BODY_LIMIT))
    line = response.status_line
    if location := response.header(b"location"):
        line += f", to {location.decode('latin-1')}"
    refused = Refused(response.status, line, error)
    refused.challenges = tuple(response.headers(b"www-authenticate"))
    return refused


def no_mcp(response: HttpResponse) -> ProtocolError:
    said = response.media_type or "no Content-Type"
    return ProtocolError(f"{plain(response.status_line)} with {plain(said)}: that is not MCP")


async def read_away(response: HttpResponse) -> None:
    """Read the rest of a response if it is short and arrives soon, so that the connection can be
    kept."""
    with suppress(HttpFailed, TimeoutError):
        async with asyncio.timeout(_STREAM_END_TIMEOUT):
            await response.read(_ERROR_BODY_LIMIT)


def redirect_target(response: HttpResponse, origin: Origin, path: str) -> str | None:
    """Return the path of a redirect within the same origin, or None. Raises ProtocolError."""
    followed = (307, 308) if response.method != b"GET" else (301, 302, 303, 307, 308)
    location = response.header(b"location").decode("latin-1")
    if not location or response.status not in (301, 302, 303, 307, 308):
        return None
    target = origin.path_to(location, at=path)
    if target is None:
        raise ProtocolError(f"{plain(response.status_line)}: redirected to {plain(location)}")
    return target if response.status in followed else None


def _version(revision: str) -> Headers:
    return [(b"mcp-protocol-version", revision.encode())] if revision else []


class McpClient(Protocol):
    """What asks an upstream."""

    transport: Transport

    @property
    def path(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def has_session(self) -> bool: ...

    async def request(self, method: str, params: Result) -> ResultReply: ...


class StreamableClient:
    """Each POST gets its own answer. From 2025-03-26 to 2025-11-25 ``initialize`` comes first; in
    2026-07-28 (``STATELESS``) every request states who we are and which revision we speak."""

    def __init__(self, poster: Poster, transport: Transport = Transport.STREAMABLE) -> None:
        self._poster, self.transport = poster, transport
        self._background = Background()

    @property
    def path(self) -> str:
        return self._poster.path

    @property
    def revision(self) -> str:
        return R2026_07_28 if self.transport is Transport.STATELESS else self._poster.revision

    @property
    def has_session(self) -> bool:
        return self._poster.session is not None

    async def initialize(self) -> ResultReply:
        self._poster.offered = None  # a refused probe may have got one too
        reply = await self._poster.ask("initialize", INITIALIZE, hears=self._answer)
        self._poster.session = self._poster.offered
        return reply

    async def initialized(self, revision: str) -> None:
        """Confirm the revision; ignore it if the upstream refuses the notification."""
        self._poster.revision = revision
        with suppress(Refused):
            await self._poster.tell(INITIALIZED, self._poster.headers)

    async def request(self, method: str, params: Result) -> ResultReply:
        if self.transport is not Transport.STATELESS:
            return await self._poster.ask(method, params, self._poster.headers, self._answer)
        params = {**params, "_meta": stateless_meta(self.revision)}
        headers = [*_version(self.revision), (b"mcp-method", method.encode())]
        return await self._poster.ask(method, params, headers)

    async def close(self) -> None:
        await self._background.close()

    async def _answer(self, message: bytes) -> None:
        self._background.answer(self._poster.tell(message, self._poster.headers))


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
        await poster.tell(message, _version(self.revision))

    async def close(self) -> None:
        await self._stack.aclose()


class LegacyClient(LegacyStream):
    """Asks on a stream of its own."""

    transport = Transport.LEGACY_SSE
    has_session = False  # a session with an id

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        super().__init__(http, path, limit=limit)
        self._background = Background()
        self._waiting: dict[int, asyncio.Future[ResultReply]] = {}
        self._lost: Exception | None = None
        self._next_id = 0

    async def open(self) -> None:
        await super().open()
        self._background.start(self._listen(self.events))

    async def initialize(self) -> ResultReply:
        return await self.request("initialize", INITIALIZE)

    async def initialized(self, revision: str) -> None:
        self.revision = revision
        with suppress(Refused):
            await self.tell(INITIALIZED)

    async def request(self, method: str, params: Result) -> ResultReply:
        self._next_id += 1
        number = self._next_id
        answered: asyncio.Future[ResultReply] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(look_at)
        self._waiting[number] = answered
        try:
            if self._lost:
                raise self._lost
            told = self._background.start(self.tell(render_request(number, method, params)))
            return await _first_of(told, answered)
        finally:
            del self._waiting[number]
            answered.cancel()

    async def close(self) -> None:
        await self._background.close()
        await super().close()

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
            self._background.answer(self.tell(answer))

    def _lose(self, error: Exception) -> None:
        self._lost = error
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)


async def _first_of[Answer](told: asyncio.Task[None], answered: asyncio.Future[Answer]) -> Answer:
    """Return the answer. It may arrive before the POST ends, which some upstreams end last."""
    either: set[asyncio.Future[Any]] = {told, answered}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not answered.done():
        told.result()
    return await answered


class Borrowed:
    """Asks on the stream of a client of the older transport: an upstream may keep only its latest
    stream, and answer nobody on the others. The client does not see the answers."""

    def __init__(self, poster: Poster, theirs: Conversation, *, first_id: int) -> None:
        self._poster, self._theirs, self._next_id = poster, theirs, first_id
        self._background = Background()

    async def request(self, method: str, params: Result) -> ResultReply:
        number, self._next_id = self._next_id, self._next_id + 1
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._theirs.ours is None:
            self._theirs.ours = {}
        self._theirs.ours[str(number)] = partial(_take, answered)  # also if it comes too late
        message = render_request(number, method, params)
        told = self._background.start(self._poster.tell(message))
        if not (raw := await _first_of(told, answered)):
            raise ConnectionLost(NO_ANSWER)
        return only_reply(number, raw)

    async def close(self) -> None:
        await self._background.close()


def _take(answered: asyncio.Future[bytes], raw: bytes) -> None:
    if not answered.done():
        answered.set_result(raw)


def _endpoint_path(data: bytes, origin: Origin, path: str) -> str:
    """Return the path that an ``endpoint`` event names. Raises ProtocolError."""
    said = data.decode("utf-8", "replace").strip()
    target = origin.path_to(said, at=path)
    if target is None:
        raise ProtocolError(f"The endpoint event names another origin: {plain(said)}")
    return target
