r"""Sets of UTF-16 code units, the only characters that a JavaScript regex without flags knows.

A set is a tuple of inclusive ranges, sorted, with a gap between each and the next:

>>> union(DIGIT, single("a"))
((48, 57), (97, 97))
>>> invert(DIGIT)
((0, 47), (58, 65535))
>>> to_units("a😀") == "a\ud83d\ude00"
True
"""

from __future__ import annotations

from collections.abc import Iterable

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
