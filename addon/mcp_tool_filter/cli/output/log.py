"""Log to stderr, one line each, for people."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from threading import RLock

from mcp_tool_filter.errors import safe_lines

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
        text = record.getMessage()
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
