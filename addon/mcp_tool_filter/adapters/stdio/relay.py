"""stdio in front of stdio: pass lines between our client and a command, and judge each.

One thread reads the client, one the child, and one waits for the child's end. Each reads only as
fast as the other side takes what it writes, so nothing piles up. We use threads and blocking reads
instead of an event loop, because other processes may share our stdin and stdout and would be
affected if these did not block, and because importing asyncio would slow the start.

This module knows which side has ended and ends the session; ``relayed_lines`` judges and writes
lines.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, assert_never

from mcp_tool_filter.adapters.stdio.child import KILL, Child
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.adapters.stdio.relayed_lines import CHILD, CLIENT, RelayedLines
from mcp_tool_filter.errors import LostUpstream
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import LineParser

if TYPE_CHECKING:  # most relays have no rules
    from mcp_tool_filter.adapters.stdio.rule_thread import RuleThread

_READ_SIZE = 64 * 1024
_TICK = 0.02  # seconds
_HUNG_UP = getattr(select, "POLLHUP", 0)
_LAST_WORDS = 0.5  # seconds without output, if another process holds the ended child's stdout
_AFTER_CTRL_C = 0.2  # seconds that a command has to end because of a signal alone
_GOODBYE = 3.0  # seconds for a client to read the errors for its waiting requests


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for the command to end."""

    eof: float = 5.0
    """From closing its stdin to SIGTERM."""
    term: float = 2.0
    """From SIGTERM to SIGKILL."""
    passed_on: float = 1.8
    """After a SIGTERM that we got ourselves: less than the 2 s that clients give us."""


_PATIENCE = Patience()


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


