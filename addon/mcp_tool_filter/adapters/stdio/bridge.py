"""HTTP in front of a command: Streamable HTTP at /mcp and HTTP+SSE at /sse, one child per session.

It stands behind the filter, on a loopback port that serves only the filter's own connections, and
judges nothing. Requests of 2026-07-28 have no session: they share one child, with ids of their own.

It is one module because all ways to ask share the children, their limits and their end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from mcp_tool_filter.adapters.http_server import ServedRequest, ServedResponse
from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.child_session import ChildSession
from mcp_tool_filter.adapters.stdio.outbox import Outbox
from mcp_tool_filter.adapters.stdio.shared_session import SharedSession
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.http.mirrored import revision_in
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UPSTREAM_LOST,
    Message,
    Notification,
    Request,
    parse_message,
    render_batch,
    render_error,
    singles,
)
from mcp_tool_filter.protocol.one_line import on_one_line
from mcp_tool_filter.protocol.sse import render_event

PATH: Final = "/mcp"
_LEGACY: Final = "/sse"
_LEGACY_POST: Final = "/messages"
_JSON_SOON: Final = 1.0  # seconds: a later answer is an event stream, which shows that we live
_HEARTBEAT: Final = 25.0  # seconds between two comments on a quiet stream
_IDLE: Final = 30 * 60.0  # seconds after which a session that nobody uses is ended
_SWEEP: Final = 30.0
_LAST_EOF: Final = 1.0  # seconds from closed stdin to SIGTERM when we end ourselves
_PROBE: Final = 5.0  # seconds for a command to answer server/discover
_JSON = ((b"content-type", b"application/json"),)
_EVENTS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))

type Start = Callable[[], Child]


class Bridge:
    """Create it in a running loop; ``answer`` is for ``http_server``."""

    def __init__(
        self,
        start: Start,
        limits: Limits,
        *,
        say: Callable[[str], None],
        most: int = 32,
        idle: float = _IDLE,
    ) -> None:
        self._start = start
        self._limits = limits
        self._say = say
        self._most = most
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, ChildSession] = {}
        self._alive: set[ChildSession] = set()  # also those that are ending
        self._shared: SharedSession | None = None
        self._is_modern: bool | None = None  # whether the command speaks 2026-07-28
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._sweeper = asyncio.create_task(self._sweep())
        self._is_closing = False
        self.peers: set[tuple[str, int]] | None = None
        """Whose connections are served; None serves everybody."""

    async def answer(self, request: ServedRequest) -> ServedResponse:
        """Answer one HTTP request."""
        if self.peers is not None and request.peer not in self.peers:
            return ServedResponse(403)  # a stranger could call tools that the filter denies
        match request.method, request.path:
            case "POST", "/mcp":
                return await self._post(request)
            case "GET", "/mcp":
                return self._get(request)
            case "DELETE", "/mcp":
                return await self._delete(request)
            case "GET", "/sse":
                return await self._open_legacy()
            case "POST", "/messages":
                return await self._post_legacy(request)
            case _, "/mcp" | "/sse" | "/messages":
                return ServedResponse(405)
        return ServedResponse(404)

    async def close(self) -> None:
        """End all commands; returns when all are gone."""
        self._is_closing = True
        self._sweeper.cancel()
        closing = [one.close(eof=_LAST_EOF) for one in self._alive]
        await asyncio.gather(*closing, *self._ending, return_exceptions=True)

    def end_later(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """End something while others are served; ``close`` waits for it."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._note_ended)
        return task

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._say(f"Warning: A command could not be ended: {error!r}")

    # Streamable HTTP

    async def _post(self, request: ServedRequest) -> ServedResponse:
        try:
            line = on_one_line(request.body)
            message = parse_message(line, self._limits)
        except ProtocolError:
            return _error(400, None, INVALID_REQUEST, "Invalid Request")
        requests = [one for one in singles(message) if isinstance(one, Request)]
        try:
            if revision_in(message) is not None:
                return await self._post_modern(request, message, line)
            if isinstance(message, Request) and message.method == "initialize":
                name, session = await self._begin()
                opened = [(b"mcp-session-id", name.encode())]
                return await self._ask(session, request, [line], requests, opened)
        except (StartError, TooMany) as problem:
            id = requests[0].id if requests else None
            return _error(503, id, UPSTREAM_LOST, _one_sentence(problem))
        found = self._session_of(request)
        if isinstance(found, ServedResponse):
            return found
        lines = [one.place.raw for one in singles(message)]
        if not requests:
            for each in lines:
                await found.tell(each)
            if cancelled := _cancelled_by(message):
                found.cancel(cancelled)
            return ServedResponse(202)
        return await self._ask(found, request, lines, requests)

    async def _ask(
        self,
        session: ChildSession,
        request: ServedRequest,
        lines: Sequence[bytes],
        asked: Sequence[Request],
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> ServedResponse:
        outbox = Outbox()
        ids = [one.id for one in asked]
        if not session.expect(ids, outbox):
            return _error(400, ids[0], INVALID_REQUEST, "The id of another request in progress")
        for line in lines:
            await session.tell(line)
        as_batch = len(lines) > 1
        return await _answer_from(
            outbox, request, len(ids), headers, lambda: session.forget(ids), as_batch=as_batch
        )

    def _get(self, request: ServedRequest) -> ServedResponse:
        found = self._session_of(request)
        if isinstance(found, ServedResponse):
            return found
        if "text/event-stream" not in (request.header(b"accept") or ""):
            return ServedResponse(406)
        stream = found.listen()
        return ServedResponse(200, _EVENTS, _stream(stream, found.take_kept(), found))

    async def _delete(self, request: ServedRequest) -> ServedResponse:
        found = self._session_of(request)
        if isinstance(found, ServedResponse):
            return found
        self._forget(found)
        await found.close()
        return ServedResponse(200)

    def _session_of(self, request: ServedRequest) -> ChildSession | ServedResponse:
        name = request.header(b"mcp-session-id")
        if name is None:
            return _error(400, None, INVALID_REQUEST, "Missing Mcp-Session-Id: initialize first")
        session = self._sessions.get(name)
        if session is None or session.is_closing:
            return _error(404, None, INVALID_REQUEST, "Session not found")
        session.last_used = self._loop.time()
        return session

    # 2026-07-28, without sessions

    async def _post_modern(
        self, request: ServedRequest, message: Message, line: bytes
    ) -> ServedResponse:
        if not isinstance(message, Request | Notification):
            return _error(400, None, INVALID_REQUEST, "Invalid Request")
        if isinstance(message, Notification):
            return ServedResponse(202)  # what it would cancel is hung up on instead
        if self._is_modern is False:
            return _error(404, message.id, METHOD_NOT_FOUND, "Method not found")
        shared = await self._shared_session()
        outbox = Outbox()
        number = await shared.ask(line, outbox)

        def leave() -> None:
            shared.leave(number)

        if message.method == "server/discover" and self._is_modern is None:
            return await self._discover(message, shared, outbox, leave)
        return await _answer_from(outbox, request, 1, (), leave)

    async def _discover(
        self, message: Request, shared: SharedSession, outbox: Outbox, leave: Callable[[], None]
    ) -> ServedResponse:
        """Find out whether the command speaks this revision; most do not."""
        answer = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROBE):
                answer = await outbox.get()
        if answer is not None and b'"supportedVersions"' in answer:
            self._is_modern = True
            return ServedResponse(200, _JSON, answer)
        self._is_modern = False
        leave()
        self._shared = None
        self.end_later(shared.session.close())
        return _error(404, message.id, METHOD_NOT_FOUND, "Method not found")

    async def _shared_session(self) -> SharedSession:
        async with self._starting:
            if self._shared is None or self._shared.session.is_closing:
                self._shared = SharedSession(await self._spawn())
            return self._shared

    # HTTP+SSE

    async def _open_legacy(self) -> ServedResponse:
        try:
            name, session = await self._begin()
        except (StartError, TooMany) as problem:
            return _error(503, None, UPSTREAM_LOST, _one_sentence(problem))
        stream = session.listen()
        return ServedResponse(200, _EVENTS, self._legacy_stream(name, session, stream))

    async def _legacy_stream(
        self, name: str, session: ChildSession, stream: Outbox
    ) -> AsyncIterator[bytes]:
        try:
            yield f"event: endpoint\ndata: {_LEGACY_POST}?sessionId={name}\n\n".encode()
            async for event in _events(stream):
                yield event
        finally:
            stream.end()
            self._forget(session)
            self._end_later(session)

    async def _post_legacy(self, request: ServedRequest) -> ServedResponse:
        names = parse_qs(urlsplit(request.target).query).get("sessionId", [])
        session = self._sessions.get(names[0]) if len(names) == 1 else None
        if session is None or session.is_closing:
            return _error(404, None, INVALID_REQUEST, "Session not found")
        try:
            line = on_one_line(request.body)
            message = parse_message(line, self._limits)
        except ProtocolError:
            return _error(400, None, INVALID_REQUEST, "Invalid Request")
        ids = [one.id for one in singles(message) if isinstance(one, Request)]
        if not session.expect_on_stream(ids):
            return _error(400, ids[0], INVALID_REQUEST, "The id of another request in progress")
        for one in singles(message):
            await session.tell(one.place.raw)
        return ServedResponse(202)

    # Commands

    async def _begin(self) -> tuple[str, ChildSession]:
        """Start a command for a new session. Raises StartError, TooMany."""
        async with self._starting:
            session = await self._spawn()
        name = secrets.token_urlsafe(24)
        self._sessions[name] = session
        return name, session

    async def _spawn(self) -> ChildSession:
        if self._is_closing:
            raise TooMany("Shutting down")
        while len(self._alive) >= self._most:
            await self._make_room()
        session = ChildSession(self._start(), self._limits, say=self._say, on_end=self._note_end)
        self._alive.add(session)
        return session

    async def _make_room(self) -> None:
        """End the session that was not used for longest, if there is one that nobody uses."""
        ending = [one for one in self._alive if one.is_closing]
        idle = [one for one in self._alive if not one.is_closing and not one.is_in_use]
        if not ending and not idle:
            raise TooMany(f"Too many sessions: --max-children {self._most}")
        chosen = ending[0] if ending else min(idle, key=lambda one: one.last_used)
        self._forget(chosen)
        await chosen.close()
        self._alive.discard(chosen)

    def _note_end(self, session: ChildSession, code: int) -> None:
        was_open = self._forget(session) or (
            self._shared is not None and self._shared.session is session
        )
        if self._shared is not None and self._shared.session is session:
            self._shared = None
        if was_open and not self._is_closing:
            self._say(f"Warning: The command of one session has ended with exit code {code}")
        self._end_later(session)

    def _forget(self, session: ChildSession) -> bool:
        names = [name for name, one in self._sessions.items() if one is session]
        for name in names:
            del self._sessions[name]
        return bool(names)

    def _end_later(self, session: ChildSession) -> None:
        task = self.end_later(session.close())
        task.add_done_callback(lambda _: self._alive.discard(session))

    async def _sweep(self) -> None:
        """End sessions that nobody has used for long."""
        while True:
            await asyncio.sleep(min(_SWEEP, self._idle))
            latest = self._loop.time() - self._idle
            for session in list(self._sessions.values()):
                if not session.is_in_use and session.last_used < latest:
                    self._forget(session)
                    self._end_later(session)


