"""Let a reader that is written in C nest so many levels, and not one more.

Such a reader counts levels only against a limit of the interpreter, which is far from ours, and
which all calls in C share. So we use up the rest of that limit first, and call the reader then.
``isinstance`` does this at almost no cost: it takes one level for each tuple within a tuple, and at
the bottom stands a class that calls the reader.

>>> from msgspec import Raw
>>> from msgspec.json import Decoder
>>> reader = ExactDepth(Decoder(dict[str, Raw]).decode, 3)
>>> [bytes(one["a"]) for one in [reader.read(memoryview(b'{"a":[[1]]}'))] if one]
[b'[[1]]']
>>> reader.read(memoryview(b'{"a":[[[1]]]}')) is None
True

Before each reading we check that one more level would be refused: there is less room where Python
was called from C, and more elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_LEVELS = 50_000  # that an interpreter allows, for us to make use of it
_SPARE = 20  # more levels than we need ourselves to call the reader
_MOST_CHANGES = 200


class ExactDepth[Read]:
    """Reads JSON objects that nest at most so many levels, their own included."""

    def __init__(self, read: Callable[[memoryview | bytes], Read], most: int) -> None:
        self._read = read
        self._too_deep = _nested_arrays(most + 1), _nested_objects(most + 1)
        self._levels: Any = _Bottom  # a tuple in a tuple in a tuple…
        for _ in range(self._room() - most - _SPARE):
            self._levels = (self._levels,)

    def read(self, written: memoryview) -> Read | None:
        """Return what is read; None if it is too deep, or if we cannot tell.

        Raises what the reader raises if it cannot read it.
        """
        call = _Call(self, written)
        try:
            for _ in range(_MOST_CHANGES):
                if isinstance(call, self._levels):
                    break
                self._levels = (self._levels,)  # there was too much room
        except RecursionError:
            return None
        return call.found

    def read_here(self, call: _Call[Read]) -> bool:
        """At the bottom: read, unless there is room for more levels than we allow."""
        if not (self._refuses(self._too_deep[0]) and self._refuses(self._too_deep[1])):
            return False
        for found in map(self._read, (call.written,)):  # see _refuses
            call.found = found
        return True

    def _room(self) -> int:
        """Return how many levels could be read now."""
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
            # Python may call a function with a level of its own or without one, and may change that
            # after some calls. map() always calls it in the same way.
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
