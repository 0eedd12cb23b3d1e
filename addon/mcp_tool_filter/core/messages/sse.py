r"""Split a byte stream into server-sent events.

A response body arrives in chunks that end anywhere, even between a CR and its LF. An event keeps
its original bytes, so that an event we accept is forwarded unchanged. Comments and blank lines
between events become events without data:

>>> [(event.raw, event.data) for event in EventParser().feed(b"data: one\n\n: ping\n\nda")]
[(b'data: one\n\n', b'one'), (b': ping\n\n', None)]

An event longer than the limit is dropped and reported; the events after it are read as usual:

>>> parser = EventParser(max_pending=9)
>>> [parser.feed(chunk) for chunk in (b"data: 12345678", b"9", b"\n\ndata: x\n\n")][-1]
[Oversized(), Event(raw=b'data: x\n\n', data=b'x', name=b'')]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from io import BytesIO

from mcp_tool_filter.core.messages.limits import MEBIBYTE, frozen

# CRLF, LF or CR ends a line, and two line ends in a row end an event. If the second is a CRLF, its
# LF counts as a following blank line, because it may not have arrived yet.
_EVENT_END = re.compile(rb"\n[\r\n]|\r\r")
_LINE_END = re.compile(rb"\r\n?|\n")
# Blank lines and plain comments. They keep a quiet stream alive, often without a blank line after
# them, so we forward them at once.
_NOTHING = re.compile(rb'(?:(?::[^\r\n"\\\x0b\x0c\x1c-\x1e\x80-\xff]*+)?[\r\n])++')
_COMMENT_END = re.compile(rb"[\r\n]")
_FEW = 8  # lines; finding one line end after the other is a hundred times as fast if lines are long
_KEPT = 4096  # bytes of an event that is too long: they may contain its id
_BOM = b"\xef\xbb\xbf"
# Here httpx ends a line, as str.splitlines does, but the standard does not.
_OTHER_LINE_ENDS = re.compile(rb"[\x0b\x0c\x1c-\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9]")


@frozen
class Event:
    raw: bytes
    data: bytes | None
    """The data lines, joined by LF; None if there are none."""
    name: bytes = b""
    """The ``event`` field; empty means ``message``."""

    others: bytes = field(default=b"", repr=False, compare=False)
    """All its lines except the data lines."""

    @property
    def is_message(self) -> bool:
        return self.name in (b"", b"message")

    def hides_a_line(self) -> bool:
        """Tell whether another reader could see a data line that we do not see."""
        if _OTHER_LINE_ENDS.search(self.others):
            return True
        lines = _LINE_END.split(self.others) if self.others.count(b"event") > 1 else []
        return len({line for line in lines if line.startswith(b"event")}) > 1


@frozen
class Oversized:
    """Replaces an event that was longer than we hold."""

    beginning: bytes = field(default=b"", repr=False)


@dataclass(slots=True, eq=False, kw_only=True)
class EventParser:
    """Use one parser per response body. Chunk boundaries do not change the events.

    (Except for comments and blank lines between events, which are returned as soon as they arrive.)
    """

    max_pending: int = 20 * MEBIBYTE
    pending: int = field(default=0, init=False)
    """Bytes of the unfinished event."""
    _unfinished: BytesIO = field(default_factory=BytesIO, init=False)  # getvalue() does not copy
    _last: bytes = field(default=b"", init=False)  # its last bytes, which may begin a blank line
    _begun: bool = field(default=False, init=False)
    _end: re.Pattern[bytes] | None = field(default=None, init=False)  # what ends it
    _skipped: bytes | None = field(default=None, init=False)  # the beginning of one too long
    _has_cr: bool = field(default=False, init=False)

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """Take the next chunk; return the events it completes, oldest first."""
        if b"\r" in chunk:
            self._has_cr = True
        self._unfinished.write(chunk)
        self.pending += len(chunk)
        events: list[Event | Oversized] = []
        if self._goes_on(chunk):
            self._last = (self._last + chunk[-3:])[-3:]
        else:
            events = self._cut(len(self._last) + len(chunk))
        if self._skipped is not None or self._unfinished.tell() > self.max_pending:
            self._let_go()
        return events

    def finish(self) -> bytes:
        """Return the bytes after the last event, which readers ignore by the standard."""
        rest = self._unfinished.getvalue() if self._skipped is None else b""
        self._hold(b"")
        return rest

    def _goes_on(self, chunk: bytes) -> bool:
        """Tell quickly whether the unfinished event does not end in this chunk."""
        if self._end is None:
            return False
        if b"\n" not in chunk and b"\r" not in chunk:
            return True
        return self._search(self._end, self._last + chunk, 0) is None

    def _cut(self, new: int) -> list[Event | Oversized]:
        """Take the finished events. None of them ends before the last ``new`` bytes."""
        waiting = self._unfinished.getvalue()
        events: list[Event | Oversized] = []
        start, searched = 0, len(waiting) - new
        while (end := self._find_end(waiting, start, searched)) is not None:
            events.append(self._take(waiting[start:end]))
            start = searched = end
        self._hold(waiting[start:])
        return events

    def _hold(self, rest: bytes) -> None:
        self._unfinished = BytesIO()
        self._unfinished.write(rest)
        self.pending = len(rest)
        self._last = rest[-3:]

    def _let_go(self) -> None:
        """Drop a too long event, except its beginning and the bytes needed to find its end."""
        if self._skipped is None:
            self._skipped = self._beginning_of(self._unfinished.getvalue())
        self._hold(self._last)

    def _find_end(self, waiting: bytes, start: int, searched: int) -> int | None:
        """Return the end of the BOM, the blank lines or the event that begins at ``start``."""
        if not self._begun:
            if len(waiting) < len(_BOM) and _BOM.startswith(waiting):
                return None
            self._begun = True
            if waiting.startswith(_BOM):
                return len(_BOM)
        if start == len(waiting):
            return None
        if self._end is None:
            if nothing := _NOTHING.match(waiting, start, start + self.max_pending):
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
        if skipped is None and len(raw) > self.max_pending:
            skipped = self._beginning_of(raw)
        return parse_event(raw) if skipped is None else Oversized(skipped)

    def _beginning_of(self, raw: bytes) -> bytes:
        return raw[: min(_KEPT, self.max_pending)]


def _find_blank_line(waiting: bytes, at: int) -> int | None:
    """Return the end of the first blank line, if every line ends with LF."""
    for _ in range(_FEW):
        at = waiting.find(b"\n", at) + 1
        if at == 0:
            return None
        if waiting.startswith(b"\n", at):
            return at + 1
    end = waiting.find(b"\n\n", at)
    return None if end < 0 else end + 2


def parse_event(raw: bytes) -> Event:
    """Parse one event, including the blank line at its end."""
    head, last = _cut_off_last_data(raw)
    data: list[bytes] = []
    others: list[bytes] = []
    name = b""
    for line in head.splitlines():
        if line.startswith(b"data: "):  # no partition(): it would copy what may be megabytes
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
    """Split off the data if it is one line at the end of the event; else return all lines and no
    data.

    Most events are like that, and we need not search megabytes for further lines.
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
    """Render a message as an event without an id, so that no client resumes from it."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def with_data(event: Event, data: bytes) -> bytes:
    """Return the event's bytes with other data; all other fields stay unchanged."""
    lines = event.raw.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if _is_data(line))
    newline = lines[first].removeprefix(lines[first].rstrip(b"\r\n")) or b"\n"
    written = [b"data: " + part + newline for part in data.split(b"\n")]
    kept = [line for line in lines[first + 1 :] if not _is_data(line)]
    return b"".join([*lines[:first], *written, *kept])


def _is_data(line: bytes) -> bool:
    return line.startswith(b"data:") or line.rstrip(b"\r\n") == b"data"
