"""Speak MCP over HTTP, as a client.

``Poster`` posts to one path, and has the rules for refusals, redirects and sessions.
``OwnLegacyStream`` is the GET stream of HTTP+SSE. Two clients ask with them: ``StreamableClient``
(since 2025-03-26) and ``LegacyClient`` (2024-11-05). A pipe sends what its client says with them,
too.
Each returns a ``ResultReply`` with the original bytes, and closes what it has opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM, JSON
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.messages.limits import NEWEST_STATELESS, Transport
from mcp_tool_filter.core.process.background import Background, look_at
from mcp_tool_filter.core.sockets.client import Headers, HttpClient, HttpResponse
from mcp_tool_filter.core.sockets.connect import ConnectionLost, HttpFailed
from mcp_tool_filter.core.upstream.replies import (
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

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.conversation import Conversation

_ERROR_BODY_LIMIT: Final = 64 * 1024
MAX_REDIRECTS = 5
_STREAM_END_TIMEOUT = 0.1  # seconds for a stream to end after its answer, to keep the connection
_GOODBYE_TIMEOUT = 2.0  # seconds to close our sessions
_MOST_SESSIONS = 10  # that we close, if an upstream gives us one with each answer
NO_ANSWER = "The event stream ended without an answer"

JSON_OR_EVENTS: Final = (b"accept", f"{JSON}, {EVENT_STREAM}".encode())
EVENTS: Final = (b"accept", EVENT_STREAM.encode())
JSON_BODY: Final = (b"content-type", JSON.encode())


class Poster:
    """Posts messages to one path, which a redirect may change."""

    def __init__(self, http: HttpClient, path: str, *, limit: int, last_id: int = 0) -> None:
        """Our requests have the numbers after ``last_id``."""
        self._http = http
        self._limit = limit
        self._last_id = last_id
        self.background = Background()
        self.path = path
        self.remembers_redirects = True
        """Whether a redirect is for all further messages, too."""
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

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def ask(
        self, method: str, params: Result, headers: Headers = (), *, answers: bool = False
    ) -> ResultReply:
        """Send a request and return its result. Raises Refused, ProtocolError, HttpFailed.

        ``answers``: answer the requests that the upstream sends before.
        """
        number = self.next_id()
        message = render_request(number, method, params)
        async with self.exchange(b"POST", [JSON_OR_EVENTS, JSON_BODY, *headers], message) as got:
            if got.status >= 300:
                refused = await refusal(got)
                refused.path = self.path
                raise refused
            if got.media_type == JSON:
                return only_reply(number, await got.read(self._limit))
            if got.media_type == EVENT_STREAM:
                return await self._listen(got, number, answers=answers)
            raise no_mcp(got)

    async def ask_elsewhere(
        self, number: int, method: str, params: Result, answered: asyncio.Future[bytes]
    ) -> ResultReply:
        """Send a request whose answer comes on another stream, maybe before the POST ends, which
        some upstreams end last. An empty answer means that the stream has ended."""
        message = render_request(number, method, params)
        told = self.background.start(self.tell(message, self.headers))
        either: set[asyncio.Future[Any]] = {told, answered}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            told.result()
        if not (raw := await answered):
            raise ConnectionLost(NO_ANSWER)
        return only_reply(number, raw)

    def answer(self, message: bytes) -> None:
        """Send an answer of ours, without waiting for it."""
        self.background.answer(self.tell(message, self.headers))

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

    async def close(self) -> None:
        """End every session we got. (An upstream may refuse that with 405.)"""
        await self.background.close()
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
        path = self.path
        for _ in range(MAX_REDIRECTS):
            async with self._http.exchange(method, path, headers, body) as response:
                if method == b"POST" and (session := response.header(b"mcp-session-id")):
                    self.offered = session
                    if len(self._sessions) < _MOST_SESSIONS:
                        self._sessions.add(session)
                target = redirect_target(response, self._http.origin, path)
                if target is None:
                    yield response
                    return
                await read_away(response)
            path = target
            if self.remembers_redirects:
                self.path = path
        raise ProtocolError(f"More than {MAX_REDIRECTS} redirects, the last to {plain(path)}")

    async def _listen(self, response: HttpResponse, number: int, *, answers: bool) -> ResultReply:
        events = EventReader(response, self._limit)
        while said := await events.next_message():
            message, raw = said
            if is_response_to(number, message) or is_nameless_error(message):
                await read_away(response)
                return reply_in(message, raw)
            if answers and (answer := answer_to(message)):
                self.answer(answer)
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

    @property
    def path(self) -> str:
        return self._poster.path

    @property
    def revision(self) -> str:
        return NEWEST_STATELESS if self.transport is Transport.STATELESS else self._poster.revision

    @property
    def has_session(self) -> bool:
        return self._poster.session is not None

    async def initialize(self) -> ResultReply:
        self._poster.offered = None  # a refused probe may have got one too
        reply = await self._poster.ask("initialize", INITIALIZE, answers=True)
        self._poster.session = self._poster.offered
        return reply

    async def initialized(self, revision: str) -> None:
        """Confirm the revision; ignore it if the upstream refuses the notification."""
        self._poster.revision = revision
        with suppress(Refused):
            await self._poster.tell(INITIALIZED, self._poster.headers)

    async def request(self, method: str, params: Result) -> ResultReply:
        if self.transport is not Transport.STATELESS:
            return await self._poster.ask(method, params, self._poster.headers, answers=True)
        params = {**params, "_meta": stateless_meta(self.revision)}
        headers = [*_version(self.revision), (b"mcp-method", method.encode())]
        return await self._poster.ask(method, params, headers)


class OwnLegacyStream:
    """A GET stream that brings all answers, and names the path to post to."""

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        self._limit = limit
        self._origin = http.origin
        self._opened = AsyncExitStack()
        self.poster = Poster(http, path, limit=limit)
        self.path = path

    async def open(self) -> None:
        """Open the stream, wait until it names the path to post to, and go on reading it.

        Raises Refused, ProtocolError, HttpFailed.
        """
        response = await self._opened.enter_async_context(self.poster.exchange(b"GET", [EVENTS]))
        self.path = self.poster.path
        if response.status != 200:
            raise await refusal(response)
        if response.media_type != EVENT_STREAM:
            raise no_mcp(response)
        events = EventReader(response, self._limit)
        while (event := await events.next_event()) and event.name != b"endpoint":
            if event.data:
                raise ProtocolError("The event stream does not begin with an endpoint event")
        if event is None or event.data is None:
            raise ConnectionLost("The event stream ended without an endpoint event")
        self.poster.path = _endpoint_path(event.data, self._origin, self.path)
        self.poster.remembers_redirects = False  # the stream has named the path
        self.poster.background.start(self._read(events))

    async def _read(self, events: EventReader) -> None:
        """Read all further events: each heir does it in its own way."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.poster.background.close()
        await self._opened.aclose()


