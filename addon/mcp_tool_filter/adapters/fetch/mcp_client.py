"""Speaks MCP to the upstream, in each of its three ways, as far as asking for its tools needs it.

A ``Poster`` sends messages to one path and reads what comes back, JSON or an event stream. On it
stand ``StatelessClient`` (2026-07-28) and ``StreamableClient`` (2025-03-26 to 2025-11-25); in the
``LegacyClient`` (2024-11-05) all answers come on the one stream that it holds open. Each hands out
a ``Reply`` with the bytes as they came, and closes what it has opened.

They are one module because they share the rules for refusals, redirects and endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, Protocol

from mcp_tool_filter.adapters.fetch.http_client import (
    ConnectionLost,
    Headers,
    HttpClient,
    HttpFailed,
    HttpResponse,
)
from mcp_tool_filter.adapters.fetch.mcp_events import EventReader
from mcp_tool_filter.adapters.fetch.mcp_replies import (
    INITIALIZE,
    INITIALIZED,
    Refused,
    Reply,
    Result,
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
from mcp_tool_filter.http.media_type import EVENT_STREAM
from mcp_tool_filter.http.origin import Origin
from mcp_tool_filter.protocol.revisions import R2026_07_28, Transport

_ERROR_BODY_LIMIT: Final = 64 * 1024
_MAX_REDIRECTS = 5
_MAX_ANSWERS = 100  # of ours under way at once
_STREAM_END_TIMEOUT = 0.1  # seconds for a stream to end after its answer, to keep the connection
_GOODBYE_TIMEOUT = 2.0  # seconds for closing our sessions
_NO_ANSWER = "The event stream ended without an answer"

_JSON_OR_EVENTS = (b"accept", b"application/json, text/event-stream")
_EVENTS = (b"accept", EVENT_STREAM.encode())
_JSON_BODY = (b"content-type", b"application/json")

type Answering = Callable[[bytes], Coroutine[None, None, None]]


class McpClient(Protocol):
    """What the three have in common."""

    transport: Transport

    @property
    def path(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def has_session(self) -> bool: ...

    async def request(self, method: str, params: Result) -> Reply: ...

    async def close(self) -> None: ...


class Poster:
    """Posts messages to one path, which a redirect may correct."""

    def __init__(self, http: HttpClient, origin: Origin, path: str, *, limit: int) -> None:
        self._http = http
        self._origin = origin
        self._limit = limit
        self._next_id = 0
        self.path = path
        self.session: bytes | None = None
        """The session id that came last."""
        self._sessions: set[bytes] = set()  # every one that came, also with a refusal

    async def ask(
        self, method: str, params: Result, headers: Headers = (), hears: Answering | None = None
    ) -> Reply:
        """Send a request and return its result. Raises Refused, ProtocolError, HttpFailed."""
        self._next_id += 1
        message = render_request(self._next_id, method, params)
        async with self._exchange(b"POST", [_JSON_OR_EVENTS, _JSON_BODY, *headers], message) as got:
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
        """Number the requests from here on: others may speak in the same session."""
        self._next_id = number

    async def tell(self, message: bytes, headers: Headers = ()) -> None:
        """Send a message that has no answer. Raises Refused, HttpFailed."""
        async with self._exchange(b"POST", [_JSON_OR_EVENTS, _JSON_BODY, *headers], message) as got:
            if got.status >= 300:
                raise await refusal(got)
            if got.media_type != EVENT_STREAM:  # which may have no end
                await got.read(_ERROR_BODY_LIMIT)

    async def close_sessions(self, headers: Headers = ()) -> None:
        """End every session that we were given; an upstream that keeps them (405) may."""
        with suppress(HttpFailed, ProtocolError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                while self._sessions:
                    named = [(b"mcp-session-id", self._sessions.pop()), *headers]
                    async with self._exchange(b"DELETE", named) as response:
                        await response.read(_ERROR_BODY_LIMIT)

    @asynccontextmanager
    async def _exchange(
        self, method: bytes, headers: Headers, body: bytes = b""
    ) -> AsyncIterator[HttpResponse]:
        for _ in range(_MAX_REDIRECTS):
            async with self._http.exchange(method, self.path, headers, body) as response:
                if method == b"POST" and (session := response.header(b"mcp-session-id")):
                    self.session = session
                    self._sessions.add(session)
                target = redirect_target(response, self._origin, self.path)
                if target is None:
                    yield response
                    return
                await read_away(response)
            self.path = target
        raise ProtocolError(f"More than {_MAX_REDIRECTS} redirects, the last to {plain(self.path)}")

    async def _listen(self, response: HttpResponse, number: int, hears: Answering | None) -> Reply:
        events = EventReader(response, self._limit)
        while said := await events.next_message():
            message, raw = said
            if is_response_to(number, message) or is_nameless_error(message):
                await read_away(response)
                return reply_in(message, raw)
            if hears and (answer := answer_to(message)):
                await hears(answer)
        raise ConnectionLost(_NO_ANSWER)


class StatelessClient:
    """2026-07-28: every request says who we are and which revision we speak."""

    transport = Transport.STATELESS
    revision = R2026_07_28
    has_session = False

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    @property
    def path(self) -> str:
        return self._poster.path

    async def request(self, method: str, params: Result) -> Reply:
        meta = stateless_meta(self.revision)
        headers = [
            (b"mcp-protocol-version", self.revision.encode()),
            (b"mcp-method", method.encode()),
        ]
        return await self._poster.ask(method, {**params, "_meta": meta}, headers)

    async def close(self) -> None:
        await self._poster.close_sessions()


class StreamableClient:
    """2025-03-26 to 2025-11-25: ``initialize`` first, then each answer on its own POST."""

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

    async def initialize(self) -> Reply:
        self._poster.session = None  # a refused probe may have been given one too
        reply = await self._poster.ask("initialize", INITIALIZE, hears=self._answer)
        self._session = self._poster.session
        return reply

    async def initialized(self, revision: str) -> None:
        """Confirm the revision; an upstream that does not want to hear of it is no worse."""
        self.revision = revision
        with suppress(Refused):
            await self._poster.tell(INITIALIZED, self._headers())

    async def request(self, method: str, params: Result) -> Reply:
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


class LegacyClient:
    """2024-11-05: a GET stream on which all answers come, and a path to post to."""

    transport = Transport.LEGACY_SSE
    has_session = False  # of the kind that has an id

    def __init__(self, http: HttpClient, origin: Origin, path: str, *, limit: int) -> None:
        self._http = http
        self._origin = origin
        self._limit = limit
        self._stack = AsyncExitStack()
        self._background = Background()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._lost: Exception | None = None
        self._next_id = 0
        self.path = path
        self.revision = ""

    async def open(self) -> None:
        """Open the stream and wait until it names the path to post to."""
        response = await self._get()
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
        self._post_path = endpoint_path(event.data, self._origin, self.path)
        self._background.start(self._listen(events))

    async def initialize(self) -> Reply:
        return await self.request("initialize", INITIALIZE)

    async def initialized(self, revision: str) -> None:
        self.revision = revision
        with suppress(Refused):
            await self._tell(INITIALIZED)

    async def request(self, method: str, params: Result) -> Reply:
        self._next_id += 1
        number = self._next_id
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(look_at)
        self._waiting[number] = answered
        try:
            if self._lost:
                raise self._lost
            # The answer may be here before the POST is: some upstreams end that one last.
            told = self._background.start(self._tell(render_request(number, method, params)))
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
        await self._stack.aclose()

    async def _get(self) -> HttpResponse:
        for _ in range(_MAX_REDIRECTS):
            request = self._http.exchange(b"GET", self.path, [_EVENTS])
            response = await self._stack.enter_async_context(request)
            target = redirect_target(response, self._origin, self.path)
            if target is None:
                return response
            self.path = target
        raise ProtocolError(f"More than {_MAX_REDIRECTS} redirects, the last to {plain(self.path)}")

    async def _tell(self, message: bytes) -> None:
        poster = Poster(self._http, self._origin, self._post_path, limit=self._limit)
        headers = [(b"mcp-protocol-version", self.revision.encode())] if self.revision else []
        await poster.tell(message, headers)

    async def _listen(self, events: EventReader) -> None:
        try:
            while said := await events.next_message():
                self._hear(*said)
            self._lose(ConnectionLost(_NO_ANSWER))
        except (HttpFailed, ProtocolError) as error:
            self._lose(error)

    def _hear(self, message: Result, raw: bytes) -> None:
        for number, answered in self._waiting.items():
            if is_response_to(number, message) and not answered.done():
                try:
                    answered.set_result(reply_in(message, raw))
                except (Refused, ProtocolError) as error:
                    answered.set_exception(error)
                return
        if answer := answer_to(message):
            self._background.answer(self._tell(answer))

    def _lose(self, error: Exception) -> None:
        self._lost = error
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)


class Background:
    """Tasks that go on beside ours until all are stopped; how they end is not asked."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def answer(self, work: Coroutine[None, None, None]) -> None:
        """Start it, unless the upstream asks more than it hears."""
        if len(self._tasks) < _MAX_ANSWERS:
            self.start(work)
        else:
            work.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        look_at(task)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def refusal(response: HttpResponse) -> Refused:
    """Read a response that is no success; its body may hold a JSON-RPC error."""
    error = None
    with suppress(HttpFailed):
        error = error_in(await response.read(_ERROR_BODY_LIMIT))
    line = response.status_line
    if location := response.header(b"location"):
        line += f", to {location.decode('latin-1')}"
    refused = Refused(response.status, line, error)
    refused.says_how_to_log_in = response.header(b"www-authenticate") is not None
    return refused