class Relay:
    """One session between a client and a command."""

    def __init__(
        self,
        child: Child,
        judge: LineJudge,
        happened: SimpleQueue[Happened],
        *,
        say: Callable[[str], None],
        limits: Limits,
        stdin: int = 0,
        stdout: int = 1,
        patience: Patience = _PATIENCE,
        rules: RuleThread | None = None,
    ) -> None:
        self._rules = rules
        self._child = child
        self._judge = judge
        self._say = say
        self._limits = limits
        self._stdin = stdin
        self._patience = patience
        self._happened = happened
        self._lines = RelayedLines(
            child,
            judge,
            say=say,
            limits=limits,
            stdout=stdout,
            rules=rules,
            on_client_gone=lambda: happened.put(_ClientEnded()),
        )
        self._drained = Event()  # all output of the child has been passed on
        self._last_output_at = time.monotonic()
        self._code: int | None = None
        self._client_ended = False
        self._read_last = time.monotonic()
        self._client_read = Event()  # all input of the client has been read

    def run(self) -> int:
        """Pass lines until one side ends; return the exit code."""
        works = [self._read_client, self._read_child, self._wait_for_child]
        if hasattr(select, "poll"):
            works.append(self._watch_client)
        for work in works:
            Thread(target=self._guarded, args=(work,), daemon=True).start()
        while True:
            match self._happened.get():
                case _ClientEnded(has_waited):
                    self._child.close_stdin()
                    eof = _TICK if has_waited else self._patience.eof
                    return self._see_out(eof, self._patience.term)
                case int(number):
                    return self._pass_on(number)
                case _ChildEnded(code):
                    self._code = code
                    return self._end_of_child()
                case _ChildSilent():
                    return self._end_of_child()
                case _Broken(error):
                    return self._end_with(f"Error: Internal error: {error!r}\nShutting down proxy")
                case unexpected:
                    assert_never(unexpected)

    # The threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._happened.put(_Broken(error))

    def _read_client(self) -> None:
        parser = LineParser(max_pending=self._limits.pending)
        judge = self._lines.from_client
        while chunk := _read(self._stdin):
            self._read_last = time.monotonic()
            judge(parser.feed(chunk))
        self._client_read.set()
        judge(parser.finish())
        if self._rules:
            self._rules.wait_for(CLIENT)
        self._happened.put(_ClientEnded())

    def _watch_client(self) -> None:
        """Notice that the client has left, even while its unread input hides the end of file."""
        poll = select.poll()
        poll.register(self._stdin, 0)  # POLLHUP is always reported
        while not self._client_read.is_set():
            if any(events & _HUNG_UP for _, events in poll.poll(1000)):
                break
        while not self._client_read.wait(_TICK):
            if time.monotonic() - self._read_last > self._patience.eof:
                self._happened.put(_ClientEnded(has_waited=True))
                return

    def _read_child(self) -> None:
        parser = LineParser(max_pending=self._limits.pending)
        judge = self._lines.from_child
        while chunk := self._child.read():
            judge(parser.feed(chunk))
            self._last_output_at = time.monotonic()
        judge(parser.finish())
        if self._rules:
            self._rules.wait_for(CHILD)
        self._drained.set()
        self._happened.put(_ChildSilent())

    def _wait_for_child(self) -> None:
        self._happened.put(_ChildEnded(self._child.wait()))

    # The end

    def _pass_on(self, number: int) -> int:
        self._child.send(number)
        if number == signal.SIGTERM:
            return self._see_out(0, self._patience.passed_on)
        if not self._is_gone_within(_AFTER_CTRL_C):
            self._child.close_stdin()  # Python servers wait for their next line first
        return self._see_out(self._patience.eof, self._patience.term)

    def _see_out(self, until_term: float, until_kill: float) -> int:
        """Wait for the command's process group to end, with increasing force."""
        if until_term and not self._is_gone_within(until_term):
            self._child.send(signal.SIGTERM)
        if not self._is_gone_within(until_kill):
            self._say("Warning: The command did not end, so it was killed")
            self._child.send(KILL)
            self._is_gone_within(until_kill)
        self._pass_on_rest()
        return self._code if self._code is not None else 1

    def _is_gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._code is not None and self._child.has_left_nobody():
                return True
            try:
                happened = self._happened.get(
                    timeout=min(left, _TICK if self._code is not None else left)
                )
            except Empty:
                continue
            match happened:
                case _ChildEnded(code):
                    self._code = code
                case int(number):
                    self._child.send(number)
                    if number == signal.SIGTERM:
                        end = min(end, time.monotonic() + self._patience.passed_on)
                case _ClientEnded() | _ChildSilent() | _Broken():
                    pass
                case unexpected:
                    assert_never(unexpected)
        return False

    def _pass_on_rest(self) -> None:
        """Pass on all output of the child, but do not wait for other processes that hold its
        stdout."""
        self._last_output_at = time.monotonic()
        while not self._drained.wait(_TICK):
            if not self._lines.is_writing and time.monotonic() - self._last_output_at > _LAST_WORDS:
                return

    def _end_of_child(self) -> int:
        """End because the child has ended or closed its output."""
        self._pass_on_rest()
        end = time.monotonic() + _LAST_WORDS
        while time.monotonic() < end and not (self._client_ended and self._code is not None):
            try:
                happened = self._happened.get(timeout=_TICK)
            except Empty:
                if self._code is not None:
                    break
                continue
            match happened:
                case _ClientEnded():
                    self._client_ended = True
                case _ChildEnded(code):
                    self._code = code
                case int(number):
                    return self._pass_on(number)
                case _ChildSilent() | _Broken():
                    pass
                case unexpected:
                    assert_never(unexpected)
        if self._client_ended:  # the client left at the same time, and waits for nothing
            self._child.close_stdin()
            return self._see_out(self._patience.eof, self._patience.term)
        return self._lose()

    def _lose(self) -> int:
        return self._end_with(f"{LostUpstream()}: {self._how_it_ended()}")

    def _end_with(self, text: str) -> int:
        """Answer the waiting requests, print the reason, and end the process group."""
        replies = self._judge.lost_replies()
        goodbye = Thread(target=self._lines.tell_client, args=(replies,), daemon=True)
        goodbye.start()
        self._say(text)
        self._child.send(signal.SIGTERM)
        if not self._is_gone_within(self._patience.term):
            self._child.send(KILL)
        goodbye.join(_GOODBYE)
        return 1

    def _how_it_ended(self) -> str:
        if self._code is None:
            return "the command has closed its output"
        if self._code > 128:
            return f"the command was ended by signal {self._code - 128} (exit code {self._code})"
        return f"the command exited with code {self._code}"


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_SIZE)
    except OSError:  # the terminal is gone
        return b""
