r"""Server-sent events, cut from a byte stream.

A response body arrives in chunks that end anywhere, also between a CR and its LF. An event
keeps the bytes it was made of, so that one we agree with leaves exactly as it came; what stands
between events (comments, blank lines) comes as an event without data:

>>> [(event.raw, event.data) for event in EventParser().feed(b"data: one\n\n: ping\n\nda")]
[(b'data: one\n\n', b'one'), (b': ping\n\n', None)]

An event that grows past its limit is let go, and said so; the ones behind it are read on:

>>> parser = EventParser(max_pending=9)
>>> [parser.feed(chunk) for chunk in (b"data: 12345678", b"9", b"\n\ndata: x\n\n")][-1]
[Oversized(), Event(raw=b'data: x\n\n', data=b'x', name=b'')]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mcp_tool_filter.protocol.limits import MEBIBYTE

# CRLF, LF or CR ends a line, two in a row an event. If the second is a CRLF, its LF is left to the
# blank lines that follow: it may not have come yet.
_EVENT_END = re.compile(rb"\n[\r\n]|\r\r")
_LINE_END = re.compile(rb"\r\n?|\n")
# Blank lines, and comments that are plain words: they keep a quiet stream alive, often without a
# blank line, and are not held back.
_NOTHING = re.compile(rb'(?:(?::[^\r\n"\\\x0b\x0c\x1c-\x1e\x80-\xff]*+)?[\r\n]++)++')
_COMMENT_END = re.compile(rb"[\r\n]")
_KEPT = 4096  # bytes of what is too long: its id may be among them
_BOM = b"\xef\xbb\xbf"
# Where httpx (like str.splitlines) ends a line and the standard does not.
_OTHER_LINE_ENDS = re.compile(rb"[\x0b\x0c\x1c-\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9]")


@dataclass(frozen=True, slots=True)
class Event:
    raw: bytes
    data: bytes | None
    """The data lines, joined by LF; None if there are none."""
    name: bytes = b""
    """The ``event`` field; empty means ``message``."""

    others: bytes = field(default=b"", repr=False, compare=False)
    """All its lines but those of its data."""

    @property
    def is_message(self) -> bool:
        return self.name in (b"", b"message")

    def hides_a_line(self) -> bool:
        """Tell whether another reader could find a data line where we see none."""
        if _OTHER_LINE_ENDS.search(self.others):
            return True
        lines = _LINE_END.split(self.others) if self.others.count(b"event") > 1 else []
        return len({line for line in lines if line.startswith(b"event")}) > 1


@dataclass(frozen=True, slots=True)
class Oversized:
    """Stands where an event was longer than we hold."""

    beginning: bytes = field(default=b"", repr=False)


class EventParser:
    """One for each response body. Wherever that is cut, it yields the same.

    (But for comments and blank lines between events: they come as soon as they are there.)
    """

    def __init__(self, *, max_pending: int = 20 * MEBIBYTE) -> None:
        self._max_pending = max_pending
        self._buffer = bytearray()
        self._begun = False
        self._end: re.Pattern[bytes] | None = None  # of what has begun to come
        self._searched = 0  # it does not end before this offset
        self._skipped: bytes | None = None  # how it began, if it is too long
        self._has_cr = False

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """Take the next chunk; return the events it completes, oldest first."""
        self._buffer += chunk
        self._has_cr = self._has_cr or b"\r" in chunk
        events: list[Event | Oversized] = []
        start = 0
        while (end := self._find_end(start)) is not None:
            with memoryview(self._buffer) as buffer:  # to slice the bytearray would copy twice
                raw = bytes(buffer[start:end])
            events.append(self._take(raw))
            self._searched = start = end
        del self._buffer[:start]
        if self._skipped is None and len(self._buffer) > self._max_pending:
            self._skipped = self._beginning_of(self._buffer)
        if self._skipped is not None:
            del self._buffer[:-3]  # as much as a blank line can be begun with
        self._searched = max(0, len(self._buffer) - 3)
        return events

    def finish(self) -> bytes:
        """Return what stands after the last event: by the standard, nobody reads it."""
        rest = bytes(self._buffer) if self._skipped is None else b""
        self._buffer.clear()
        return rest

    def _find_end(self, start: int) -> int | None:
        """Return where that ends which begins at ``start``: a BOM, blank lines, an event."""
        if not self._begun:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
                return None
            self._begun = True
            if self._buffer.startswith(_BOM):
                return len(_BOM)
        if start == len(self._buffer):
            return None
        if self._end is None:
            if nothing := _NOTHING.match(self._buffer, start, start + self._max_pending):
                self._end = _NOTHING
                return nothing.end()
            self._end = _COMMENT_END if self._buffer[start : start + 1] == b":" else _EVENT_END
        searched = max(start, self._searched)
        if self._end is _EVENT_END and not self._has_cr:  # ten times as quick
            blank_line = self._buffer.find(b"\n\n", searched)
            return blank_line + 2 if blank_line >= 0 else None
        end = self._end.search(self._buffer, searched)
        return end.end() if end else None

    def _take(self, raw: bytes) -> Event | Oversized:
        skipped, end = self._skipped, self._end
        self._skipped = self._end = None
        if end is _NOTHING:
            return Event(raw, None)
        if skipped is None and len(raw) > self._max_pending:
            skipped = self._beginning_of(raw)
        return parse_event(raw) if skipped is None else Oversized(skipped)

    def _beginning_of(self, raw: bytes | bytearray) -> bytes:
        return bytes(raw[: min(_KEPT, self._max_pending)])


def parse_event(raw: bytes) -> Event:
    """Read one event, the blank line at its end included."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Event(raw, raw[6:-2])  # what most servers send, and all of a large result
    data: list[bytes] = []
    others: list[bytes] = []
    name = b""
    for line in _LINE_END.split(raw) if b"\r" in raw else raw.split(b"\n"):
        if line.startswith(b"data: "):  # not cut in two, for it may be megabytes
            data.append(line[6:])
            continue
        key, _, value = line.partition(b":")
        if key == b"data":
            data.append(value)
            continue
        others.append(line)
        if key == b"event":
            name = value.removeprefix(b" ")
    return Event(raw, b"\n".join(data) if data else None, name, b"\n".join(others))


def render_event(data: bytes) -> bytes:
    """Write a message as an event of its own, without an id, so that nobody resumes from it."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def with_data(event: Event, data: bytes) -> bytes:
    """Return the event's bytes with other data; its further fields stay as they came."""
    lines = _lines_with_ends(event.raw)
    first = next(number for number, line in enumerate(lines) if _is_data(line))
    newline = lines[first].removeprefix(lines[first].rstrip(b"\r\n")) or b"\n"
    written = [b"data: " + part + newline for part in data.split(b"\n")]
    kept = [line for line in lines[first + 1 :] if not _is_data(line)]
    return b"".join([*lines[:first], *written, *kept])


def _is_data(line: bytes) -> bool:
    return line.startswith(b"data:") or line.rstrip(b"\r\n") == b"data"


def _lines_with_ends(raw: bytes) -> list[bytes]:
    ends = [match.end() for match in _LINE_END.finditer(raw)]
    return [raw[start:end] for start, end in zip([0, *ends], [*ends, len(raw)], strict=True)]
