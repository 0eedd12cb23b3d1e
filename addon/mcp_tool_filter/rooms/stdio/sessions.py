"""A command that speaks MCP over stdio, as an upstream: its sessions, and their messages.

Nothing here knows HTTP. Who serves the command drives it with whole JSON-RPC messages, each on one
line, and gets whole messages back (``bridge`` does it for HTTP requests)::

    commands = BridgeSessions(start, limits, say=say, most=32)  # in a running event loop

    name, session = await commands.begin()   # one process for each session; StartError
    session = commands.open_session(name)    # later; None if it has ended: 404
    outbox = await session.ask([line], ["1"])  # requests and their ids; IdTaken
    while (message := await outbox.get()) is not None: ...  # answers, and what comes before them
    session.forget(["1"])                    # the client has left before the end
    await session.tell(line)                 # a notification, or an answer
    session.cancel("1")                      # the client has cancelled: its outbox ends
    stream = session.listen()                # all that answers no request; session.take_kept()
    await commands.end(session)              # DELETE; or do not wait

    shared = await commands.shared()         # 2026-07-28: one process for all requests
    number, outbox = await shared.ask_alone(line)
    shared.leave(number)                     # the client has left: the command is told

    await commands.close()                   # ends all processes

    client = StdioClient(child, ...)         # what only looks: one command, one request at a time
    reply = await client.request("tools/list", {})

The command is read no faster than outboxes are emptied. What nobody reads is bounded in bytes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from threading import Thread
from typing import Any, Final
from weakref import WeakSet

from mcp_tool_filter.core.conversation.policy_in_force import INVALID_ANSWER, LOST_ANSWER
from mcp_tool_filter.core.conversation.subscriptions import LIST_CHANGED
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.messages.limits import (
    MEBIBYTE,
    NEWEST_STATELESS,
    STATELESS_REVISIONS,
    Limits,
    Transport,
)
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    UPSTREAM_LOST,
    Notification,
    Response,
    Single,
    id_value,
    parse_message,
    render_error,
    singles,
)
from mcp_tool_filter.core.process.background import keep
from mcp_tool_filter.core.sockets.connect import ConnectionLost
from mcp_tool_filter.core.upstream.replies import (
    INITIALIZE,
    INITIALIZED,
    Refused,
    Result,
    ResultReply,
    answer_to,
    introduction_of,
    is_response_to,
    messages_in,
    render_request,
    reply_in,
    stateless_meta,
)
from mcp_tool_filter.core.upstream.search import Found, introduction_in
from mcp_tool_filter.rooms.stdio.child import Child, end_child, in_own_thread
from mcp_tool_filter.rooms.stdio.judge import show_stray_line
from mcp_tool_filter.rooms.stdio.lines import (
    CutLine,
    LineParser,
    Numbers,
    ids_answered,
    refuse_hidden_line,
    string_in,
)

_ROOM: Final = MEBIBYTE  # bytes in an outbox before its writer waits
_MOST_UNREAD: Final = 64 * MEBIBYTE  # of the answers of one command that its clients do not read
_MOST_KEPT: Final = 4 * MEBIBYTE  # bytes of messages kept while no stream is open
_IDLE: Final = 30 * 60.0  # seconds until an unused session is ended
_EOF: Final = 5.0  # seconds from closed stdin to SIGTERM
_SWEEP: Final = 30.0
_LAST_EOF: Final = 1.0  # seconds from closed stdin to SIGTERM when we exit, or need its place
_LAST_WORDS: Final = 0.5  # seconds to read what an ended command has written

type Start = Callable[[], Child]


def _do_nothing() -> None: ...


class TooMany(StartError):
    """No command can be started now."""

    def __init__(self, what: str) -> None:
        super().__init__(what, why="Try again later")


class IdTaken(Exception):
    """Another request in progress has this id."""


@dataclass(eq=False)
class BridgeSessions:
    """The sessions of a bridge. Create it in a running event loop."""

    start: Start
    limits: Limits
    _: KW_ONLY
    say: Callable[[str], None]
    most: int = 32
    idle: float = _IDLE

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alive: set[ChildSession] = set()  # including those that are ending
        self._starting = asyncio.Lock()
        self._wanted = 0  # sessions that want to begin
        self._changed = asyncio.Event()  # a command is gone, or we are closing
        self._ending: set[asyncio.Task[None]] = set()
        self._sweeper = asyncio.create_task(self._sweep())
        self._is_closing = False
        self.on_list_changed: Callable[[], None] = _do_nothing

    async def begin(self) -> tuple[str, ChildSession]:
        """Start a command for a new session, and name it. Raises StartError."""
        session = await self._spawn(ChildSession)
        return session.name, session

    def open_session(self, name: str) -> ChildSession | None:
        """Return the session with this name, if it has not ended."""
        return next((one for one in self._open() if one.name == name), None)

    def _open(self) -> list[ChildSession]:
        return [one for one in self._alive if not one.is_closing]

    async def shared(self) -> SharedSession:
        """Return the shared session for requests without a session. Raises StartError."""
        async with self._starting:
            shared = (one for one in self._open() if isinstance(one, SharedSession))
            return next(shared, None) or await self._spawn(SharedSession)

    def end(self, session: ChildSession, *, eof: float = _EOF) -> asyncio.Task[None]:
        """End a session in the background; the task is done when its command is gone."""
        session.is_dismissed = True
        session.begin_to_close(eof=eof)  # from now on it counts as ending
        task = self.end_later(session.close(eof=eof))
        task.add_done_callback(lambda _: self._note_gone(session))
        return task

    def end_later(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an ending in the background; ``close`` waits for it."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._note_ended)
        return task

    async def close(self) -> None:
        """End all commands; return when all are gone."""
        self._is_closing = True
        self._changed.set()
        self._sweeper.cancel()
        closing = [one.close(eof=_LAST_EOF) for one in self._alive]
        await asyncio.gather(*closing, *self._ending, return_exceptions=True)

    async def _spawn[Kind: ChildSession](self, kind: type[Kind]) -> Kind:
        self._wanted += 1
        try:
            while len(self._alive) >= self.most and not self._is_closing:
                self._make_room()
                self._changed.clear()
                await self._changed.wait()
            if self._is_closing:
                raise TooMany("Shutting down")
            session = kind(self.start(), self.limits, say=self.say, on_end=self._note_end)
            session.on_list_changed = lambda: self.on_list_changed()
        finally:
            self._wanted -= 1
        self._alive.add(session)
        return session

    def _make_room(self) -> None:
        """Begin to end the idle sessions that were not used for longest, one for each that wants
        to begin."""
        ending = len(self._alive) - len(self._open())
        idle = [one for one in self._open() if not one.is_in_use]
        chosen = sorted(idle, key=lambda one: one.last_used)[: max(0, self._wanted - ending)]
        if not ending and not chosen:
            raise TooMany(f"Too many sessions: --max-children {self.most}")
        for session in chosen:
            self.end(session, eof=_LAST_EOF)

    def _note_end(self, session: ChildSession, code: int) -> None:
        if not session.is_dismissed and not self._is_closing:
            self.say(f"Warning: The command of one session has ended with exit code {code}")
        self.end(session)

    def _note_gone(self, session: ChildSession) -> None:
        self._alive.discard(session)
        self._changed.set()

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.say(f"Warning: A command could not be ended: {error!r}")

    async def _sweep(self) -> None:
        """End sessions that have been idle for long."""
        while True:
            await asyncio.sleep(min(_SWEEP, self.idle))
            latest = self._loop.time() - self.idle
            for session in self._open():
                is_idle = not session.is_in_use and session.last_used < latest
                if is_idle and not isinstance(session, SharedSession):
                    self.end(session)


@dataclass(eq=False)
class ChildSession:
    """Create it in a running event loop. ``on_end`` is called once, when the command has ended."""

    child: Child
    limits: Limits
    _: KW_ONLY
    say: Callable[[str], None]
    on_end: Callable[[ChildSession, int], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._turn = asyncio.Lock()  # to write
        self._waiting: dict[str, tuple[str, Outbox]] = {}
        self._stream: Outbox | None = None
        self._kept = Outbox()  # while no stream is open
        self._closing: asyncio.Future[None] | None = None
        self._patience = _EOF
        self.name = secrets.token_urlsafe(24)
        self.is_dismissed = False
        """True once nobody may use it any more."""
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.last_used = self._loop.time()
        self.on_list_changed: Callable[[], None] = _do_nothing
        Thread(target=self._read, daemon=True).start()

    @property
    def is_closing(self) -> bool:
        return self._closing is not None or self.ended.done()

    @property
    def is_in_use(self) -> bool:
        """Whether a request waits for it, or a stream is open."""
        return bool(self._waiting) or self._stream is not None

    async def ask(
        self, lines: Sequence[bytes], ids: Sequence[str], *, only_answers: bool = False
    ) -> Outbox:
        """Send requests; their messages come in the outbox. Raises IdTaken."""
        outbox = Outbox(only_answers=only_answers)
        if not self.expect(ids, outbox):
            raise IdTaken
        try:
            for line in lines:
                await self.tell(line)
        except asyncio.CancelledError:  # the client has left
            self.forget(ids)
            raise
        return outbox

    def expect(self, ids: Sequence[str], outbox: Outbox) -> bool:
        """Deliver the answers to these ids to the outbox; return False if one of the ids is in use
        already."""
        values = [id_value(id) for id in ids]
        if any(value in self._waiting for value in values) or len(set(values)) != len(values):
            return False
        for id, value in zip(ids, values, strict=True):
            self._waiting[value] = (id, outbox)
        if self.is_closing:
            self._fail_all()
        return True

    def expect_on_stream(self, ids: Sequence[str]) -> bool:
        """Deliver the answers to these ids to the stream, as in HTTP+SSE."""
        return self._stream is not None and self.expect(ids, self._stream)

    def forget(self, ids: Sequence[str]) -> bool:
        """Stop waiting for these ids; return whether any of them had no answer yet."""
        forgotten = [self._waiting.pop(id_value(id), None) for id in ids]
        return any(one is not None for one in forgotten)

    def cancel(self, id: str) -> None:
        """End a request without an answer, because its client has cancelled it."""
        if (outbox := self._answered(id)) is not None:
            self._end_if_answered(outbox)

    async def tell(self, line: bytes) -> None:
        """Write a line; returns when the command has taken it."""
        await self._turn.acquire()
        await self._write(line)

    async def _write(self, line: bytes) -> None:
        """Write a line, now that it is its turn; the next one's comes when it is written.

        An executor would keep the lines of clients that have left until a busy command takes them.
        """
        self.last_used = self._loop.time()
        try:
            writing = self._loop.run_in_executor(self._writer, self.child.write, line + b"\n")
        except RuntimeError:  # the command has ended
            self._turn.release()
            return
        writing.add_done_callback(lambda _: self._turn.release())
        with suppress(RuntimeError):
            await asyncio.shield(writing)

    def listen(self) -> Outbox:
        """Return a new stream for messages that answer no request; it replaces an older one."""
        if self._stream:
            self._stream.end()
        stream = Outbox()
        self._stream = stream
        if self.ended.done():
            stream.end()
        return stream

    def take_kept(self) -> list[bytes]:
        """Return the messages that were kept while no stream was open."""
        return self._kept.drain()

    def _keep(self, message: bytes) -> None:
        """Keep a message for the next stream; drop the oldest if there are too many."""
        self._kept.put_last(message)
        self._kept.drop_beyond(_MOST_KEPT)

    def stop_listening(self, stream: Outbox) -> None:
        stream.end()
        if self._stream is stream:
            self._stream = None
            for message in stream.drain():
                self._keep(message)

    def begin_to_close(self, *, eof: float = _EOF) -> asyncio.Future[None]:
        """Begin to end the command with increasing force."""
        if self._closing is None or eof < self._patience:
            self._patience = eof
            self._closing = in_own_thread(lambda: end_child(self.child, eof=eof))
        return self._closing

    async def close(self, *, eof: float = _EOF) -> None:
        """End the command; return when it is gone."""
        await asyncio.shield(self.begin_to_close(eof=eof))
        await asyncio.wait([self.ended], timeout=_LAST_WORDS)
        if self.child.has_ended():  # a process that has left its group may hold the output open
            self._end(self.child.wait())

    # Messages of the command

    def _read(self) -> None:
        """Read in a thread, no faster than the lines can be delivered."""
        parser = LineParser(max_pending=self.limits.pending)
        with suppress(OSError, RuntimeError):  # the event loop has ended before the command
            while chunk := self.child.read():
                self._in_loop(parser.feed(chunk))
            self._in_loop(parser.finish())
        self.child.close_output()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end_silent)
            self._loop.call_soon_threadsafe(self._end, self.child.wait())

    def _in_loop(self, lines: list[bytes | CutLine]) -> None:
        if lines:
            asyncio.run_coroutine_threadsafe(self._receive_all(lines), self._loop).result()

    async def _receive_all(self, lines: list[bytes | CutLine]) -> None:
        for line in lines:
            if isinstance(line, CutLine):
                await self._replace(line, f"a line of {line.size} bytes")
                continue
            try:
                refuse_hidden_line(line)
                message = parse_message(line, self.limits)
            except ProtocolError as error:
                if not show_stray_line(line, self.limits, self.say):
                    await self._replace(line, str(error))
                continue
            await self._receive(line, tuple(singles(message)))

    async def _receive(self, line: bytes, members: Sequence[Single]) -> None:
        responses = [member for member in members if isinstance(member, Response)]
        outboxes = [
            self._answered(response.id) for response in responses if response.id is not None
        ]
        found = next((outbox for outbox in outboxes if outbox is not None), None)
        if found is not None:
            await self._deliver(found, line, is_answer=len(responses) == len(members))
            self._end_if_answered(found)
        elif not responses:
            if any(
                isinstance(member, Notification) and member.method == LIST_CHANGED
                for member in members
            ):
                self.on_list_changed()
            await self.receive_other(line)
        elif all(response.id is None for response in responses):
            await self._replace(line, "an answer without an id")

    async def _deliver(self, outbox: Outbox, line: bytes, *, is_answer: bool) -> None:
        """Deliver an answer; the command is not read before there is room."""
        await outbox.put(self.restored(line), is_answer=is_answer)

    async def receive_other(self, line: bytes) -> None:
        """Deliver a message that answers no request."""
        if self._stream is not None and await self._stream.put(line):
            return
        # No stream is open, so any waiting request may carry it.
        waiting = [outbox for _, outbox in self._waiting.values() if not outbox.only_answers]
        if not waiting or not await waiting[-1].put(line):
            self._keep(line)

    def restored(self, line: bytes) -> bytes:
        """Return an answer with the client's own ids."""
        return line

    def _answered(self, id: str) -> Outbox | None:
        waiting = self._waiting.pop(id_value(id), None)
        return waiting[1] if waiting else None

    def _end_if_answered(self, outbox: Outbox) -> None:
        if outbox is not self._stream and not any(
            other is outbox for _, other in self._waiting.values()
        ):
            outbox.end()

    async def _replace(self, line: bytes | CutLine, detail: str) -> None:
        """Answer requests with an error, because the command's message cannot be delivered."""
        self.say(f"Warning: The command sent an invalid message: {detail}")
        ids = ids_answered(line)
        if ids is None:
            ids = list(self._waiting) if len(self._waiting) == 1 else []
        for id in ids:
            written, outbox = self._waiting.pop(id_value(id), (id, None))
            if outbox is not None:
                error = render_error(written, INTERNAL_ERROR, INVALID_ANSWER)
                await self._deliver(outbox, error, is_answer=False)
                self._end_if_answered(outbox)

    # The end

    def _end_silent(self) -> None:
        """End a command that has closed its output: it can answer nothing any more."""
        self._fail_all()
        self.begin_to_close(eof=self._patience)

    def _end(self, code: int) -> None:
        if self.ended.done():
            return
        self.ended.set_result(code)
        self._writer.shutdown(wait=False)
        self._fail_all()
        if self._stream:
            self._stream.end()
        self.on_end(self, code)

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for id, outbox in waiting.values():
            if self._closing is None:  # otherwise the client has left
                outbox.put_last(self.restored(render_error(id, UPSTREAM_LOST, LOST_ANSWER)))
        for _, outbox in waiting.values():
            outbox.end()


