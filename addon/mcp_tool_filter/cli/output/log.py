"""What is said on stderr: one line each, for people."""

from __future__ import annotations

import logging
import os
import sys
from threading import RLock

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
_lock = RLock()
_status = ""
_ALL = 2
_CONNECTIONS = "mitmproxy.proxy.server"  # says "client connect" and the like
_CHATTERING = ("asyncio", "hpack", "quic", "tornado")


def log_to_stderr(verbosity: int, *, is_watched: bool = False) -> None:
    """Show what is logged, as much of it as was asked for; mitmweb (``is_watched``) shows more."""
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
    """Write a text for people where it disturbs no pipe."""
    with _lock:
        sys.stderr.write(f"{_clear()}{text}\n{_drawn(_status)}")
        sys.stderr.flush()


def set_status(text: str) -> None:
    """Show a line below all others, in place of the one before; an empty one takes it away."""
    global _status
    with _lock:
        if text != _status:
            sys.stderr.write(f"{_clear()}{_drawn(text)}")
            sys.stderr.flush()
        _status = text


def _clear() -> str:
    """Return what takes the status away; not every terminal knows escape sequences."""
    if not _status:
        return ""
    if os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
        return f"\r{' ' * len(_fitting(_status))}\r"
    return "\r\x1b[J"  # to the end of the screen


def _drawn(status: str) -> str:
    """Return a status with the cursor at its beginning.

    A terminal that gets narrower may break the row into several: what is to be cleared then is all
    that comes after the cursor, and nothing that stands before it.
    """
    return f"{_fitting(status)}\r" if status else ""


def _fitting(status: str) -> str:
    """Cut a status to one row."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal
        return status
    return status[: max(1, columns - 1)] if columns else status


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_said", False):  # on stderr, also with --quiet
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
        text = record.getMessage()
        if record.levelno >= logging.WARNING and not text.startswith(("Error:", "Warning:")):
            text = f"{'Error' if record.levelno >= logging.ERROR else 'Warning'}: {text}"
        if record.exc_info and record.exc_info[1]:
            if self._with_tracebacks:
                return f"{text}\n{self.formatException(record.exc_info)}"
            text += f": {record.exc_info[1]!r} (-v shows where)"
        return text
