r"""Render a glob as a JavaScript regex that must fit the whole name.

>>> render_glob("write_*"), render_glob("*.{md,txt}"), render_glob("file_[!a-c]?")
('^write_', '\\.(?:md|txt)$', '^file_[^a-c][^]$')
"""

from __future__ import annotations

import re

from jsregex.syntax import NotJavaScript

# A class, an escaped character, or any one character.
_GLOB_PIECE = re.compile(r"\[[!^]?+(?:\][^\]]*|[^\]]+)\]|\\.|.", re.DOTALL)


def render_glob(glob: str) -> str:
    """Return the equivalent regex. Raises NotJavaScript for braces that do not match."""
    parts: list[str] = []
    depth = 0
    for piece in _GLOB_PIECE.findall(glob):
        if piece == "{":
            depth += 1
            parts.append("(?:")
        elif piece == "}" and depth:
            depth -= 1
            parts.append(")")
        elif piece == "," and depth:
            parts.append("|")
        else:
            parts.append(_render_piece(piece))
    if depth:
        raise NotJavaScript("a brace of the glob is not closed")
    return _without_ends("".join(["^", *parts, "$"]))


def _render_piece(piece: str) -> str:
    if piece == "*":
        return "[^]*"
    if piece == "?":
        return "[^]"
    if len(piece) > 2:  # a class
        negated = piece[1] in "!^"
        inside = (
            piece[1 + negated : -1].replace("\\", "\\\\").replace("]", "\\]").replace("^", "\\^")
        )
        return f"[{'^' if negated else ''}{inside}]"
    char = piece[-1]
    return char if char.isalnum() or char in "_-" or not char.isascii() else f"\\{char}"


def _without_ends(regex: str) -> str:
    """Return ``a`` for ``^[^]*a[^]*$``, which means the same: a regex may match anywhere."""
    while regex.startswith("^[^]*"):
        regex = regex.removeprefix("^[^]*")
        regex = f"^{regex}" if regex.startswith("[^]*") else regex
    while regex.endswith("[^]*$"):
        regex = regex.removesuffix("[^]*$")
        regex = f"{regex}$" if regex.endswith("[^]*") else regex
    return regex
