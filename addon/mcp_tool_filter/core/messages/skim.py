"""Say how deep JSON nests and where its long values end, without building any value.

How deep JSON nests is counted exactly, in time that grows linearly with its length:

>>> nests_deeper('[{"a":"[[["}]', 0, 13, 2), nests_deeper('[{"a":[]}]', 0, 10, 2)
(False, True)

A large message consists mostly of a few long values:

>>> raw = b'{"id":1,"result":{"content":"%s"}}' % (b"x" * 100_000)
>>> sorted(find_ends(raw, 128).items())
[(0, 100032), (17, 100031), (28, 100030)]

If ends are found, the whole message is known to be JSON within the allowed depth. For an unusual
message no ends are found, and it is read as usual.

``MemberReader`` finds the members of an object, and checks that it is JSON:

>>> raw = b'{"a": [[1]], "b": {}}'
>>> members = MemberReader(3).read(raw, 0, len(raw))
>>> spans_of(members, memoryview(raw))
{'a': (6, 11), 'b': (18, 20)}
>>> MemberReader(2).read(raw, 0, len(raw)) is None
True

It uses msgspec, because skipping values is many times as fast as building them. msgspec refuses all
that we refuse, except for invalid UTF-8, a byte order mark, and depth; the caller checks the first
two. (It also refuses half a surrogate pair, which we accept.)

msgspec checks its nesting only against the interpreter's recursion limit, which is far from ours
and shared by all calls in C. So we first use up the rest of that limit, and then call msgspec.
``isinstance`` does this at almost no cost: it recurses once for each tuple within a tuple, and the
innermost element is a class that calls msgspec. Before each read we check that one more level would
be refused: fewer levels are left where C code called Python, and more elsewhere.

From Python 3.14 on, C code is limited by the bytes of its stack: no number of levels uses that up,
and we count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.core.messages.limits import MOST_PARTS

if TYPE_CHECKING:
    from msgspec import Raw


_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")  # one level in, one level out
_CHUNK = 64 * 1024  # bytes


def nests_deeper(text: str, start: int, end: int, most: int) -> bool:
    """Tell whether a part of a JSON text nests more than ``most`` levels."""
    if not opens_more(text, ("[", "{"), start, end, most):
        return False
    return _exceeds(text[start:end].encode(), most)


def _exceeds(raw: bytes, most: int) -> bool:
    quotes_only = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    structure = quotes_only.translate(_ONE_KIND, _NO_STRUCTURE)
    pieces = structure.replace(b'""', b"").split(b'"')  # most strings hold no bracket
    return _levels_exceed(b"".join(pieces[::2]), most)  # every second piece is a string


def _levels_exceed(brackets: bytes, most: int) -> bool:
    """Tell whether brackets, all of one kind, nest more than ``most`` levels."""
    brackets += b"]" * (brackets.count(b"[") - brackets.count(b"]"))
    # Most containers contain no others. Without these innermost ones there is exactly one level
    # less, and removing them is a hundred times as fast as counting.
    is_shrinking = True
    while is_shrinking and most > 0:
        fewer = brackets.replace(b"[]", b"")
        is_shrinking = 2 * len(fewer) < len(brackets)
        brackets, most = fewer, most - (len(fewer) < len(brackets))
    depth = 0
    for at in range(0, len(brackets), _CHUNK):
        steps = memoryview(brackets[at : at + _CHUNK].translate(_STEPS)).cast("b")
        levels = list(accumulate(steps, initial=depth))
        if max(levels) > most:
            return True
        depth = levels[-1]
    return False


def opens_more[Text: (str, bytes)](
    text: Text, opening: tuple[Text, Text], start: int, end: int, most: int
) -> bool:
    """Tell whether there are more than ``most`` brackets. (Counting all takes 25 times as long.)"""
    for bracket in opening:
        at = text.find(bracket, start, end)
        while at >= 0:
            most -= 1
            if most < 0:
                return True
            at = text.find(bracket, at + 1, end)
    return False


_LEVELS_ARE_LIMITED = sys.version_info < (3, 14)
_MOST_LEVELS = 50_000  # if an interpreter allows more, we cannot use this trick
_SPARE = 20  # more levels than our own call of the reader needs
_MOST_CHANGES = 200
_COUNTED = 128 * 1024  # bytes; in fewer, counting brackets is quick


class MemberReader:
    """Reads the members of JSON objects that nest at most so many levels, including their own."""

    def __init__(self, most: int) -> None:
        """Raises ImportError without msgspec."""
        from msgspec import Raw
        from msgspec.json import Decoder

        self.members_of = Decoder(dict[str, Raw]).decode  # of any depth
        self._most = most
        self._too_deep = _nested(most), b'{"a":' * (most + 1) + b"1" + b"}" * (most + 1)
        self._levels: Any = _Bottom  # a tuple in a tuple in a tuple…
        for _ in range(self._room() - most - _SPARE if _LEVELS_ARE_LIMITED else 0):
            self._levels = (self._levels,)

    def read(self, raw: bytes, start: int, end: int) -> Mapping[str, Raw] | None:
        """Return the members of an object; None if it is too deep or we cannot tell.

        Raises ValueError if it is no JSON object.
        """
        written = memoryview(raw)[start:end]
        if len(raw) <= _COUNTED and not opens_more(raw, (b"[", b"{"), start, end, self._most):
            return self.members_of(written)
        if not _LEVELS_ARE_LIMITED:
            return None if _exceeds(raw[start:end], self._most) else self.members_of(written)
        call = _Call(self, written)
        try:
            for _ in range(_MOST_CHANGES):
                if isinstance(call, self._levels):
                    break
                self._levels = (self._levels,)  # too many levels were left
        except RecursionError:
            return None
        return call.found

    def read_once(self, raw: bytes, start: int, end: int) -> Mapping[str, Raw] | None:
        """Do the same; None also if a key occurs twice, or is not written plainly."""
        members = self.read(raw, start, end)
        is_plain = members is not None and spans_of(members, memoryview(raw)[start:end]) is not None
        return members if is_plain else None

    def read_here(self, call: _Call) -> bool:
        """Read with the limit used up; return False if more levels are left than we allow."""
        arrays, objects = self._too_deep
        if not (self._refuses(arrays) and self._refuses(objects)):
            return False
        for found in map(self.members_of, (call.written,)):  # see _refuses
            call.found = found
        return True

    def _room(self) -> int:
        """Return how many levels msgspec could read now."""
        room, refused = 0, _MOST_LEVELS
        while refused - room > 1:
            levels = (room + refused) // 2
            if self._refuses(_nested(levels - 1)):
                refused = levels
            else:
                room = levels
        return room

    def _refuses(self, written: bytes) -> bool:
        try:
            # A direct call may or may not cost Python a level, and that may change after some
            # calls. A call through map() always costs the same.
            for _ in map(self.members_of, (written,)):
                return False
        except RecursionError:
            return True
        raise AssertionError("map() calls the function once")


class _Call:
    """What the innermost ``isinstance`` reads, and what it finds."""

    def __init__(self, reader: MemberReader, written: memoryview) -> None:
        self.reader = reader
        self.written = written
        self.found: Mapping[str, Raw] | None = None


class _AsksUs(type):
    def __instancecheck__(cls, call: Any) -> bool:
        return bool(call.reader.read_here(call))


class _Bottom(metaclass=_AsksUs):
    pass


def _nested(levels: int) -> bytes:
    """Return an object with so many arrays in one another."""
    return b'{"a":' + b"[" * levels + b"1" + b"]" * levels + b"}"


@lru_cache(maxsize=8)
def member_reader(most: int) -> MemberReader | None:
    """Return the reader, or None without msgspec. (Imported late: a start does not need it.)"""
    try:
        return MemberReader(most)
    except ImportError:
        return None


_KEY = re.compile(rb'[ \t\n\r]*+"([^"\\]*+)"[ \t\n\r]*+:[ \t\n\r]*+')
_AFTER_VALUE = re.compile(rb"[ \t\n\r]*+([,}])")

type Span = tuple[int, int]


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


_LONG = 8 * 1024  # bytes
_OPENED = ("result", "params", "error")
_BEGINNING = re.compile(rb"[ \t\n\r]*+(?=\{)")


def find_ends(raw: bytes, depth: int) -> Mapping[int, int]:
    """Return the end of each long value by its beginning. (Both are counted in characters.)"""
    reader, begun = member_reader(depth), _BEGINNING.match(raw)
    if reader is None or begun is None:
        return {}
    try:
        spans = list(_long_spans(reader, raw, begun.end()))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return {}
    if raw.isascii():
        return dict(spans)
    characters = {}
    at = count = 0
    for place in sorted(set(chain.from_iterable(spans))):
        count += len(raw[at:place].decode())
        at, characters[place] = place, count
    return {characters[start]: characters[end] for start, end in spans}


def _long_spans(reader: MemberReader, raw: bytes, start: int) -> Iterator[Span]:
    members = reader.read(raw, start, len(raw))
    if members is None:  # too deep
        return
    end = raw.rfind(b"}") + 1  # the read succeeded, so only space follows
    yield start, end
    whole = memoryview(raw)
    spans = spans_of(members, whole[start:end]) or {}
    for key, (begin, past) in _long_ones(spans, start):
        yield begin, past
        if key in _OPENED and raw.startswith(b"{", begin):
            part = whole[begin:past]
            inner = spans_of(reader.members_of(part), part) or {}
            yield from (span for _, span in _long_ones(inner, begin))


def _long_ones(spans: Mapping[str, Span], offset: int) -> Iterator[tuple[str, Span]]:
    for key, (start, end) in spans.items():
        if end - start >= _LONG:
            yield key, (start + offset, end + offset)
