"""What people see and type: colour, columns, lines on stderr above one status line, and Ctrl+C.

>>> columns([("file_read", "exposed"), ("rm", "denied")], is_terminal=True)
['file_read  exposed', 'rm         denied']
>>> columns([("file_read", "exposed")], is_terminal=False)
['file_read\\texposed']
"""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from threading import RLock
from typing import TYPE_CHECKING, TextIO

from mcp_tool_filter.cli.flags import with_flags
from mcp_tool_filter.core.errors import StartError, safe_lines

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Colour(StrEnum):
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BOLD = "1"
    DIM = "2"


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def leads_nowhere(stream: TextIO) -> bool:
    """Tell whether output is discarded, as with /dev/null."""
    try:
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
    return is_device and not is_terminal(stream)


def has_colour(stream: TextIO) -> bool:
    """Tell whether a stream shows colours: it is a terminal, and NO_COLOR is not set."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and is_terminal(stream)


def paint(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """Colour a text where colours are shown."""
    return f"\x1b[{colour.value}m{text}\x1b[0m" if has_colour(stream or sys.stdout) else text


def columns(rows: Sequence[tuple[str, ...]], *, is_terminal: bool) -> list[str]:
    """Format a table: aligned for people, with tabs for programs."""
    if not is_terminal:
        return ["\t".join(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def print_table(
    head: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    colour_of: Callable[[tuple[str, ...]], Colour | None] = lambda _row: None,
    *,
    is_cut: bool = False,
    always_has_head: bool = False,
) -> None:
    """Print a table; for people with its head, and if ``is_cut`` each row on one line."""
    if not is_terminal(sys.stdout):
        shown = [head, *rows] if always_has_head else rows
        print("\n".join(columns(shown, is_terminal=False)))
        return
    first, *lines = columns([head, *rows], is_terminal=True)
    print(paint(first, Colour.BOLD))
    widest = width() if is_cut else None
    for row, line in zip(rows, lines, strict=True):
        colour = colour_of(row)
        print(paint(line[:widest], colour) if colour else line[:widest])


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "call"), count(2, "call")
    ('1 call', '2 calls')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, width: int) -> str:
    """Return the text's first line, cut to a width.

    >>> shortened("Deletes a file for good.", 10)
    'Deletes a…'
    """
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def width() -> int:
    from shutil import get_terminal_size  # a relay need not wait for it

    return get_terminal_size().columns


@contextmanager
def progress(text: str, *, others_write: bool = False) -> Iterator[None]:
    """Show what we are waiting for, until the block ends.

    If other programs write to the terminal, too, it is an ordinary line: they would overwrite it.
    """
    if others_write or not is_terminal(sys.stderr):
        if is_terminal(sys.stderr):
            say(text)
        yield
        return

    set_status(text)  # other output appears above it
    try:
        yield
    finally:
        set_status("")


_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
_lock = RLock()
_status = ""
_is_json = False
_ALL = 2
_CONNECTIONS = "mitmproxy.proxy.server"  # logs "client connect" and similar
_CHATTERING = ("asyncio", "hpack", "quic", "tornado")


def log_to_stderr(verbosity: int, *, is_watched: bool = False, as_json: bool = False) -> None:
    """Log to stderr with the given verbosity. (mitmweb, ``is_watched``, shows more itself.)

    With ``as_json``, each text becomes one JSON object on one line.
    """
    global _is_json
    _is_json = as_json
    handler = _Handler()
    handler.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
    handler.setFormatter(_Formatter(with_tracebacks=verbosity > 0))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(handler.level, logging.INFO) if is_watched else handler.level)
    if verbosity < _ALL and not is_watched:
        logging.getLogger(_CONNECTIONS).setLevel(logging.WARNING)
    for name in _CHATTERING:
        logging.getLogger(name).setLevel(max(handler.level, logging.WARNING))


def say(text: str) -> None:
    """Print a text to stderr, so that it does not disturb a pipe."""
    write(as_said(text))


def as_said(text: str) -> str:
    """Return a text in the chosen format: lines without control characters, or a JSON object."""
    text = safe_lines(text)
    if not _is_json:
        return text
    first = text.partition(":")[0].lower()
    level = first if first in ("error", "warning") else "info"
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": time, "level": level, "message": text}, ensure_ascii=False)


def write(text: str) -> None:
    """Write lines as they are, above the status."""
    with _lock:
        sys.stderr.write(f"{_clear()}{text}\n{_drawn(_status)}")
        sys.stderr.flush()


def set_status(text: str) -> None:
    """Set the status line below all others; an empty text removes it."""
    global _status
    with _lock:
        if text != _status:
            sys.stderr.write(f"{_clear()}{_drawn(text)}")
            sys.stderr.flush()
        _status = text


def _clear() -> str:
    """Return the text that removes the status line. (Not every terminal knows escape sequences.)"""
    if not _status:
        return ""
    if os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
        return f"\r{' ' * len(_fitting(_status))}\r"
    return "\r\x1b[J"  # clears to the end of the screen


def _drawn(status: str) -> str:
    """Return a status that leaves the cursor at its beginning.

    If the terminal gets narrower, the row may wrap into several: then all that is after the cursor
    must be cleared, and nothing before it.
    """
    return f"{_fitting(status)}\r" if status else ""


def _fitting(status: str) -> str:
    """Cut a status to one row."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # not a terminal
        return status
    return status[: max(1, columns - 1)] if columns else status


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_said", False):  # already printed to stderr, even with --quiet
            return
        try:
            say(self.format(record))
        except Exception:
            self.handleError(record)


class _Formatter(logging.Formatter):
    def __init__(self, *, with_tracebacks: bool) -> None:
        super().__init__()
        self._with_tracebacks = with_tracebacks

    def format(self, record: logging.LogRecord) -> str:
        text = _message_of(record) if record.levelno >= logging.WARNING else record.getMessage()
        client = getattr(record, "client", None)  # mitmproxy's lines do not name it
        if isinstance(client, tuple) and len(client) > 1:
            text = f"[{client[0]}:{client[1]}] {text}"
        if record.levelno >= logging.WARNING and not text.startswith(("Error:", "Warning:")):
            text = f"{'Error' if record.levelno >= logging.ERROR else 'Warning'}: {text}"
        if record.exc_info and record.exc_info[1]:
            if self._with_tracebacks:
                return f"{text}\n{self.formatException(record.exc_info)}"
            text += f": {record.exc_info[1]!r} (-v shows where)"
        return text


def _message_of(record: logging.LogRecord) -> str:
    """Return a message that names our flags; what a rule logs, say, keeps its words."""
    text, args = with_flags(str(record.msg)), record.args
    if isinstance(args, tuple):
        args = tuple(with_flags(str(one)) if isinstance(one, StartError) else one for one in args)
    return text % args if args else text


def cancel_on_signals(*, hangup: bool = False) -> None:
    """Cancel the current task on Ctrl+C and SIGTERM."""
    import asyncio  # most commands need no event loop

    us = asyncio.current_task()
    assert us
    on_signals(asyncio.get_running_loop(), us.cancel, hangup=hangup)


def on_signals(
    loop: AbstractEventLoop, leave: Callable[[], object], *, hangup: bool = False
) -> None:
    """Call ``leave`` on Ctrl+C and SIGTERM, instead of the previous handler.

    ``hangup``: on SIGHUP too, unless it is ignored in this process.
    """
    numbers: list[signal.Signals] = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and hangup and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        try:
            loop.add_signal_handler(number, leave)
        except NotImplementedError:  # event loops on Windows take none
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave))
