r"""Sets of UTF-16 code units, the only characters that a JavaScript regex without flags knows.

A set is a tuple of inclusive ranges, sorted, with a gap between each and the next:

>>> union(DIGIT, single("a"))
((48, 57), (97, 97))
>>> invert(DIGIT)
((0, 47), (58, 65535))
>>> to_units("a😀") == "a\ud83d\ude00"
True

Upper and lower case as the flag ``i`` of JavaScript sees it (ECMA-262, Canonicalize).

Two characters are the same if their capitals are. A letter stays as it is if its capital has more
than one character, or if it is not ASCII and its capital is:

>>> fold_text("Delete_\u00df_\u017f") == "DELETE_\u00df_\u017f", fold_set(((97, 99), (95, 95)))
(True, ((65, 67), (95, 95)))
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

type CharSet = tuple[tuple[int, int], ...]

LAST_UNIT = 0xFFFF


def union(*sets: CharSet) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for parts in sets for part in parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def invert(chars: CharSet) -> CharSet:
    gaps = []
    start = 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST_UNIT:
        gaps.append((start, LAST_UNIT))
    return tuple(gaps)


def single(char: str) -> CharSet:
    return ((ord(char), ord(char)),)


def of_chars(chars: Iterable[str]) -> CharSet:
    return union(*(single(char) for char in chars))


def to_units(text: str) -> str:
    """Return the text with each astral character as the two surrogates JavaScript sees."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    raw = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(raw).cast("H")))


EVERYTHING: CharSet = ((0, LAST_UNIT),)
DIGIT: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: CharSet = union(  # ECMA-262, WhiteSpace and LineTerminator
    ((0x09, 0x0D), (0x2000, 0x200A)),
    of_chars(" \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
)
NO_LINE_END: CharSet = invert(of_chars("\n\r\u2028\u2029"))  # what a dot matches


_LAST_ASCII = 0x7F


def fold_text(units: str) -> str:
    """Return the text with each UTF-16 code unit as its capital."""
    if units.isascii():
        return units.upper()
    return "".join([chr(_fold(ord(char))) for char in units])


@lru_cache(maxsize=512)
def fold_set(chars: CharSet) -> CharSet:
    """Return the capitals of a set."""
    return union(*(_fold_range(low, high) for low, high in chars))


def _fold_range(low: int, high: int) -> CharSet:
    folded = sorted({_fold(code) for code in range(low, high + 1)})
    ranges: list[tuple[int, int]] = []
    for code in folded:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return tuple(ranges)


@lru_cache(maxsize=0x10000)
def _fold(code: int) -> int:
    capital = chr(code).upper()
    if len(capital) != 1 or ord(capital) > 0xFFFF:
        return code
    return code if code > _LAST_ASCII >= ord(capital) else ord(capital)
