r"""Render patterns for Python's ``re``: it is fast, but it backtracks and holds the GIL.

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> render_python(parse_regex(r"^(?!read_)\w+$").root)
'\\A(?!read_)[0-9A-Z_a-z]+\\Z'

We render only patterns that ``re`` matches exactly as JavaScript does, and quickly: at most one
loop (the search itself is one), or two if the pattern refers back to a group and is short; no
look-behind. Sets are spelt out, because ``\w``, ``\s``, ``.`` and ``$`` mean other things in
Python. A reference to a group without a capture matches the empty text:

>>> render_python(parse_regex(r"(?:(a)|b)\1(?!(c))\2").root)
'(?:(a)|b)(?(1)\\1)(?!(c))'
"""

from __future__ import annotations

import re

from mcp_tool_filter.jsregex.charset import EVERYTHING, LAST_UNIT, CharSet, invert
from mcp_tool_filter.jsregex.program import code_size
from mcp_tool_filter.jsregex.safety import count_loops, count_ways
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
    branches,
    groups_referred_to,
    least_length,
    walk,
)

_FEW_WAYS = 100
_FEW_STEPS = 120  # 256 x 256 / 2 times so many take 50 ms at most
_STEPS_OF_REFERENCE = 15
_IS_WORD = "[0-9A-Z_a-z]"
_EDGES = {
    Edge.START: r"\A",
    Edge.END: r"\Z",
    Edge.WORD: rf"(?:(?<={_IS_WORD})(?!{_IS_WORD})|(?<!{_IS_WORD})(?={_IS_WORD}))",
    Edge.NOT_WORD: rf"(?:(?<={_IS_WORD})(?={_IS_WORD})|(?<!{_IS_WORD})(?!{_IS_WORD}))",
}


def render_python(root: Node) -> str | None:
    """Return the pattern for ``re``, or None if ``re`` would be wrong or slow."""
    if any(isinstance(node, Look) and node.behind for node in walk(root)):
        return None
    if referred := groups_referred_to(root):
        return _render_with_references(root, referred)
    root = _without_optional_ends(root)
    loops = count_loops(root)
    if loops is None or loops + (not anchored(root)) > 1 or count_ways(root) > _FEW_WAYS:
        return None
    return _Renderer(frozenset()).render(root)


def _render_with_references(root: Node, referred: frozenset[int]) -> str | None:
    """Return the pattern, or None if captures would last longer in Python than in JavaScript.

    In JavaScript each round of a repetition forgets the captures of the round before, and an
    optional round must not be empty.
    """
    repeated = {
        group.number
        for repeat in branches(root)
        if isinstance(repeat, Repeat)
        if repeat.most not in (0, 1) or not least_length(repeat.body)
        for group in walk(repeat.body)
        if isinstance(group, Group)
    }
    if repeated & referred:
        return None
    loops = count_loops(root, over=(Unit, Reference))
    if loops is None or loops + (not anchored(root)) > 2:
        return None
    references = sum(isinstance(node, Reference) for node in walk(root))
    steps = count_ways(root) * (code_size(root) + _STEPS_OF_REFERENCE * references)
    if steps > _FEW_STEPS:
        return None
    return _Renderer(referred).render(root)


def _without_optional_ends(root: Node) -> Node:
    """Return ``x`` for ``.*x.*``: whether a text contains an x does not depend on the ends.

    A repetition at an end needs only its mandatory rounds, because a search may begin and end
    anywhere.
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


class _Renderer:
    """Renders from left to right, and knows which groups may have a capture at each point."""

    def __init__(self, referred: frozenset[int]) -> None:
        self._referred = referred
        self._names: dict[int, int] = {}  # Python's number of each closed group
        self._opened = 0

    def render(self, node: Node) -> str:
        match node:
            case Unit(chars):
                return _render_set(chars)
            case Sequence(items):
                return "".join([self.render(item) for item in items])
            case Choice(options):
                return f"(?:{'|'.join([self.render(option) for option in options])})"
            case Repeat():
                return self._render_repeat(node)
            case Group(body, number):
                return self._render_group(body, number)
            case Look(body, _, negated):
                return self._render_look(body, negated=negated)
            case Edge():
                return _EDGES[node]
            case Reference(number):
                name = self._names.get(number)
                return "" if name is None else f"(?({name})\\{name})"

    def _render_group(self, body: Node, number: int) -> str:
        if number not in self._referred:
            return f"(?:{self.render(body)})"
        self._opened += 1
        name = self._opened
        text = self.render(body)
        self._names[number] = name
        return f"({text})"

    def _render_look(self, body: Node, *, negated: bool) -> str:
        before = dict(self._names)
        text = self.render(body)
        if negated:  # after a negated look succeeds, its groups have no captures
            self._names = before
        return f"(?{'!' if negated else '='}{text})"

    def _render_repeat(self, node: Repeat) -> str:
        if node.most == 0:
            return ""  # its groups never capture anything
        body = self.render(node.body)
        if not isinstance(node.body, Unit):
            body = f"(?:{body})"
        count = f"{{{node.least},{'' if node.most is None else node.most}}}"
        lazy = "?" if node.lazy and self._referred else ""  # it matters in a look-ahead
        return body + {"{0,}": "*", "{1,}": "+", "{0,1}": "?"}.get(count, count) + lazy


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
