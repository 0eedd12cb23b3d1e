"""Upper and lower case as the flag ``i`` of JavaScript sees it (ECMA-262, Canonicalize).

Two characters are the same if their capitals are. A letter stays as it is if its capital has more
than one character, or if it is not ASCII and its capital is:

>>> fold_text("Delete_\u00df_\u017f"), fold_set(((97, 99), (95, 95)))
('DELETE_\u00df_\u017f', ((65, 67), (95, 95)))
"""

from __future__ import annotations

from functools import lru_cache

from mcp_tool_filter.jsregex.charset import CharSet, union

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