def no_mcp(response: HttpResponse) -> ProtocolError:
    said = response.media_type or "no Content-Type"
    return ProtocolError(f"{plain(response.status_line)} with {plain(said)}: that is no MCP")


async def read_away(response: HttpResponse) -> None:
    """Read what is left, if it is little and comes soon: then the connection can be kept."""
    with suppress(HttpFailed, TimeoutError):
        async with asyncio.timeout(_STREAM_END_TIMEOUT):
            await response.read(_ERROR_BODY_LIMIT)


def redirect_target(response: HttpResponse, origin: Origin, path: str) -> str | None:
    """The path to go to instead, if it is within the same origin. Raises ProtocolError."""
    followed = (307, 308) if response.method != b"GET" else (301, 302, 303, 307, 308)
    location = response.header(b"location").decode("latin-1")
    if not location or response.status not in (301, 302, 303, 307, 308):
        return None
    target = origin.path_to(location, at=path)
    if target is None:
        raise ProtocolError(f"{plain(response.status_line)}: redirected to {plain(location)}")
    return target if response.status in followed else None


def endpoint_path(data: bytes, origin: Origin, path: str) -> str:
    """Where an ``endpoint`` event says to post to. Raises ProtocolError."""
    said = data.decode("utf-8", "replace").strip()
    target = origin.path_to(said, at=path)
    if target is None:
        raise ProtocolError(f"The endpoint event names another origin: {plain(said)}")
    return target


def look_at(done: asyncio.Future[Any]) -> None:
    """Take note of an exception, which asyncio would otherwise log as never retrieved."""
    if not done.cancelled():
        done.exception()
