"""stdio in front of stdio: pass lines between our client and a command, and judge each.

One thread reads the client, one the child, and one waits for the child's end. Each reads only as
fast as the other side takes what it writes, so nothing piles up. We use threads and blocking reads
instead of an event loop, because other processes may share our stdin and stdout and would be
affected if these did not block, and because importing asyncio would slow the start.

``Relay`` knows which side has ended and ends the session; ``RelayedLines`` judges and writes lines.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from mcp_tool_filter.core.errors import LostUpstream
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.policy.effects import Decision
from mcp_tool_filter.core.policy.verdict import VERDICTS, Drop, Verdict
from mcp_tool_filter.rooms.stdio.child import (
    KILL,
    Child,
    LateWriter,
    in_own_thread,
    read_some,
    write_all,
)
from mcp_tool_filter.rooms.stdio.judge import (
    LineJudge,
    is_answer,
    routes,
    show_stray_line,
    without_line_ends,
)
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser

if TYPE_CHECKING:  # most relays never wait
    from mcp_tool_filter.rooms.stdio.waiting import DecidingThread

_TICK = 0.02  # seconds
_HUNG_UP = getattr(select, "POLLHUP", 0)
_LAST_WORDS = 0.5  # seconds without output, if another process holds the ended child's stdout
_AFTER_CTRL_C = 0.2  # seconds that a command has to end because of a signal alone
_GOODBYE = 3.0  # seconds for a client to read the errors for its waiting requests
_LONGEST_HOLD = 600.0  # seconds in which a rule may still hold an answer after one side has ended


# Seconds for the command to end.
_EOF = 5.0  # from closing its stdin to SIGTERM
_TERM = 2.0  # from SIGTERM to SIGKILL
_PASSED_ON = 1.8  # after a SIGTERM that we got ourselves: less than the 2 s that clients give us


@dataclass(frozen=True, slots=True)
class _ClientEnded:
    """The client has closed its output or its input."""

    has_waited: bool = False
    """True if the command has had its time to end."""


@dataclass(frozen=True, slots=True)
class _ChildEnded:
    code: int


@dataclass(frozen=True, slots=True)
class _ChildSilent:
    """The child's output has ended."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """A bug in our code: the session cannot continue."""

    error: Exception


type Happened = int | _ClientEnded | _ChildEnded | _ChildSilent | _Broken
"""A number is a signal that we received."""


type Judge = Callable[[bytes | CutLine], Decision[Verdict]]


