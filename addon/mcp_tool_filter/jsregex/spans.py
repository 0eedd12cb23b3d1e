r"""Find where a pattern matches, in order to replace what it matches.

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> PatternFinder(parse_regex(r"sk-\w+|\d{4}")).find("a sk-abc and 12345")
[(2, 8), (13, 17)]

One pass from the end of the text finds every place where a match begins. Only at these places do we
match as JavaScript does, to learn where the match ends. So a text without a match costs one pass,
however long it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_tool_filter.jsregex.allowance import FOR_A_MESSAGE, Allowance, Budget, TooCostly
from mcp_tool_filter.jsregex.alphabet import Alphabet
from mcp_tool_filter.jsregex.backtrack import Backtracker
from mcp_tool_filter.jsregex.charset import WORD
from mcp_tool_filter.jsregex.program import captures_of, compile_program
from mcp_tool_filter.jsregex.scan import Scan
from mcp_tool_filter.jsregex.syntax import Regex
from mcp_tool_filter.jsregex.tree import Group, Reference, Unit, walk


class PatternFinder:
    """Finds the matches of one pattern."""

    def __init__(self, regex: Regex) -> None:
        self._allowance = Allowance(longest=FOR_A_MESSAGE)
        units = [node.chars for node in walk(regex.root) if isinstance(node, Unit)]
        self._alphabet = Alphabet([WORD, *units])
        whole = compile_program(Group(regex.root, 0), for_scan=False, groups=regex.groups)
        self._exact_up_to = whole.exact_up_to
        self._backtracker = Backtracker(
            whole, self._alphabet, self._allowance, captures=captures_of(regex.groups)
        )
        self._starts: Scan | None = None
        if not any(isinstance(node, Reference) for node in walk(regex.root)):
            backward = compile_program(regex.root, for_scan=True, backward=True)
            self._starts = Scan(backward, self._alphabet, self._allowance, tabulates=True)

    def find(self, units: str, budget: Budget | None = None) -> list[tuple[int, int]]:
        """Return where the matches begin and end, in UTF-16 code units. Raises TooCostly.

        With a budget, its steps are spent.
        """
        if self._exact_up_to is not None and len(units) > self._exact_up_to:
            raise TooCostly
        self._allowance.begin(budget.steps if budget else None)
        try:
            places = self._places(units)
            return list(self._backtracker.find(units, places)) if places else []
        finally:
            if budget:
                budget.steps = self._allowance.left

    def _places(self, units: str) -> Sequence[int]:
        if self._starts is None:
            return range(len(units))
        letters = self._alphabet.read(units)
        return [at for at, begins in enumerate(self._starts.table(letters)) if begins]
