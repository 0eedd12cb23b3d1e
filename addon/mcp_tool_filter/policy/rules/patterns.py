"""The patterns of rules: like those of deny and allow, but for texts of any length."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from mcp_tool_filter.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.jsregex.cost import FOR_A_MESSAGE, Allowance, Budget, TooCostly
from mcp_tool_filter.jsregex.matcher import Matcher, PatternFinder, required_text
from mcp_tool_filter.jsregex.safety import is_safe
from mcp_tool_filter.jsregex.syntax import NotJavaScript, Regex, parse_regex

_LONG = 256  # characters
_FOUND_AT_ONCE = 256  # characters in which we can find a known text in the time of one step


class PatternGivenUp(Exception):
    """Searching this text would take too long."""


@dataclass(frozen=True)
class RulePattern:
    text: str
    ignore_case: bool
    _regex: Regex = field(repr=False, compare=False)

    @cached_property
    def required(self) -> str:
        """A text that every match contains; empty if none is known."""
        return "" if self._regex.ignore_case else required_text(self._regex.root)

    def is_in(self, text: str, budget: Budget) -> bool:
        """Tell whether the pattern is found in a text. Raises PatternGivenUp."""
        try:
            if len(text) <= _LONG:
                return self._matcher.search(text, budget)
            key = self.text, self.ignore_case, text
            known = budget.known.get(key)
            if known is None:
                known = budget.known[key] = self._is_in_long(text, budget)
            return known
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    def _is_in_long(self, text: str, budget: Budget) -> bool:
        # Searching for the required text takes a fraction of the time.
        return self._may_be_in(text, budget) and self._matcher.search(text, budget)

    def _may_be_in(self, text: str, budget: Budget) -> bool:
        budget.spend(len(text) // _FOUND_AT_ONCE)
        return self.required in text

    def find(self, units: str, budget: Budget) -> list[tuple[int, int]]:
        """Return where the pattern is found in UTF-16 code units. Raises PatternGivenUp."""
        try:
            return self._finder.find(units, budget) if self._may_be_in(units, budget) else []
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    def spend(self, steps: int, budget: Budget) -> None:
        """Count the steps of preparing a text for the search. Raises PatternGivenUp."""
        try:
            budget.spend(steps)
        except TooCostly:
            raise PatternGivenUp(self.text) from None

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(self._regex, Allowance(longest=FOR_A_MESSAGE))

    @cached_property
    def _finder(self) -> PatternFinder:
        return PatternFinder(self._regex)


def parse_rule_pattern(text: str, *, ignore_case: bool = False) -> RulePattern:
    """Check a pattern. Raises InvalidPattern or UnsafePattern."""
    try:
        regex = parse_regex(text, ignore_case=ignore_case)
    except NotJavaScript as error:
        raise InvalidPattern(text) from error
    if not is_safe(regex.root):
        raise UnsafePattern(text)
    return RulePattern(text, ignore_case, regex)
