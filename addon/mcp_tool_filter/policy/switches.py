"""Change deny patterns by a click: hide one tool, expose another.

>>> from mcp_tool_filter.policy.patterns import parse_pattern
>>> names = ["delete_file", "delete_user", "read_file"]
>>> switched([parse_pattern("^delete_")], names, hide=["read_file"], show=["delete_user"])
['^delete_file$', '^read_file$']
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mcp_tool_filter.policy.exact import deny_for
from mcp_tool_filter.policy.patterns import Pattern

NOTHING = "(?!)"
"""Matches no name: to deny nothing on purpose."""


def switched(
    deny: Sequence[Pattern], names: Sequence[str], hide: Collection[str], show: Collection[str]
) -> list[str]:
    """Return deny patterns that also hide and expose these tools, and change no other of ``names``.

    A pattern that matches a tool to expose is replaced by one for the other tools that it matches.
    If no tool remains to hide, we keep a pattern that hides none, because an empty list is an
    error.
    """
    patterns: list[str] = []
    hidden: set[str] = set()
    for pattern in deny:
        if pattern.text == NOTHING:
            continue
        matched = [name for name in names if pattern.matches(name)]
        kept = [name for name in matched if name not in show]
        if len(kept) == len(matched):
            patterns.append(pattern.regex)
        elif kept:
            patterns.append(deny_for(kept, names))
        hidden.update(kept)
    if more := [name for name in names if name in hide and name not in hidden]:
        patterns.append(deny_for(more, names))
    return patterns or ([NOTHING] if deny else [])