class LegacyClient(OwnLegacyStream):
    """Asks on a stream of its own."""

    transport = Transport.LEGACY_SSE
    has_session = False  # a session with an id

    def __init__(self, http: HttpClient, path: str, *, limit: int) -> None:
        super().__init__(http, path, limit=limit)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._lost: Exception | None = None

    @property
    def revision(self) -> str:
        return self.poster.revision

    async def initialize(self) -> ResultReply:
        return await self.request("initialize", INITIALIZE)

    async def initialized(self, revision: str) -> None:
        self.poster.revision = revision
        with suppress(Refused):
            await self.poster.tell(INITIALIZED, self.poster.headers)

    async def request(self, method: str, params: Result) -> ResultReply:
        number = self.poster.next_id()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(look_at)
        self._waiting[number] = answered
        try:
            if self._lost:
                raise self._lost
            return await self.poster.ask_elsewhere(number, method, params, answered)
        finally:
            del self._waiting[number]
            answered.cancel()

    async def _read(self, events: EventReader) -> None:
        try:
            while said := await events.next_message():
                self._receive(*said)
            self._lost = ConnectionLost(NO_ANSWER)
        except (HttpFailed, ProtocolError) as error:
            self._lost = error
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(self._lost)

    def _receive(self, message: Result, raw: bytes) -> None:
        for number, answered in self._waiting.items():
            if is_response_to(number, message) and not answered.done():
                answered.set_result(raw)
                return
        if answer := answer_to(message):
            self.poster.answer(answer)


class Borrowed:
    """Asks on the stream of a client of the older transport: an upstream may keep only its latest
    stream, and answer nobody on the others. The client does not see the answers."""

    def __init__(self, poster: Poster, theirs: Conversation) -> None:
        self._poster, self._theirs = poster, theirs

    async def request(self, method: str, params: Result) -> ResultReply:
        number = self._poster.next_id()
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._theirs.ours is None:
            self._theirs.ours = {}
        self._theirs.ours[str(number)] = partial(_take, answered)  # also if it comes too late
        return await self._poster.ask_elsewhere(number, method, params, answered)


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