_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"  # in a request that wants log messages
_LEVELS: Final = (
    *("debug", "info", "notice", "warning"),
    *("error", "critical", "alert", "emergency"),
)


class SharedSession(ChildSession):
    """One command for all clients of a stateless revision; each request gets a number as its id.

    A client that reads slowly delays no other, and messages for one client never reach another. Log
    messages do not say which request they are about: each request that wants them gets them, if
    all open requests are of one asker, as far as their credentials tell.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._numbers = Numbers()
        self._leaving: set[asyncio.Task[None]] = set()
        self._unread: WeakSet[Outbox] = WeakSet()

    async def ask_alone(
        self,
        line: bytes,
        *,
        only_answers: bool = False,
        is_subscription: bool = False,
        asker: object = None,
    ) -> tuple[int, Outbox]:
        """Send a request; return its number, and the outbox for its messages."""
        wanted = string_in(line, "params", "_meta", _LOG_LEVEL) if not only_answers else None
        number, renumbered = self._numbers.renumber(line)
        outbox = Outbox(
            only_answers=only_answers,
            is_subscription=is_subscription,
            least_level=_LEVELS.index(wanted) if wanted in _LEVELS else None,
            asker=asker,
        )
        self.expect([str(number)], outbox)
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:  # the client has left before the command was told
            self._numbers.forget(number)
            self.forget([str(number)])
            raise
        try:
            await self._write(renumbered)
        except asyncio.CancelledError:  # the client has left
            self.leave(number)
            raise
        return number, outbox

    async def _deliver(self, outbox: Outbox, line: bytes, *, is_answer: bool) -> None:
        """Deliver an answer at once: the others must not wait for a client that does not read.

        Past what all of them may hold, the one that holds most gets no answer.
        """
        outbox.has_others |= not is_answer
        outbox.put_last(self.restored(line))
        self._unread.add(outbox)
        held = {one: one.size for one in self._unread if one.size}
        if sum(held.values()) > _MOST_UNREAD:
            largest = max(held, key=held.__getitem__)
            largest.drain()
            largest.end()

    def leave(self, number: int) -> None:
        """Forget a request; if it has no answer yet, cancel it."""
        self._numbers.forget(number)
        if self.forget([str(number)]):
            notice = (
                b'{"jsonrpc":"2.0","method":"notifications/cancelled",'
                b'"params":{"requestId":%d}}' % number
            )
            keep(self._leaving, asyncio.create_task(self.tell(notice)))

    def restored(self, line: bytes) -> bytes:
        number, restored = self._numbers.restore(line)
        if number is not None:
            self._numbers.forget(number)
        return restored

    async def receive_other(self, line: bytes) -> None:
        """Deliver a message about one request, or a log message; drop a broadcast, which could leak
        from one client to another."""
        try:
            number, restored = self._numbers.restore(line)
        except ProtocolError:
            return
        if number is None:
            readers = self._readers_of(line)
        else:
            readers = [outbox for _, outbox in filter(None, [self._waiting.get(str(number))])]
        for reader in readers:
            if not reader.only_answers:
                reader.put_now(restored)

    def _readers_of(self, line: bytes) -> list[Outbox]:
        """Return who may read a message that names no request."""
        usual = [outbox for _, outbox in self._waiting.values() if not outbox.is_subscription]
        wanting = [one for one in usual if one.least_level is not None]
        level = string_in(line, "params", "level")
        if not wanting or level not in _LEVELS:
            return usual if len(usual) == 1 else []
        if len({one.asker for one in usual}) > 1:  # it may be about a request that wants none
            return []
        return [one for one in wanting if (one.least_level or 0) <= _LEVELS.index(level)]


@dataclass(eq=False, kw_only=True)
class Outbox:
    """A queue that a session fills and one response empties; the writer waits for a slow reader.

    With ``only_answers`` its reader takes nothing else, because it cannot show it.
    """

    only_answers: bool = False
    is_subscription: bool = False
    least_level: int | None = None
    asker: object = None
    """It wants log messages from ``least_level`` on."""
    has_others: bool = field(default=False, init=False)
    """True if it got anything but answers."""
    has_ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    async def put(self, message: bytes, *, is_answer: bool = False) -> bool:
        """Add a message when there is room; return False if the reader is gone."""
        while self._size > _ROOM and not self.has_ended:
            self._changed.clear()
            await self._changed.wait()
        if self.has_ended:
            return False
        self.has_others |= not is_answer
        self.put_last(message)
        return True

    def put_now(self, message: bytes) -> None:
        """Add a message that is no answer, if there is room."""
        if not self.has_ended and self._size <= _ROOM:
            self.has_others = True
            self.put_last(message)

    def put_last(self, message: bytes) -> None:
        """Add an answer, even if there is no room."""
        if not self.has_ended:
            self._messages.append(message)
            self._size += len(message)
            self._changed.set()

    async def get(self) -> bytes | None:
        """Return the next message; None after the last one."""
        while not self._messages:
            if self.has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def _take(self) -> bytes:
        message = self._messages.popleft()
        self._size -= len(message)
        self._changed.set()
        return message

    @property
    def size(self) -> int:
        """Bytes that were not read yet."""
        return self._size

    def drop_beyond(self, most: int) -> None:
        """Drop the oldest messages if there are more bytes."""
        while self._size > most:
            self._take()

    def end(self) -> None:
        """Accept no more messages; those in the queue can still be read."""
        self.has_ended = True
        self._changed.set()

    def drain(self) -> list[bytes]:
        """Take all messages."""
        return [self._take() for _ in range(len(self._messages))]


# A client of one command, for our subcommands that only look

_EXIT: Final = 0.5  # seconds from the end of its output to its exit
_LISTED_EOF: Final = 1.0  # seconds from closed stdin to SIGTERM: it has only listed its tools


async def find(
    child: Child, opened: AsyncExitStack, *, limit: int, say: Callable[[str], None]
) -> Found:
    """Initialize a command. Raises Refused, ProtocolError, HttpFailed.

    ``initialize`` comes first, which every older server needs. If the server refuses it, we use the
    stateless way of 2026-07-28.

    Lines between its messages go to ``say``.
    """
    client = StdioClient(child, limit=limit, say=say)
    opened.push_async_callback(client.close)
    try:
        reply = await client.request("initialize", INITIALIZE)
    except Refused:
        client.revision = NEWEST_STATELESS
        reply = await client.request("server/discover", {})
        return Found(client, introduction_of(reply, revision=NEWEST_STATELESS))
    introduction = introduction_in(reply)
    client.revision = introduction.revision
    await client.tell(INITIALIZED)
    return Found(client, introduction)


class StdioClient:
    """Sends requests to a command, one after the other."""

    transport = Transport.STDIO
    path = ""
    has_session = False

    def __init__(self, child: Child, *, limit: int, say: Callable[[str], None]) -> None:
        limits = Limits(message=limit, pending=limit)
        self._session = ChildSession(child, limits, say=say, on_end=lambda *_: None)
        self._next_id = 0
        self.revision = ""

    async def request(self, method: str, params: Result) -> ResultReply:
        """Return the result of a request. Raises Refused, ProtocolError, ConnectionLost."""
        self._next_id += 1
        if self.revision in STATELESS_REVISIONS:
            params = {**params, "_meta": stateless_meta(self.revision)}
        asked = render_request(self._next_id, method, params)
        outbox = await self._session.ask([asked], [str(self._next_id)])
        while (line := await outbox.get()) is not None:
            for message, raw in messages_in(line):
                if is_response_to(self._next_id, message):
                    return await self._reply_in(message, raw)
                if answer := answer_to(message):
                    await self.tell(answer)
        raise ConnectionLost(await self._how_it_ended())

    async def _reply_in(self, message: Result, raw: bytes) -> ResultReply:
        try:
            return reply_in(message, raw)
        except Refused as refused:
            if refused.code == UPSTREAM_LOST and self._session.is_closing:
                raise ConnectionLost(await self._how_it_ended()) from None
            raise

    async def tell(self, message: bytes) -> None:
        """Send a line. (A command that does not read it does not answer either.)"""
        await self._session.tell(message)

    async def close(self) -> None:
        """End the command, and wait for it."""
        await self._session.close(eof=_LISTED_EOF)

    async def _how_it_ended(self) -> str:
        ended = self._session.ended
        if not (await asyncio.wait([ended], timeout=_EXIT))[0]:
            return "The command has closed its output"
        return f"The command exited with code {ended.result()}"
