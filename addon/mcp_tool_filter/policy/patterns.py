r"""Deny and allow: JavaScript regexes, checked for sense and safety, matched as JavaScript does.

>>> [delete, archived] = [parse_pattern(text) for text in split_patterns("^delete_,_v[1,2]$")]
>>> delete.matches("delete_file"), archived.matches("report_v2")
(True, True)
>>> parse_pattern("(a+)+")
Traceback (most recent call last):
mcp_tool_filter.errors.UnsafePattern: Error: Unsafe regex pattern detected: "(a+)+"
Pattern could cause catastrophic backtracking

A pattern means what ``new RegExp(text).test(name)`` says in an engine of ES2024 (Node 20): it is
searched for anywhere, minds case, and sees UTF-16 code units. It is refused where JavaScript's
backtracking could blow up over it, although ours does not backtrack: the same pattern is likely
to be used elsewhere, and a pattern that nobody can follow guards nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mcp_tool_filter.errors import BlankPattern, InvalidGlob, InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.allowance import LONGEST_NAME, TooCostly
from mcp_tool_filter.jsregex.ambiguity import is_safe
from mcp_tool_filter.jsregex.globs import render_glob
from mcp_tool_filter.jsregex.hints import hint
from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.names import NotJavaScript
from mcp_tool_filter.jsregex.syntax import Regex, parse_regex

DENY_GLOB = "deny_glob"
MAX_NAME = LONGEST_NAME  # UTF-16 code units; a tool with a longer name is never exposed


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that may be used."""

    text: str
    """As it was typed."""
    option: str
    ignore_case: bool
    _matcher: Matcher = field(repr=False, compare=False)

    def matches(self, name: str) -> bool:
        """Say whether the name is one that the user meant; never slowly, however long it is.

        A name of up to MAX_NAME units is always judged exactly. On a longer one matching may be
        given up: then a deny pattern matches it, and an allow pattern does not.
        """
        try:
            return self._matcher.search(name)
        except TooCostly:
            return self.option != "allow"

    @property
    def hint(self) -> str | None:
        """What may have been meant instead, if the pattern is odd."""
        return None if self.option == DENY_GLOB else hint(self.text)


def parse_pattern(text: str, *, option: str = "deny", ignore_case: bool = False) -> Pattern:
    """Check a pattern. Raises InvalidPattern or UnsafePattern."""
    try:
        regex = parse_regex(text, ignore_case=ignore_case)
    except NotJavaScript as error:
        raise InvalidPattern(text, option=option, hint=hint(text)) from error
    if (matcher := _usable(regex)) is None:
        raise UnsafePattern(text, hint=hint(text))
    return Pattern(text, option, ignore_case, matcher)


def parse_glob(glob: str, *, ignore_case: bool = False) -> Pattern:
    """Check a glob, which the whole name must fit. Raises InvalidGlob or UnsafePattern."""
    try:
        regex = parse_regex(render_glob(glob), ignore_case=ignore_case)
    except NotJavaScript as error:
        raise InvalidGlob(glob, why=str(error).capitalize()) from error
    if (matcher := _usable(regex)) is None:
        raise UnsafePattern(glob)
    return Pattern(glob, DENY_GLOB, ignore_case, matcher)


def _usable(regex: Regex) -> Matcher | None:
    """Return the matcher, unless matching could take long."""
    matcher = Matcher(regex)
    return matcher if is_safe(regex.root) and matcher.is_affordable() else None


# An escaped character, braces or a class with all that is in them, or any one character.
_PIECE = re.compile(r"\\.|\{[^{}]*\}|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def split_patterns(value: str, *, option: str = "deny") -> list[str]:
    r"""Cut a value at its commas, but not within {}, [] or (), nor after a backslash.

    White space stays as typed: ``"a, b"`` is the two patterns ``"a"`` and ``" b"``. Raises
    InvalidPattern for a part that is empty, and BlankPattern for one of white space alone.

    >>> split_patterns(r"^a{1,2}$,[,],(?:b,c),d\,e")
    ['^a{1,2}$', '[,]', '(?:b,c)', 'd\\,e']
    """
    parts = [""]
    depth = 0
    for found in _PIECE.finditer(value):
        piece = found.group()
        if piece == "," and not depth:
            parts.append("")
            continue
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        parts[-1] += piece
    if "" in parts:
        raise InvalidPattern("", option=option)
    if blank := next((part for part in parts if part.isspace()), None):
        raise BlankPattern(blank, option=option)
    return parts
