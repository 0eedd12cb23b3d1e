"""The alphabet of one pattern: characters that the pattern cannot tell apart share one letter.

>>> alphabet = Alphabet([((97, 122),), ((97, 97),)])
>>> [alphabet.letters[char] for char in "azA"]
[1, 2, 0]
>>> bin(alphabet.mask(((97, 122),)))
'0b110'
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from mcp_tool_filter.jsregex.charset import LAST_UNIT, CharSet


class _Letters(dict[str, int]):
    """The letter of each character, looked up once: there are at most 65,536."""

    def __init__(self, cuts: list[int]) -> None:
        self._cuts = cuts

    def __missing__(self, char: str) -> int:
        letter = self[char] = bisect_right(self._cuts, ord(char))
        return letter


class Alphabet:
    def __init__(self, sets: Iterable[CharSet]) -> None:
        edges = {edge for chars in sets for low, high in chars for edge in (low, high + 1)}
        self._cuts = sorted(edges - {0, LAST_UNIT + 1})
        self.size = len(self._cuts) + 1
        self.letters = _Letters(self._cuts)

    def read(self, text: str) -> Sequence[int]:
        """Return which letter each character is."""
        table = self._ascii
        if table is not None and text.isascii():  # most long texts are; a hundred times as fast
            return text.encode().translate(table)
        return [self.letters[char] for char in text]

    @cached_property
    def _ascii(self) -> bytes | None:
        letters = [self.letters[chr(code)] for code in range(128)]
        return bytes([*letters, *bytes(128)]) if max(letters) < 256 else None

    def mask(self, chars: CharSet) -> int:
        """Return the letters of one of the sets, as the bits of a number."""
        bits = 0
        for low, high in chars:
            first, last = bisect_right(self._cuts, low), bisect_right(self._cuts, high)
            bits |= (2 << last) - (1 << first)
        return bits


def bits_of(number: int) -> list[int]:
    """Return which bits of a number are set, the lowest first."""
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]
