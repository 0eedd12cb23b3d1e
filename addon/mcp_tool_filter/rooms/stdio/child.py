"""The command that we filter: a child process and all processes that it starts.

It runs in its own process group, so that we can end its children too, and a Ctrl+C in a terminal
reaches it only once, through us. It shares our stderr; if it has a name, each line begins with it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.cli.programs import why_not_started
from mcp_tool_filter.core.errors import ConnectFailed

if TYPE_CHECKING:
    from asyncio import Future

_READ_SIZE = 64 * 1024
_LAST_LINES = 0.5  # seconds to show the rest of its stderr


class Child:
    """A running command. Raises ConnectFailed if it cannot be started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        without: Collection[str] = (),
        cwd: str | None = None,
        is_quiet: bool = False,
        name: str = "",
    ) -> None:
        """It gets our environment, ``without`` some variables, and with those of ``env``.
        ``is_quiet`` if nobody shall see its stderr; ``name`` is what begins the lines of it."""
        surrounding = {key: value for key, value in os.environ.items() if key not in without}
        stderr = subprocess.DEVNULL if is_quiet else subprocess.PIPE if name else None
        self._process = _start(command, surrounding | dict(env or {}), cwd, stderr)
        self._teller = Thread(target=self._tell, args=(f"{name}: ".encode(),), daemon=True)
        if self._process.stderr:
            self._teller.start()
        assert self._process.stdin
        assert self._process.stdout
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        self._closing = Lock()  # prevents writing to a descriptor that was closed and reused
        self._takes_input = True

    def _tell(self, start: bytes) -> None:
        """Show what it writes to stderr, until its end."""
        assert self._process.stderr
        with self._process.stderr as stderr, open(stderr.fileno(), "rb", closefd=False) as lines:
            while line := lines.readline(_READ_SIZE):
                with suppress(OSError):  # nobody reads ours: the command goes on
                    write_all(2, start + line.rstrip(b"\r\n") + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> bytes:
        """Return the next part of its output; empty at the end."""
        return read_some(self._stdout)

    def write(self, data: bytes) -> bool:
        """Write all of the data, however long it takes; return False if the child does not read any
        more."""
        with self._closing:
            if not self._takes_input:
                return False
            try:
                write_all(self._stdin, data)
                is_written = True
            except OSError:
                self._takes_input = is_written = False
        if not self._takes_input:  # since now, or since somebody closed it during this write
            self.close_stdin()
        return is_written

    def close_stdin(self) -> None:
        """Close its stdin: now, or at the end of a write that is in progress."""
        self._takes_input = False
        if self._closing.acquire(blocking=False):
            try:
                assert self._process.stdin
                with suppress(OSError):
                    self._process.stdin.close()
            finally:
                self._closing.release()

    def close_output(self) -> None:
        """Close its output. Call this when nobody reads it any more."""
        assert self._process.stdout
        self._process.stdout.close()

    def wait(self) -> int:
        """Wait until it has ended; return its exit code like a shell: 128 + N for signal N."""
        code = self._process.wait()
        if self._teller.ident:
            self._teller.join(_LAST_LINES)
        return code if code >= 0 else 128 - code

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, number: int) -> None:
        """Send a signal to its process group."""
        if sys.platform == "win32":
            self._process.terminate()
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def has_left_nobody(self) -> bool:
        """Tell whether its whole process group has ended. Call this after the child has ended."""
        if sys.platform == "win32":
            return True
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return not _group_lives(self.pid)


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only one way to end a process


def end_child(child: Child, *, eof: float = 5.0, term: float = 2.0) -> None:
    """Close its stdin and wait; then end its process group with increasing force."""
    child.close_stdin()
    for seconds, number in ((eof, signal.SIGTERM), (term, KILL), (term, None)):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if child.has_ended() and child.has_left_nobody():
                return
            time.sleep(0.01)
        if number is not None:
            child.send(number)


def in_own_thread(work: Callable[[], None]) -> Future[None]:
    """Run a function in a thread of its own, without waiting for those of the event loop's pool."""
    import asyncio  # a relay starts without it

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, error)

    def settle(error: Exception | None) -> None:
        if done.cancelled():
            return
        if error:
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=run, daemon=True).start()
    return done


def read_some(descriptor: int) -> bytes:
    """Wait for the next bytes; empty at the end. Raises OSError.

    Another process may have made a descriptor that we share non-blocking: then we wait with poll.
    """
    while True:
        try:
            return os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            _wait_until_ready(descriptor, is_read=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, in as many parts as the reader takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            _wait_until_ready(descriptor, is_read=False)


class LateWriter:
    """Writes in a thread of its own, which is started when it is first needed.

    So nobody waits for a reader that does not read, unless ``most`` bytes wait for it already.
    """

    def __init__(self, write: Callable[[bytes], object], *, most: int) -> None:
        self._write = write
        self._most = most
        self._waiting: list[bytes] = []
        self._size = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    def add(self, data: bytes, *, waits: bool = True) -> bool:
        """Write this soon; while there is no room, wait, or return False."""
        with self._changed:
            timeout = None if waits else 0
            if not self._changed.wait_for(lambda: self._size <= self._most, timeout):
                return False
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, daemon=True)
                self._thread.start()
            return True

    def wait_until_written(self, seconds: float) -> None:
        """Wait until all has been written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, timeout=seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data, self._waiting = b"".join(self._waiting), []
            with suppress(OSError):
                self._write(data)
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()


def _wait_until_ready(descriptor: int, *, is_read: bool) -> None:
    if not hasattr(select, "poll"):  # Windows, whose pipes cannot be waited for
        time.sleep(0.01)
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN if is_read else select.POLLOUT)
    poll.poll()


def _start(
    command: Sequence[str], surrounding: dict[str, str], cwd: str | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    words = list(command)
    surrounding.pop(ENTRY, None)  # a filter that the command starts is not the entry's
    if sys.platform == "win32":  # there npx is npx.cmd
        words[0] = _which(words[0], surrounding) or words[0]
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            env=surrounding,
            cwd=cwd,
            start_new_session=True,  # no effect on Windows
        )
    except (OSError, ValueError) as error:
        folder = cwd or ""
        if cwd is not None and not os.path.isdir(cwd):
            why = f"There is no folder {cwd}"
        else:
            has_path = os.path.dirname(words[0])
            found = None if has_path else _which(words[0], surrounding)
            why = why_not_started(error, words[0], os.path.join(folder, found or words[0]))
        from mcp_tool_filter.rooms.secrets.shown import shown_command  # few commands fail

        raise ConnectFailed(shown_command(command), why=why) from None


def _which(program: str, environment: Mapping[str, str]) -> str | None:
    from shutil import which  # slow to import, and seldom needed

    return which(program, path=environment.get("PATH"))


def _group_lives(group: int) -> bool:
    """Search /proc, if it exists: a zombie does not count as alive."""
    if not os.path.isdir("/proc/self"):
        return True
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, _, pgrp = file.read().rpartition(b")")[2].split()[:3]
                if int(pgrp) == group and state not in (b"Z", b"X"):
                    return True
    return False
