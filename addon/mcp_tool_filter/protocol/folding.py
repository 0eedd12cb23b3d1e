"""Fold keys that a careless reader could confuse: alike keys fold to the same text."""

from __future__ import annotations

import re
import unicodedata

from mcp_tool_filter.protocol.limits import MOST_SEARCHED

_ESCAPED_SPACE = re.compile(r"\\[bfnrt]")
_HANGUL_AND_HAN = ((0xAC00, 0xD7A3), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x323AF))


def fold(key: str) -> str:
    """Return the key without differences in case, width, NUL and space, which some readers ignore.

    >>> fold("Param\u017f"), fold("method\\0x"), fold(" NAME"), fold("na\\u200bme")
    ('params', 'method', 'name', 'name')
    """
    plain = key if key.isprintable() else key.split("\0", 1)[0]
    if plain.isascii() and plain.isprintable():
        return plain.strip().lower()
    return plain.translate(_FOLDED)


class _Folded(dict[int, int | str | None]):
    """The folded form of each character. (Normalizing a whole text can take quadratic time.)"""

    def __missing__(self, code: int) -> int | str | None:
        if any(first <= code <= last for first, last in _HANGUL_AND_HAN):
            return code  # too many to keep
        char = chr(code)
        if unicodedata.category(char)[0] in "CZM":
            return None
        # Java takes a dotless i for an i.
        plain = unicodedata.normalize("NFKC", char).casefold().replace("\u0131", "i")
        folded = "".join(one for one in plain if unicodedata.category(one)[0] not in "CZM")
        self[code] = folded
        return folded


_FOLDED = _Folded()


def bare_json(json_text: str) -> str | None:
    """Return the JSON with all keys folded; None if it has escapes or characters beyond ASCII.

    (It also drops underscores, which some readers ignore in a key.)
    """
    if "\\u" in json_text or "\x7f" in json_text or not json_text.isascii():
        return None
    return _ESCAPED_SPACE.sub("", json_text).replace("_", "").lower()


def is_too_long_to_search(json_text: str) -> bool:
    """Tell whether JSON has so many objects and members that looking at each takes too long."""
    if len(json_text) < 2 * MOST_SEARCHED:
        return False
    return json_text.count("{") + json_text.count(":") > MOST_SEARCHED