class TooMany(Exception):
    """No command can be started now."""


async def _answer_from(
    outbox: Outbox,
    request: ServedRequest,
    count: int,
    headers: Sequence[tuple[bytes, bytes]],
    leave: Callable[[], object],
    *,
    as_batch: bool = False,
) -> ServedResponse:
    """Answer with JSON if nothing but the answers comes, and soon; else with events."""
    accept = request.header(b"accept") or "*/*"
    takes_events = "text/event-stream" in accept
    answers: list[bytes] = []
    try:
        async with asyncio.timeout(_JSON_SOON if takes_events else None):
            while (said := await outbox.get()) is not None:
                answers.append(said)
    except TimeoutError:
        return ServedResponse(200, [*_EVENTS, *headers], _sent_on(answers, outbox, leave))
    responses = [one for one in answers if b'"method"' not in one or _is_response(one)]
    if takes_events and len(responses) != len(answers):
        return ServedResponse(200, [*_EVENTS, *headers], _sent_on(answers, outbox, leave))
    if not responses and takes_events:  # it was cancelled
        return ServedResponse(200, [*_EVENTS, *headers])
    if not responses:
        error = render_error(None, INTERNAL_ERROR, "The server sent no answer")
        return ServedResponse(200, [*_JSON, *headers], error)
    body = render_batch(responses) if as_batch or count > 1 else responses[-1]
    return ServedResponse(200, [*_JSON, *headers], body)


