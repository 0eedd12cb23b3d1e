"""Find where the long values of a message end: a large message consists mostly of a few of them.

>>> raw = b'{"id":1,"result":{"content":"%s"}}' % (b"x" * 100_000)
>>> sorted(find_ends(raw, 128).items())
[(0, 100032), (17, 100031), (28, 100030)]

If ends are found, the whole message is known to be JSON within the allowed depth. For an unusual
message no ends are found, and it is read as usual.

``ExactDepth`` limits how deep a JSON reader written in C may nest, to an exact number of levels.
Such a reader checks its nesting only against the interpreter's recursion limit, which is far from
ours and shared by all calls in C. So we first use up the rest of that limit, and then call the
reader. ``isinstance`` does this at almost no cost: it recurses once for each tuple within a tuple,
and the innermost element is a class that calls the reader.

>>> from msgspec import Raw
>>> from msgspec.json import Decoder
>>> reader = ExactDepth(Decoder(dict[str, Raw]).decode, 3)
>>> [bytes(one["a"]) for one in [reader.read(memoryview(b'{"a":[[1]]}'))] if one]
[b'[[1]]']
>>> reader.read(memoryview(b'{"a":[[[1]]]}')) is None
True

Before each read we check that one more level would be refused: fewer levels are left where C code
called Python, and more elsewhere.

``MemberReader`` finds an object's members and their places without building any value:

>>> written = memoryview(b'{"a": [1, 2], "b": {}}')
>>> members = MemberReader().within(3).read(written)
>>> spans_of(members, written)
{'a': (6, 12), 'b': (19, 21)}

We use msgspec, because skipping values is many times as fast as building them. It refuses all that
we refuse, except for invalid UTF-8, a byte order mark, and depth; the caller checks the first two.
(It also refuses half a surrogate pair, which we accept.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.protocol.limits import MOST_PARTS

if TYPE_CHECKING:
    from msgspec import Raw


_MOST_LEVELS = 50_000  # if an interpreter allows more, we cannot use this trick
_SPARE = 20  # more levels than our own call of the reader needs
_MOST_CHANGES = 200


class ExactDepth[Read]:
    """Reads JSON objects that nest at most so many levels, including their own."""

    def __init__(self, read: Callable[[memoryview | bytes], Read], most: int) -> None:
        self._read = read
        self._too_deep = _nested_arrays(most + 1), _nested_objects(most + 1)
        self._levels: Any = _Bottom  # a tuple in a tuple in a tuple…
        for _ in range(self._room() - most - _SPARE):
            self._levels = (self._levels,)

    def read(self, written: memoryview) -> Read | None:
        """Return what the reader returns; None if the object is too deep or we cannot tell.

        Raises what the reader raises.
        """
        call = _Call(self, written)
        try:
            for _ in range(_MOST_CHANGES):
                if isinstance(call, self._levels):
                    break
                self._levels = (self._levels,)  # too many levels were left
        except RecursionError:
            return None
        return call.found

    def read_here(self, call: _Call[Read]) -> bool:
        """Read with the limit used up; return False if more levels are left than we allow."""
        if not (self._refuses(self._too_deep[0]) and self._refuses(self._too_deep[1])):
            return False
        for found in map(self._read, (call.written,)):  # see _refuses
            call.found = found
        return True

    def _room(self) -> int:
        """Return how many levels the reader could read now."""
        room, refused = 0, _MOST_LEVELS
        while refused - room > 1:
            levels = (room + refused) // 2
            if self._refuses(_nested_arrays(levels)):
                refused = levels
            else:
                room = levels
        return room

    def _refuses(self, written: bytes) -> bool:
        try:
            # A direct call may or may not cost Python a level, and that may change after some
            # calls. A call through map() always costs the same.
            for _ in map(self._read, (written,)):
                return False
        except RecursionError:
            return True
        raise AssertionError("map() calls the function once")


class _Call[Read]:
    def __init__(self, reader: ExactDepth[Read], written: memoryview) -> None:
        self.reader = reader
        self.written = written
        self.found: Read | None = None


class _AsksUs(type):
    def __instancecheck__(cls, call: Any) -> bool:
        return bool(call.reader.read_here(call))


class _Bottom(metaclass=_AsksUs):
    pass


def _nested_arrays(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"1" + b"]" * (levels - 1) + b"}"


def _nested_objects(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


_KEY = re.compile(rb'[ \t\n\r]*+"([^"\\]*+)"[ \t\n\r]*+:[ \t\n\r]*+')
_AFTER_VALUE = re.compile(rb"[ \t\n\r]*+([,}])")

type Span = tuple[int, int]


class MemberReader:
    """Reads members with msgspec.

    Raises ImportError without it, and ValueError if the text is not a JSON object.
    """

    def __init__(self) -> None:
        from msgspec import Raw
        from msgspec.json import Decoder

        self.members_of = Decoder(dict[str, Raw]).decode
        self._within: dict[int, ExactDepth[dict[str, Raw]]] = {}

    def within(self, most: int) -> ExactDepth[dict[str, Raw]]:
        """Return a reader of objects that nest at most so many levels."""
        if most not in self._within:
            self._within[most] = ExactDepth(self.members_of, most)
        return self._within[most]


@lru_cache(maxsize=1)
def member_reader() -> MemberReader | None:
    """Return the reader, or None without msgspec. (Imported late: a start does not need it.)"""
    try:
        return MemberReader()
    except ImportError:
        return None


def spans_of(members: Mapping[str, Raw], written: memoryview) -> dict[str, Span] | None:
    """Return the span of each value; None if a key occurs twice or has escapes, or if there are
    more than any message of ours may have.

    (If a key occurs twice, the reader keeps only the last value, so the spans do not add up to the
    whole text and we return None.)
    """
    if len(members) > MOST_PARTS:
        return None
    spans: dict[str, Span] = {}
    at, after = 1, b","
    for key, value in members.items():
        name = _KEY.match(written, at)
        if after != b"," or name is None or name[1] != key.encode():
            return None
        spans[key] = span = name.end(), name.end() + memoryview(value).nbytes
        next_one = _AFTER_VALUE.match(written, span[1])
        if next_one is None:
            return None
        at, after = next_one.end(), next_one[1]
    return spans if after == b"}" and at == len(written) else None


_LONG = 64 * 1024  # bytes
_OPENED = ("result", "params", "error")
_BEGINNING = re.compile(rb"[ \t\n\r]*+(?=\{)")


def find_ends(raw: bytes, depth: int) -> Mapping[int, int]:
    """Return the end of each long value by its beginning. (Both are counted in characters.)"""
    reader = member_reader()
    if reader is None:
        return {}
    begun = _BEGINNING.match(raw)
    if begun is None:
        return {}
    try:
        spans = list(_long_spans(reader, raw, begun.end(), depth))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return {}
    return dict(spans) if raw.isascii() else dict(_in_characters(raw, spans))


def _long_spans(reader: MemberReader, raw: bytes, start: int, depth: int) -> Iterator[Span]:
    members = reader.within(depth).read(memoryview(raw)[start:])
    if members is None:  # too deep
        return
    end = raw.rfind(b"}") + 1  # the read succeeded, so only space follows
    yield start, end
    spans = spans_of(members, memoryview(raw)[start:end]) or {}
    for key, span in _placed(spans, start):
        yield span
        part = memoryview(raw)[slice(*span)]
        if key in _OPENED and raw.startswith(b"{", span[0]):
            inner = spans_of(reader.members_of(part), part) or {}
            yield from (span for _, span in _placed(inner, span[0]))


def _placed(spans: Mapping[str, Span], offset: int) -> Iterator[tuple[str, Span]]:
    for key, (start, end) in spans.items():
        if end - start >= _LONG:
            yield key, (start + offset, end + offset)


def _in_characters(raw: bytes, spans: list[Span]) -> Iterator[Span]:
    """Count characters instead of bytes."""
    characters = {}
    at = count = 0
    for place in sorted({place for span in spans for place in span}):
        count += len(raw[at:place].decode())
        at, characters[place] = place, count
    for start, end in spans:
        yield characters[start], characters[end]
