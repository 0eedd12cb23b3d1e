"""A text that every match of a pattern must contain.

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> [required_text(parse_regex(text).root) for text in (r"^/etc/.*\\.key$", "a|b", "x+yz")]
['/etc/', '', 'yz']

Searching for it is much faster than matching, and most texts do not contain it.
"""

from __future__ import annotations

from mcp_tool_filter.jsregex.tree import Edge, Group, Node, Sequence, Unit


def required_text(root: Node) -> str:
    """Return the longest such text that is easy to determine; empty if there is none."""
    runs = [""]
    for node in _in_line(root):
        if isinstance(node, Unit) and (char := _only_char(node)):
            runs[-1] += char
        elif not isinstance(node, Edge):
            runs.append("")
    return max(runs, key=len)


def _in_line(node: Node) -> list[Node]:
    if isinstance(node, Group):
        return _in_line(node.body)
    if isinstance(node, Sequence):
        return [inner for item in node.items for inner in _in_line(item)]
    return [node]


def _only_char(unit: Unit) -> str:
    """Return the character of a set that has one ASCII character, else an empty text."""
    if len(unit.chars) == 1 and unit.chars[0][0] == unit.chars[0][1] < 128:
        return chr(unit.chars[0][0])
    return ""
