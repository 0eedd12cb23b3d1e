"""Speak MCP to one path of an upstream: each message is a POST, which brings its own answer.

``Poster`` sends, and has the rules for refusals, redirects and sessions. ``StatelessClient`` is for
2026-07-28, ``StreamableClient`` for 2025-03-26 to 2025-11-25: each returns a ``ResultReply`` with
the original bytes, and closes what it has opened. So does ``LegacyClient`` in its own module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient, HttpResponse
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

_ERROR_BODY_LIMIT: Final = 64 * 1024
MAX_REDIRECTS = 5
_STREAM_END_TIMEOUT = 0.1  # seconds for a stream to end after its answer, to keep the connection
_GOODBYE_TIMEOUT = 2.0  # seconds to close our sessions
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
        """The last session id we got."""
        self._sessions: set[bytes] = set()  # all session ids we got, even with refusals

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

    async def close_sessions(self, headers: Headers = ()) -> None:
        """End every session we got. (An upstream may refuse that with 405.)"""
        with suppress(HttpFailed, ProtocolError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                while self._sessions:
                    named = [(b"mcp-session-id", self._sessions.pop()), *headers]
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
                    self.session = session
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
    refused.says_how_to_log_in = bool(response.header(b"www-authenticate"))
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


class McpClient(Protocol):
    """The interface of the three clients."""

    transport: Transport

    @property
    def path(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def has_session(self) -> bool: ...

    async def request(self, method: str, params: Result) -> ResultReply: ...

    async def close(self) -> None: ...


class StatelessClient:
    """2026-07-28: every request states who we are and which revision we speak."""

    transport = Transport.STATELESS
    revision = R2026_07_28
    has_session = False

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    @property
    def path(self) -> str:
        return self._poster.path

    async def request(self, method: str, params: Result) -> ResultReply:
        meta = stateless_meta(self.revision)
        headers = [
            (b"mcp-protocol-version", self.revision.encode()),
            (b"mcp-method", method.encode()),
        ]
        return await self._poster.ask(method, {**params, "_meta": meta}, headers)

    async def close(self) -> None:
        await self._poster.close_sessions()


class StreamableClient:
    """2025-03-26 to 2025-11-25: ``initialize`` first, then each POST gets its own answer."""

    transport = Transport.STREAMABLE

    def __init__(self, poster: Poster) -> None:
        self._poster = poster
        self._session: bytes | None = None
        self._background = Background()
        self.revision = ""

    @property
    def path(self) -> str:
        return self._poster.path

    @property
    def has_session(self) -> bool:
        return self._session is not None

    async def initialize(self) -> ResultReply:
        self._poster.session = None  # a refused probe may have got one too
        reply = await self._poster.ask("initialize", INITIALIZE, hears=self._answer)
        self._session = self._poster.session
        return reply

    async def initialized(self, revision: str) -> None:
        """Confirm the revision; ignore it if the upstream refuses the notification."""
        self.revision = revision
        with suppress(Refused):
            await self._poster.tell(INITIALIZED, self._headers())

    async def request(self, method: str, params: Result) -> ResultReply:
        return await self._poster.ask(method, params, self._headers(), self._answer)

    async def close(self) -> None:
        await self._background.close()
        await self._poster.close_sessions(self._version_header())

    async def _answer(self, message: bytes) -> None:
        self._background.answer(self._poster.tell(message, self._headers()))

    def _headers(self) -> Headers:
        session = [(b"mcp-session-id", self._session)] if self._session else []
        return [*session, *self._version_header()]

    def _version_header(self) -> Headers:
        return [(b"mcp-protocol-version", self.revision.encode())] if self.revision else []