class Relay:
    """One session between a client and a command."""

    def __init__(self, lines: RelayedLines, *, stdin: int) -> None:
        self._lines = lines
        self._child = lines.child
        self._happened = lines.happened
        self._stdin = stdin
        self._drained = Event()  # all output of the child has been passed on
        self._last_output_at = time.monotonic()
        self._code: int | None = None
        self._client_ended = False
        self._is_hurried = False  # a signal has come: a rule may hold nothing any more
        self._read_last = time.monotonic()
        self._client_read = Event()  # all input of the client has been read

    def run(self) -> int:
        """Pass lines until one side ends; return the exit code."""
        works = [
            self._read_client,
            self._read_child,
            lambda: self._happened.put(_ChildEnded(self._child.wait())),
        ]
        if hasattr(select, "poll"):
            works.append(self._watch_client)
        for work in works:
            Thread(target=self._guarded, args=(work,), daemon=True).start()
        match self._next():
            case _ClientEnded(has_waited):
                self._lines.replies.wait_until_written(_LAST_WORDS)
                self._child.close_stdin()
                return self._see_out(_TICK if has_waited else _EOF, _TERM)
            case int(number):
                return self._end_by_signal(number)
            case _Broken(error):
                return self._end_with(f"Error: Internal error: {error!r}\nShutting down proxy")
            case _:
                return self._end_of_child()

    def tell_command(self, message: bytes) -> None:
        """Send our own message to the command."""
        self._lines.replies.add(without_line_ends(message) + b"\n")

    # The threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._happened.put(_Broken(error))

    def _read_client(self) -> None:
        parser = LineParser(max_pending=self._lines.limits.pending)
        judge = self._lines.from_client
        while chunk := _read(self._stdin):
            self._read_last = time.monotonic()
            judge(parser.feed(chunk))
        self._client_read.set()
        judge(parser.finish())
        self._lines.wait_for_client()
        self._happened.put(_ClientEnded())

    def _watch_client(self) -> None:
        """Notice that the client has left, even while its unread input hides the end of file."""
        poll = select.poll()
        poll.register(self._stdin, 0)  # POLLHUP is always reported
        while not self._client_read.is_set():
            if any(events & _HUNG_UP for _, events in poll.poll(1000)):
                break
        while not self._client_read.wait(_TICK):
            if time.monotonic() - self._read_last > _EOF:
                self._happened.put(_ClientEnded(has_waited=True))
                return

    def _read_child(self) -> None:
        parser = LineParser(max_pending=self._lines.limits.pending)
        judge = self._lines.from_child
        while chunk := self._child.read():
            judge(parser.feed(chunk))
            self._last_output_at = time.monotonic()
        judge(parser.finish())
        self._lines.judge.asker.give_up()
        self._drained.set()
        self._happened.put(_ChildSilent())

    # The end

    def _next(self, seconds: float | None = None) -> Happened | None:
        """Wait for what happens next, take note of it, and pass a signal on to the command."""
        try:
            happened = self._happened.get(timeout=seconds)
        except Empty:
            return None
        match happened:
            case _ClientEnded():
                self._client_ended = True
            case _ChildEnded(code):
                self._code = code
            case int(number):
                self._child.send(number)
                self._is_hurried = True
        return happened

    def _end_by_signal(self, number: int) -> int:
        """End after a signal that has been passed on."""
        if number == signal.SIGTERM:
            return self._see_out(0, _PASSED_ON)
        if not self._is_gone_within(_AFTER_CTRL_C):
            self._child.close_stdin()  # Python servers wait for their next line first
        return self._see_out(_EOF, _TERM)

    def _see_out(self, until_term: float, until_kill: float) -> int:
        """Wait for the command's process group to end, with increasing force."""
        self._let_rules_decide()  # the command may have to write on before it can end
        if until_term and not self._is_gone_within(until_term):
            self._child.send(signal.SIGTERM)
        if not self._is_gone_within(until_kill):
            self._lines.say("Warning: The command did not end, so it was killed")
            self._child.send(KILL)
            self._is_gone_within(until_kill)
        self._pass_on_rest()
        return self._code if self._code is not None else 1

    def _is_gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._code is not None and self._child.has_left_nobody():
                return True
            if self._next(left if self._code is None else min(left, _TICK)) == signal.SIGTERM:
                end = min(end, time.monotonic() + _PASSED_ON)
        return False

    def _pass_on_rest(self) -> None:
        """Pass on all output of the child, but do not wait for other processes that hold its
        stdout."""
        self._last_output_at = time.monotonic()
        while not self._drained.wait(_TICK):
            if self._lines.is_holding and self._let_rules_decide():
                self._last_output_at = time.monotonic()
            elif not self._lines.is_writing and _is_past(self._last_output_at + _LAST_WORDS):
                return

    def _let_rules_decide(self) -> bool:
        """Wait while a rule holds an answer of the child, until a signal comes; return whether it
        has been decided."""
        end = time.monotonic() + _LONGEST_HOLD
        while self._lines.is_holding and not self._is_hurried and not _is_past(end):
            self._next(_TICK)
        return not self._lines.is_holding

    def _end_of_child(self) -> int:
        """End because the child has ended or closed its output."""
        self._pass_on_rest()
        end = time.monotonic() + _LAST_WORDS
        while not _is_past(end) and not (self._client_ended and self._code is not None):
            happened = self._next(_TICK)
            if isinstance(happened, int):
                return self._end_by_signal(happened)
            if happened is None and self._code is not None:
                break
        if self._client_ended:  # the client left at the same time, and waits for nothing
            self._child.close_stdin()
            return self._see_out(_EOF, _TERM)
        return self._end_with(f"{LostUpstream()}: {self._how_it_ended()}")

    def _end_with(self, text: str) -> int:
        """Answer the waiting requests, print the reason, and end the process group."""
        replies = self._lines.lost_replies()
        goodbye = Thread(target=self._lines.tell_client, args=(replies,), daemon=True)
        goodbye.start()
        self._lines.say(text)
        self._child.send(signal.SIGTERM)
        if not self._is_gone_within(_TERM):
            self._child.send(KILL)
        goodbye.join(_GOODBYE)
        return 1

    def _how_it_ended(self) -> str:
        if self._code is None:
            return "the command has closed its output"
        if self._code > 128:
            return f"the command was ended by signal {self._code - 128} (exit code {self._code})"
        return f"the command exited with code {self._code}"


def _is_past(end: float) -> bool:
    return time.monotonic() > end


def _read(descriptor: int) -> bytes:
    try:
        return read_some(descriptor)
    except OSError:  # the terminal is gone
        return b""


