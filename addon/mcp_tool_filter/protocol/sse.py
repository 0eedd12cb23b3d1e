r"""Server-sent events, cut from a byte stream.

A response body arrives in chunks that end anywhere, also between a CR and its LF. An event
keeps the bytes it was made of, so that one we agree with leaves exactly as it came:

>>> EventParser().feed(b"data: one\n\n: ping\n\nda")
[Event(raw=b'data: one\n\n', data=b'one', name=b''), Event(raw=b': ping\n\n', data=None, name=b'')]

An event that grows past its limit is let go, and said so; the ones behind it are read on:

>>> parser = EventParser(max_pending=8)
>>> [parser.feed(chunk) for chunk in (b"data: 12345678", b"9", b"\n\ndata: x\n\n")][-1]
[Oversized(), Event(raw=b'data: x\n\n', data=b'x', name=b'')]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_tool_filter.protocol.limits import MEBIBYTE

# CRLF, LF or CR ends a line; the atomic group (?>…) keeps a CRLF from being counted twice.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Comments keep a quiet stream alive, often without a blank line: they are not held back.
_COMMENTS = re.compile(rb"(?:\r\n|\n|\r)*(?::[^\r\n]*(?:\r\n|\n|\r))+")
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

    @property
    def is_message(self) -> bool:
        return self.name in (b"", b"message")

    def hides_a_line(self) -> bool:
        """Tell whether another reader could find a data line where we see none."""
        if not _OTHER_LINE_ENDS.search(self.raw) and self.raw.count(b"event") < 2:
            return False
        lines = _LINE_END.split(self.raw)
        names = {line for line in lines if line.startswith(b"event")}
        others = (line for line in lines if not _is_data(line))
        return len(names) > 1 or any(map(_OTHER_LINE_ENDS.search, others))


@dataclass(frozen=True, slots=True)
class Oversized:
    """Stands where an event was longer than we hold."""


class EventParser:
    """One for each response body."""

    def __init__(self, *, max_pending: int = 20 * MEBIBYTE) -> None:
        self._max_pending = max_pending
        self._buffer = bytearray()
        self._searched = 0  # no blank line ends before this offset
        self._skipping = False  # inside an event that was too long
        self._begun = False

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """Take the next chunk; return the events it completes, oldest first."""
        self._buffer += chunk
        events: list[Event | Oversized] = []
        done = 0
        while blank_line := _BLANK_LINE.search(self._buffer, max(done, self._searched)):
            events.append(self._take(bytes(self._buffer[done : blank_line.end()])))
            self._searched = done = blank_line.end()
        del self._buffer[:done]
        if not self._skipping and (comments := _COMMENTS.match(self._buffer)):
            events.append(Event(comments.group(), None))
            del self._buffer[: comments.end()]
        if len(self._buffer) > self._max_pending:
            self._skipping = True
        if self._skipping:
            del self._buffer[:-3]  # as much as a blank line can be begun with
        self._searched = max(0, len(self._buffer) - 3)
        return events

    def finish(self) -> bytes:
        """Return what stands after the last event: by the standard, nobody reads it."""
        rest = b"" if self._skipping else bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _take(self, raw: bytes) -> Event | Oversized:
        if self._skipping:
            self._skipping = False
            return Oversized()
        event = parse_event(raw.removeprefix(_BOM) if not self._begun else raw)
        if not self._begun:
            self._begun = True
            return Event(raw, event.data, event.name)
        return event


def parse_event(raw: bytes) -> Event:
    """Read one event, the blank line at its end included."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Event(raw, raw[6:-2])  # what most servers send, and all of a large result
    data: list[bytes] = []
    name = b""
    for line in _LINE_END.split(raw):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return Event(raw, b"\n".join(data) if data else None, name)


def render_event(data: bytes) -> bytes:
    """Write a message as an event of its own, without an id, so that nobody resumes from it."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def with_data(event: Event, data: bytes) -> bytes:
    """Return the event's bytes with other data; its further fields stay as they came."""
    lines = _lines_with_ends(event.raw)
    first = next(number for number, line in enumerate(lines) if _is_data(line))
    newline = lines[first].removeprefix(lines[first].rstrip(b"\r\n")) or b"\n"
    written = [b"data: " + part + newline for part in data.split(b"\n")]
    if lines[first].startswith(_BOM):
        written.insert(0, _BOM)
    kept = [line for line in lines[first + 1 :] if not _is_data(line)]
    return b"".join([*lines[:first], *written, *kept])


def _is_data(line: bytes) -> bool:
    field = line.removeprefix(_BOM)
    return field.startswith(b"data:") or _LINE_END.split(field, maxsplit=1)[0] == b"data"


def _lines_with_ends(raw: bytes) -> list[bytes]:
    ends = [match.end() for match in _LINE_END.finditer(raw)]
    return [raw[start:end] for start, end in zip([0, *ends], [*ends, len(raw)], strict=True)]
