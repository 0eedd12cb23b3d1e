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
from io import BytesIO

from mcp_tool_filter.protocol.limits import MEBIBYTE

# CRLF, LF or CR ends a line, two in a row an event. If the second is a CRLF, its LF is left to the
# blank lines that follow: it may not have come yet.
_EVENT_END = re.compile(rb"\n[\r\n]|\r\r")
_LINE_END = re.compile(rb"\r\n?|\n")
# Blank lines, and comments that are plain words: they keep a quiet stream alive, often without a
# blank line, and are not held back.
_NOTHING = re.compile(rb'(?:(?::[^\r\n"\\\x0b\x0c\x1c-\x1e\x80-\xff]*+)?[\r\n]++)++')
_COMMENT_END = re.compile(rb"[\r\n]")
_FEW = 8  # lines; from one to the next is a hundred times as quick where they are long
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
        self._pending = BytesIO()  # what has begun to come; it gives its bytes without a copy
        self._last = b""  # the last of that: as much as a blank line can be begun with
        self._begun = False
        self._end: re.Pattern[bytes] | None = None  # of what has begun to come
        self._skipped: bytes | None = None  # how it began, if it is too long
        self._has_cr = False

    @property
    def pending(self) -> int:
        """Bytes of an event that has begun."""
        return self._pending.tell()

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """Take the next chunk; return the events it completes, oldest first."""
        if b"\r" in chunk:
            self._has_cr = True
        self._pending.write(chunk)
        events: list[Event | Oversized] = []
        if self._goes_on(chunk):
            self._last = (self._last + chunk[-3:])[-3:]
        else:
            events = self._cut(len(self._last) + len(chunk))
        if self._skipped is not None or self._pending.tell() > self._max_pending:
            self._let_go()
        return events

    def finish(self) -> bytes:
        """Return what stands after the last event: by the standard, nobody reads it."""
        rest = self._pending.getvalue() if self._skipped is None else b""
        self._hold(b"")
        return rest

    def _goes_on(self, chunk: bytes) -> bool:
        """Tell whether what has begun to come does not end here: all the rest is not looked at."""
        if self._end is None:
            return False
        if b"\n" not in chunk and b"\r" not in chunk:
            return True
        return self._search(self._end, self._last + chunk, 0) is None

    def _cut(self, new: int) -> list[Event | Oversized]:
        """Take off the events that have come. None ends before the last ``new`` bytes."""
        waiting = self._pending.getvalue()
        events: list[Event | Oversized] = []
        start, searched = 0, len(waiting) - new
        while (end := self._find_end(waiting, start, searched)) is not None:
            events.append(self._take(waiting[start:end]))
            start = searched = end
        self._hold(waiting[start:])
        return events

    def _hold(self, rest: bytes) -> None:
        self._pending = BytesIO()
        self._pending.write(rest)
        self._last = rest[-3:]

    def _let_go(self) -> None:
        """Hold no more of what is too long than tells how it began and where it ends."""
        if self._skipped is None:
            self._skipped = self._beginning_of(self._pending.getvalue())
        self._hold(self._last)

    def _find_end(self, waiting: bytes, start: int, searched: int) -> int | None:
        """Return where that ends which begins at ``start``: a BOM, blank lines, an event."""
        if not self._begun:
            if len(waiting) < len(_BOM) and _BOM.startswith(waiting):
                return None
            self._begun = True
            if waiting.startswith(_BOM):
                return len(_BOM)
        if start == len(waiting):
            return None
        if self._end is None:
            if nothing := _NOTHING.match(waiting, start, start + self._max_pending):
                self._end = _NOTHING
                return nothing.end()
            self._end = _COMMENT_END if waiting.startswith(b":", start) else _EVENT_END
        return self._search(self._end, waiting, searched)

    def _search(self, end: re.Pattern[bytes], waiting: bytes, at: int) -> int | None:
        if end is _EVENT_END and not self._has_cr:
            return _find_blank_line(waiting, at)
        found = end.search(waiting, at)
        return found.end() if found else None

    def _take(self, raw: bytes) -> Event | Oversized:
        skipped, end = self._skipped, self._end
        self._skipped = self._end = None
        if end is _NOTHING:
            return Event(raw, None)
        if skipped is None and len(raw) > self._max_pending:
            skipped = self._beginning_of(raw)
        return parse_event(raw) if skipped is None else Oversized(skipped)

    def _beginning_of(self, raw: bytes) -> bytes:
        return raw[: min(_KEPT, self._max_pending)]


def _find_blank_line(waiting: bytes, at: int) -> int | None:
    """Return where the first one ends, if every line ends with LF."""
    for _ in range(_FEW):
        at = waiting.find(b"\n", at) + 1
        if at == 0:
            return None
        if waiting.startswith(b"\n", at):
            return at + 1
    end = waiting.find(b"\n\n", at)
    return None if end < 0 else end + 2


def parse_event(raw: bytes) -> Event:
    """Read one event, the blank line at its end included."""
    head, last = _cut_off_last_data(raw)
    data: list[bytes] = []
    others: list[bytes] = []
    name = b""
    for line in head.splitlines():
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
    data += last
    return Event(raw, b"\n".join(data) if data else None, name, b"\n".join(others))


def _cut_off_last_data(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Return an event's lines before its data, and these, if one line of them is all that follows.

    So it mostly is, and may be megabytes that need not be searched for further lines.
    """
    start = raw.find(b"data: ")
    if start < 0 or raw[start - 1 : start] not in (b"", b"\n", b"\r"):
        return raw, []
    line_feed = raw.find(b"\n", start)
    end = raw.find(b"\r", start, line_feed if line_feed >= 0 else len(raw))
    end = end if end >= 0 else line_feed if line_feed >= 0 else len(raw)
    if len(raw) - end > 4 or raw[end:].strip(b"\r\n"):
        return raw, []
    return raw[:start], [raw[start + 6 : end]]


def render_event(data: bytes) -> bytes:
    """Write a message as an event of its own, without an id, so that nobody resumes from it."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def with_data(event: Event, data: bytes) -> bytes:
    """Return the event's bytes with other data; its further fields stay as they came."""
    lines = event.raw.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if _is_data(line))
    newline = lines[first].removeprefix(lines[first].rstrip(b"\r\n")) or b"\n"
    written = [b"data: " + part + newline for part in data.split(b"\n")]
    kept = [line for line in lines[first + 1 :] if not _is_data(line)]
    return b"".join([*lines[:first], *written, *kept])


def _is_data(line: bytes) -> bool:
    return line.startswith(b"data:") or line.rstrip(b"\r\n") == b"data"
