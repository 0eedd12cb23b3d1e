"""Print for people on stderr while stdin and stdout belong to the client.

A client may close our stderr, or never read it: then a text is lost, and nothing waits for it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Thread

from mcp_tool_filter.adapters.stdio.child import write_all

_MOST_WAITING = 256 * 1024  # characters that nobody has read yet
_LAST_WORDS = 1.0  # seconds for a client to read them at the end


def say_beside_client(text: str) -> None:
    """Print a text in the chosen log format."""
    from mcp_tool_filter.cli.output.log import as_said  # late: a relay starts without it

    write_beside_client(as_said(text))


def write_beside_client(text: str) -> None:
    """Print a text unchanged."""
    with suppress(OSError, ValueError):  # a client may ignore our stderr
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


@contextmanager
def patient_stderr() -> Iterator[None]:
    """Write to stderr in a thread of its own, within this block."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = patient = _PatientStderr()  # stdout belongs to the client
    try:
        yield
    finally:
        patient.close()
        sys.stdout, sys.stderr = before


class _PatientStderr(io.TextIOBase):
    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._size = 0
        self._dropped = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # as in TextIOWrapper
        return "utf-8"

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._changed:
            if self._size > _MOST_WAITING:
                self._dropped += 1
                return len(text)
            self._waiting.append(text)
            self._size += len(text)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, daemon=True)
                self._thread.start()
        return len(text)

    def close(self) -> None:
        """Wait until everything is written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, timeout=_LAST_WORDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                texts, self._waiting = self._waiting, []
                if self._dropped:
                    texts.append(f"({self._dropped} texts were lost: nobody read stderr)\n")
                    self._dropped = 0
            with suppress(OSError):
                write_all(2, "".join(texts).encode("utf-8", "backslashreplace"))
            with self._changed:
                self._size = sum(map(len, self._waiting))
                self._changed.notify_all()


def take_over_stdio() -> tuple[int, int]:
    """Return descriptors for the client; what anybody else prints goes to stderr from now on.

    A user's Python code in a rule may print, or read, or start programs that do.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout
