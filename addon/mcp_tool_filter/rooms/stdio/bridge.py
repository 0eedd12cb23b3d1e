"""HTTP in front of a command: Streamable HTTP at /mcp and HTTP+SSE at /sse, one child per session.

It runs behind the filter, in its process, and judges nothing. The proxy in front of it is the same
as for any URL, but it asks within the process: there is nothing at the URL that it has for it.
Requests of 2026-07-28 have no session: they share one child, with renumbered ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http.bodies import EVENT_STREAM
from mcp_tool_filter.core.http.bodies import JSON as JSON_TYPE
from mcp_tool_filter.core.http.head import Head, revision_in
from mcp_tool_filter.core.messages.limits import NEWEST_STATELESS, Limits, has_initialize
from mcp_tool_filter.core.messages.messages import (
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
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.process.site import Connect, ServedCommand
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.core.upstream.fetch import fetch_from
from mcp_tool_filter.core.upstream.replies import render_request, stateless_meta
from mcp_tool_filter.core.upstream.search import Found
from mcp_tool_filter.core.upstream.target import Target
from mcp_tool_filter.rooms.secrets.shown import shown_command
from mcp_tool_filter.rooms.stdio.child import Child
from mcp_tool_filter.rooms.stdio.in_process import InProcess
from mcp_tool_filter.rooms.stdio.judge import cancelled_by
from mcp_tool_filter.rooms.stdio.lines import on_one_line
from mcp_tool_filter.rooms.stdio.sessions import (
    BridgeSessions,
    ChildSession,
    IdTaken,
    Outbox,
    SharedSession,
    find,
)

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.proxy import Proxy

PATH: Final = "/mcp"
_LEGACY_POST: Final = "/messages"
_PROBE: Final = 5.0  # seconds for a command to answer server/discover
_SLOW_START: Final = 60.0  # seconds in which a command may still answer our own
_JSON_SOON: Final = 1.0  # seconds; a later answer is an event stream, which shows that we live
_HEARTBEAT: Final = 25.0  # seconds between two comments on a quiet stream
_TAKEN: Final = "The id of another request in progress"
_DISCOVERED: Final = b'"supportedVersions"'
JSON = ((b"content-type", JSON_TYPE.encode()),)
EVENTS = ((b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store"))


class _Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, text: str, id: str | None = None, code: int = INVALID_REQUEST
    ) -> None:
        super().__init__(text)
        self.response = ServedResponse(status, JSON, render_error(id, code, text))


class Bridge:
    """The bridge. Create it in a running event loop."""

    def __init__(self, sessions: BridgeSessions, limits: Limits) -> None:
        self.sessions = sessions
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._is_modern: bool | None = None  # whether the command speaks 2026-07-28, once known
        self._finding_out: asyncio.Task[None] | None = None

    async def answer(self, request: ServedRequest) -> ServedResponse:
        """Answer one HTTP request."""
        try:
            return await self._answer(request)
        except _Refusal as refusal:
            return refusal.response

    async def _answer(self, request: ServedRequest) -> ServedResponse:
        match request.method, request.path:
            case "POST", "/mcp":
                return await self._post(request)
            case "GET", "/mcp":
                return self._get(request)
            case "DELETE", "/mcp":
                await asyncio.shield(self.sessions.end(self._session_of(request)))
                return ServedResponse(200)
            case "GET", "/sse":
                return await self._open_legacy()
            case "POST", "/messages":
                return await self._post_legacy(request)
            case _, "/mcp" | "/sse" | "/messages":
                return ServedResponse(405)
        return ServedResponse(404)

    def _message_in(self, request: ServedRequest) -> tuple[bytes, Message]:
        try:
            line = on_one_line(request.body)
            return line, parse_message(line, self._limits)
        except ProtocolError:
            raise _Refusal(400, "Invalid Request") from None

    # Streamable HTTP

    async def _post(self, request: ServedRequest) -> ServedResponse:
        line, message = self._message_in(request)
        requests = [one for one in singles(message) if isinstance(one, Request)]
        try:
            if revision_in(message) is not None:
                return await self._post_modern(request, message, line)
            if isinstance(message, Request) and message.method == "initialize":
                name, session = await self.sessions.begin()
                opened = [(b"mcp-session-id", name.encode())]
                return await self._ask(session, request, [line], requests, opened)
        except StartError as problem:
            id = requests[0].id if requests else None
            raise _Refusal(503, problem.what, id, UPSTREAM_LOST) from None
        found = self._session_of(request)
        lines = [one.place.raw for one in singles(message)]
        if not requests:
            for each in lines:
                await found.tell(each)
            if cancelled := cancelled_by(message):
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
        ids = [one.id for one in asked]
        try:
            outbox = await session.ask(lines, ids, only_answers=not _takes_events(request))
        except IdTaken:
            raise _Refusal(400, _TAKEN, ids[0]) from None
        is_batch = len(lines) > 1
        return await answer_from(outbox, lambda: session.forget(ids), headers, is_batch=is_batch)

    def _get(self, request: ServedRequest) -> ServedResponse:
        found = self._session_of(request)
        if not _takes_events(request):
            return ServedResponse(406)
        stream = found.listen()
        kept = map(render_event, found.take_kept())
        events = events_from(stream, lambda: found.stop_listening(stream), b": open\n\n", *kept)
        return ServedResponse(200, EVENTS, events)

    def _session_of(self, request: ServedRequest) -> ChildSession:
        name = request.header(b"mcp-session-id")
        if name is None:
            raise _Refusal(400, "Missing Mcp-Session-Id: initialize first")
        session = self._session_called(name)
        session.last_used = self._loop.time()
        return session

    def _session_called(self, name: str) -> ChildSession:
        session = self.sessions.open_session(name)
        if session is None:
            raise _Refusal(404, "Session not found")
        return session

    # 2026-07-28, without sessions

    async def _post_modern(
        self, request: ServedRequest, message: Message, line: bytes
    ) -> ServedResponse:
        if not isinstance(message, Request | Notification):
            raise _Refusal(400, "Invalid Request")
        if isinstance(message, Notification):
            return ServedResponse(202)  # in this revision a client cancels by disconnecting
        if self._is_modern is False:
            raise _Refusal(404, "Method not found", message.id, METHOD_NOT_FOUND)
        shared = await self.sessions.shared()
        number, outbox = await shared.ask_alone(
            line,
            only_answers=not _takes_events(request),
            is_subscription=message.method == "subscriptions/listen",
            asker=_asker(request),
        )

        def leave() -> None:
            shared.leave(number)
            self._end_if_useless(shared)

        if message.method == "server/discover" and self._is_modern is None:
            return await self._discover(message, outbox, leave)
        response = await answer_from(outbox, leave)
        self._end_if_useless(shared)
        return response

    async def _discover(
        self, message: Request, outbox: Outbox, leave: Callable[[], None]
    ) -> ServedResponse:
        """Answer the first ones: most commands do not speak this revision.

        A command may refuse this client's request, and still speak it. So only our own request
        tells that a command does not.
        """
        answer = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBE):
                    answer = await outbox.get()
            if answer is not None and _DISCOVERED in answer:
                self._is_modern = True
            elif self._is_modern is None:
                await asyncio.wait([self._find_out()], timeout=_PROBE if answer else 0)
        finally:
            leave()
        if self._is_modern and answer is not None:
            return ServedResponse(200, JSON, answer)
        raise _Refusal(404, "Method not found", message.id, METHOD_NOT_FOUND)

    def _find_out(self) -> asyncio.Task[None]:
        """Ask ourselves whether the command speaks this revision; all who want to know wait for the
        same answer."""
        if self._finding_out is None or self._finding_out.done():
            self._finding_out = self._loop.create_task(self._ask_ourselves())
        return self._finding_out

    async def _ask_ourselves(self) -> None:
        asked = render_request(1, "server/discover", {"_meta": stateless_meta(NEWEST_STATELESS)})
        try:
            shared = await self.sessions.shared()
        except StartError:
            return
        number, outbox = await shared.ask_alone(asked, only_answers=True)
        answer = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SLOW_START):
                answer = await outbox.get()
        if not shared.is_closing and self._is_modern is None:  # the end of a command says nothing
            self._is_modern = answer is not None and _DISCOVERED in answer
        shared.leave(number)
        self._end_if_useless(shared)

    def _end_if_useless(self, shared: SharedSession) -> None:
        """End a command that does not speak this revision, when no request waits for it."""
        if self._is_modern is False and not shared.is_in_use and not shared.is_closing:
            self.sessions.end(shared)

    # HTTP+SSE

    async def _open_legacy(self) -> ServedResponse:
        try:
            name, session = await self.sessions.begin()
        except StartError as problem:
            raise _Refusal(503, problem.what, code=UPSTREAM_LOST) from None
        stream = session.listen()
        first = f"event: endpoint\ndata: {_LEGACY_POST}?sessionId={name}\n\n".encode()
        events = events_from(stream, lambda: self.sessions.end(session), first)
        return ServedResponse(200, EVENTS, events)

    async def _post_legacy(self, request: ServedRequest) -> ServedResponse:
        names = parse_qs(urlsplit(request.target).query).get("sessionId", [])
        session = self._session_called(names[0] if len(names) == 1 else "")
        _, message = self._message_in(request)
        ids = [one.id for one in singles(message) if isinstance(one, Request)]
        if not session.expect_on_stream(ids):
            raise _Refusal(400, _TAKEN, ids[0])
        for one in singles(message):
            await session.tell(one.place.raw)
        return ServedResponse(202)


def _asker(request: ServedRequest) -> object:
    """Return the credentials of a request."""
    names = Head(request.method, request.target, tuple(request.headers)).credentials
    return frozenset(header for header in request.headers if header[0] in names)


async def answer_from(
    outbox: Outbox,
    leave: Callable[[], object],
    headers: Sequence[tuple[bytes, bytes]] = (),
    *,
    is_batch: bool = False,
) -> ServedResponse:
    """Answer with JSON if only answers come, and soon; else with events, each as it comes."""
    takes_events = not outbox.only_answers
    said: list[bytes] = []
    is_over = False
    try:
        async with asyncio.timeout(_JSON_SOON if takes_events else None):
            while not is_over and not (takes_events and outbox.has_others):
                one = await outbox.get()
                is_over = one is None
                said += [one] if one is not None else []
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        leave()
        raise
    if not is_over:
        events = events_from(outbox, leave, *map(render_event, said))
        return ServedResponse(200, [*EVENTS, *headers], events)
    if not said and takes_events:  # the request was cancelled
        return ServedResponse(200, [*EVENTS, *headers])
    if not said:
        error = render_error(None, INTERNAL_ERROR, "The server sent no answer")
        return ServedResponse(200, [*JSON, *headers], error)
    body = render_batch(said) if is_batch else said[-1]
    return ServedResponse(200, [*JSON, *headers], body)


def _takes_events(request: ServedRequest) -> bool:
    return EVENT_STREAM in (request.header(b"accept") or "")


async def events_from(
    outbox: Outbox, leave: Callable[[], object], *first: bytes
) -> AsyncIterator[bytes]:
    """Yield ``first``, then the messages as events, and a comment from time to time."""
    getting: asyncio.Future[bytes | None] | None = None
    try:
        for event in first:
            yield event
        while True:
            getting = getting or asyncio.ensure_future(outbox.get())
            done, _ = await asyncio.wait([getting], timeout=_HEARTBEAT)
            if not done:
                yield b": alive\n\n"
                continue
            said, getting = getting.result(), None
            if said is None:
                return
            yield render_event(said)
    finally:
        if getting:
            getting.cancel()
        outbox.end()
        leave()


# What the proxy in front of it needs


@dataclass(frozen=True, slots=True)
class BridgedCommand:
    """A command that can be asked like a URL, within this process."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: str | None
    bridge: Bridge

    async def fetch(self, target: Target) -> Fetched:
        """Fetch the tools from the command itself. Raises StartError."""
        child, sessions = self.bridge.sessions.start(), self.bridge.sessions

        async def find_it(opened: AsyncExitStack) -> Found:
            later = AsyncExitStack()  # the start does not wait for the end of this child
            opened.callback(lambda: sessions.end_later(later.aclose()))
            return await find(child, later, limit=target.limit, say=sessions.say)

        fetched = await fetch_from(replace(target, url=shown_command(self.words)), find_it)
        return replace(fetched, endpoint=PATH, sessions=has_initialize(fetched.revision))

    def attach_to(self, proxy: Proxy) -> None:
        """Let a proxy ask the command, and name it."""
        proxy.command = ServedCommand(
            self.bridge.answer,
            shown_command(self.words),
            self._connect,
            words=self.words,
            environment=self.environment,
            folder=self.folder,
        )
        self.bridge.sessions.on_list_changed = proxy.note_list_changed

    def _connect(self, received: Callable[[int], None]) -> Connect:
        return InProcess(self.bridge.answer, received).connect


@asynccontextmanager
async def bridged(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str | None,
    limits: Limits,
    *,
    without: Collection[str],
    most: int,
    say: Callable[[str], None],
    name: str = "",
) -> AsyncIterator[BridgedCommand]:
    """Run a command for each session, at most so many, until the end of the block."""
    start = partial(Child, words, env=environment, without=without, cwd=folder, name=name)
    sessions = BridgeSessions(start, limits, say=say, most=most)
    try:
        yield BridgedCommand(words, environment, folder, Bridge(sessions, limits))
    finally:
        await asyncio.shield(sessions.close())
