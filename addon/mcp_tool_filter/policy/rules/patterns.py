"""The patterns of rules: as those of deny and allow, but they meet texts of any length."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mcp_tool_filter.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.allowance import FOR_A_TEXT, Allowance, TooCostly
from mcp_tool_filter.jsregex.ambiguity import is_safe
from mcp_tool_filter.jsregex.literal import required_text
from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.names import NotJavaScript
from mcp_tool_filter.jsregex.spans import Finder
from mcp_tool_filter.jsregex.syntax import Regex, parse_regex

_LONG = 256  # characters


class PatternGivenUp(Exception):
    """To search this text would take too long."""


@dataclass(frozen=True)
class RulePattern:
    text: str
    _regex: Regex = field(repr=False, compare=False)

    @cached_property
    def required(self) -> str:
        """A text that must stand in whatever the pattern matches; empty if none is known."""
        return "" if self._regex.ignore_case else required_text(self._regex.root)

    def is_in(self, text: str) -> bool:
        """Tell whether the pattern is found in a text. Raises PatternGivenUp."""
        if len(text) > _LONG and self.required not in text:
            return False  # found out in a fraction of the time
        try:
            return self._matcher.search(text)
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    def find(self, units: str) -> list[tuple[int, int]]:
        """Return where the pattern is found in UTF-16 code units. Raises PatternGivenUp."""
        try:
            return self._finder.find(units)
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(self._regex, Allowance(longest=FOR_A_TEXT))

    @cached_property
    def _finder(self) -> Finder:
        return Finder(self._regex)


def parse_rule_pattern(text: str) -> RulePattern:
    """Check a pattern. Raises InvalidPattern or UnsafePattern."""
    try:
        regex = parse_regex(text)
    except NotJavaScript as error:
        raise InvalidPattern(text) from error
    if not is_safe(regex.root):
        raise UnsafePattern(text)
    return RulePattern(text, regex)