def _cancelled_by(message: Message) -> str | None:
    """Return the id of the request that a notification cancels."""
    if not isinstance(message, Notification) or message.method != "notifications/cancelled":
        return None
    named = message.params.get("requestId") if message.params else None
    return message.place.cut(named) if named else None


def _is_response(raw: bytes) -> bool:
    try:
        message = parse_message(raw, Limits(message=len(raw)))
    except ProtocolError:
        return False
    return not any(isinstance(one, Request | Notification) for one in singles(message))


async def _sent_on(
    first: Sequence[bytes], outbox: Outbox, leave: Callable[[], object]
) -> AsyncIterator[bytes]:
    try:
        for message in first:
            yield render_event(message)
        async for event in _events(outbox):
            yield event
    finally:
        outbox.end()
        leave()


async def _stream(
    stream: Outbox, kept: Sequence[bytes], session: ChildSession
) -> AsyncIterator[bytes]:
    try:
        yield b": open\n\n"
        for message in kept:
            yield render_event(message)
        async for event in _events(stream):
            yield event
    finally:
        session.stop_listening(stream)


async def _events(outbox: Outbox) -> AsyncIterator[bytes]:
    """Yield what is said as events, and a comment from time to time."""
    getting = asyncio.ensure_future(outbox.get())
    try:
        while True:
            done, _ = await asyncio.wait([getting], timeout=_HEARTBEAT)
            if not done:
                yield b": alive\n\n"
                continue
            said = getting.result()
            if said is None:
                return
            yield render_event(said)
            getting = asyncio.ensure_future(outbox.get())
    finally:
        getting.cancel()


def _error(status: int, id: str | None, code: int, text: str) -> ServedResponse:
    return ServedResponse(status, _JSON, render_error(id, code, text))


def _one_sentence(problem: Exception) -> str:
    return problem.what if isinstance(problem, StartError) else str(problem)