@dataclass(eq=False)
class RelayedLines:
    """One thread calls ``from_client``, another ``from_child``; both write to the client."""

    child: Child
    judge: LineJudge
    happened: SimpleQueue[Happened]
    say: Callable[[str], None]
    limits: Limits
    stdout: int = 1
    deciding: DecidingThread | None = None
    """Makes all decisions, if there are rules."""
    is_writing: bool = field(default=False, init=False)
    """True while output of the child is being written to the client."""
    is_holding: bool = field(default=False, init=False)
    """True while a rule holds a message of the child, and all behind it."""

    def __post_init__(self) -> None:
        most = self.limits.pending
        # A command that is busy writing does not read. If the thread that reads it waited for
        # that, both would wait for ever.
        self.replies = LateWriter(self.child.write, most=most)
        self._to_client = Lock()
        self._holding: DecidingThread | None = None
        """Where lines of the client are held."""
        if self.deciding:
            self._hold_in(self.deciding)
        self.judge.asker.send = lambda message: self.child.write(message + b"\n")

    def _hold_in(self, thread: DecidingThread) -> None:
        most = self.limits.pending
        thread.hold_lines(
            self.judge, self._release, on_bug=lambda bug: self.happened.put(_Broken(bug)), most=most
        )
        self._holding = thread

    def wait_for_client(self, seconds: float | None = None) -> None:
        """Wait until no line of the client is held."""
        if self._holding:
            with suppress(TimeoutError):
                self._holding.wait_for(self._holding.held.wait_until_empty(), seconds)

    def lost_replies(self) -> list[bytes]:
        """Return an error for each request that has no answer yet."""
        if not self.deciding:  # the tool list is not waited for any more
            self.wait_for_client(_LAST_WORDS)
        holding = self._holding
        held = holding.wait_for(holding.held.lose()) if holding else ()
        return [*self.judge.lost_replies(), *held]

    def close(self) -> None:
        """Hold nothing any more."""
        if self._holding:
            if not self.deciding:  # what waits for a list of a lost command is being refused
                self.wait_for_client(_LAST_WORDS)
            self._holding.close()

    def from_client(self, lines: Iterable[bytes | CutLine]) -> None:
        forwarded: list[bytes] = []
        replies: list[bytes] = []
        for line in lines:
            decision = self._decide(self.judge.from_client, line)
            holding = self._holding
            # An answer may overtake what is held: the command may need it before it can go on.
            is_free = not holding or holding.held.is_empty or is_answer(line, self.limits)
            if is_free and isinstance(decision, VERDICTS):
                onward, back = routes(line, decision, from_client=True)
                forwarded += onward
                replies += back
                continue
            self._pass_from_client(forwarded, replies)
            forwarded, replies = [], []
            if holding is None:  # without rules, only the tool list is waited for, and seldom
                from mcp_tool_filter.rooms.stdio.waiting import DecidingThread

                self._hold_in(holding := DecidingThread())
            holding.wait_for(holding.held.add(line, decision))
        self._pass_from_client(forwarded, replies)

    async def _release(self, line: bytes | CutLine, verdict: Verdict) -> None:
        onward, back = routes(line, verdict, from_client=True)
        await in_own_thread(lambda: self._pass_from_client([*onward], [*back]))  # may block

    def _pass_from_client(self, forwarded: list[bytes], replies: list[bytes]) -> None:
        if forwarded:
            self.child.write(_joined(forwarded))
        if replies:
            self.tell_client(replies)

    def from_child(self, lines: Iterable[bytes | CutLine]) -> None:
        passed: list[bytes] = []
        for line in lines:
            decision = self._decide(self.judge.from_upstream, line)
            if not isinstance(decision, VERDICTS):
                # What is behind it waits too: messages keep their order.
                self._pass_from_child(passed)
                passed = []
                assert self.deciding, "only rules wait"
                self.is_holding = True
                waiting = self.deciding.effects.outcome_of(decision)
                decision = self.deciding.wait_for(waiting)
                self.is_holding = False
            onward, back = routes(line, decision, from_client=False)
            passed += onward
            for reply in back:
                self.replies.add(reply + b"\n")
            if isinstance(decision, Drop) and isinstance(line, bytes):
                show_stray_line(line, self.limits, self.say)
        self._pass_from_child(passed)

    def _decide(self, judge: Judge, line: bytes | CutLine) -> Decision[Verdict]:
        """Decide here, or in the thread of the rules."""
        if self.deciding:
            return self.deciding.do(partial(judge, line))
        return judge(line)

    def _pass_from_child(self, passed: list[bytes]) -> None:
        if passed:
            self.is_writing = True
            self.tell_client(passed)
            self.is_writing = False

    def tell_client(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            with self._to_client:
                write_all(self.stdout, _joined(lines))
        except OSError:  # the client does not read any more
            self.happened.put(_ClientEnded())


def _joined(lines: list[bytes]) -> bytes:
    lines.append(b"")
    return b"\n".join(lines)
