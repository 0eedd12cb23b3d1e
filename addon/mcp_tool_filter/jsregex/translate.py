r"""Some trees as patterns for Python's ``re``, which is fast but backtracks, and holds the lock.

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> render_python(parse_regex(r"^(?!read_)\w+$").root)
'\\A(?!read_)[0-9A-Z_a-z]+\\Z'

Only what ``re`` matches exactly as JavaScript does, and in a time that grows with the text's
length alone: at most one loop (the search itself is one), no look-behind, no reference. Sets are
spelt out, since ``\w``, ``\s``, ``.`` and ``$`` mean other things in Python.
"""

from __future__ import annotations

import re

from mcp_tool_filter.jsregex.ambiguity import count_loops, count_ways
from mcp_tool_filter.jsregex.charset import EVERYTHING, LAST_UNIT, CharSet, invert
from mcp_tool_filter.jsregex.tree import (
    Choice,
    Edge,
    Group,
    Look,
    Node,
    Reference,
    Repeat,
    Sequence,
    Unit,
    anchored,
    walk,
)

_FEW_WAYS = 100
_IS_WORD = "[0-9A-Z_a-z]"
_EDGES = {
    Edge.START: r"\A",
    Edge.END: r"\Z",
    Edge.WORD: rf"(?:(?<={_IS_WORD})(?!{_IS_WORD})|(?<!{_IS_WORD})(?={_IS_WORD}))",
    Edge.NOT_WORD: rf"(?:(?<={_IS_WORD})(?={_IS_WORD})|(?<!{_IS_WORD})(?!{_IS_WORD}))",
}


def render_python(root: Node) -> str | None:
    """Return the pattern for ``re``, or None where that would be wrong or slow."""
    if any(
        isinstance(node, Reference) or (isinstance(node, Look) and node.behind)
        for node in walk(root)
    ):
        return None
    root = _without_optional_ends(root)
    loops = count_loops(root)
    if loops is None or loops + (not anchored(root)) > 1 or count_ways(root) > _FEW_WAYS:
        return None
    return _render(root)


def _without_optional_ends(root: Node) -> Node:
    """Return ``x`` for ``.*x.*``: whether a text has an x in it does not depend on the ends.

    What is repeated at an end need be there only as often as it must; a search that may begin
    and end anywhere finds the rest.
    """
    if isinstance(root, Choice):
        return Choice(tuple(_without_optional_ends(option) for option in root.options))
    items = list(root.items) if isinstance(root, Sequence) else [root]
    for end in (0, -1):
        while items:
            item = items[end]
            if not isinstance(item, Repeat) or item.most == item.least:
                break
            items[end] = Repeat(item.body, item.least, item.least)
            if item.least:
                break
            del items[end]
    return Sequence(tuple(items))


def _render(node: Node) -> str:
    match node:
        case Unit(chars):
            return _render_set(chars)
        case Sequence(items):
            return "".join([_render(item) for item in items])
        case Choice(options):
            return f"(?:{'|'.join([_render(option) for option in options])})"
        case Repeat(body):
            return _render_repeat(node)
        case Group(body):
            return f"(?:{_render(body)})"
        case Look(body, _, negated):
            return f"(?{'!' if negated else '='}{_render(body)})"
        case Edge():
            return _EDGES[node]
        case Reference():
            raise AssertionError("render_python refuses references")


def _render_repeat(node: Repeat) -> str:
    body = _render(node.body)
    if not isinstance(node.body, Unit):
        body = f"(?:{body})"
    count = f"{{{node.least},{'' if node.most is None else node.most}}}"
    return body + {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(count, count)


def _render_set(chars: CharSet) -> str:
    if not chars:
        return "(?!)"
    if chars == EVERYTHING:
        return r"[\s\S]"
    if chars[-1][1] == LAST_UNIT:  # re compiles a negated set twenty times as fast as a long one
        return f"[^{_render_ranges(invert(chars))}]"
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return re.escape(chr(chars[0][0]))
    return f"[{_render_ranges(chars)}]"


def _render_ranges(chars: CharSet) -> str:
    return "".join([_render_range(low, high) for low, high in chars])


def _render_range(low: int, high: int) -> str:
    return _render_char(low) if low == high else f"{_render_char(low)}-{_render_char(high)}"


def _render_char(code: int) -> str:
    char = chr(code)
    plain = char == "_" or (char.isascii() and char.isalnum())
    return char if plain else f"\\u{code:04x}"
