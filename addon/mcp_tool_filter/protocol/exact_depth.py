"""Limit how deep a JSON reader written in C may nest, to an exact number of levels.

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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
