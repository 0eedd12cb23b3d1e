"""Search a name for a pattern, in the cheapest way that is exact for that pattern.

That is Python's ``re`` if the name is short and ``re`` is safe for the pattern. Otherwise a pattern
that refers back to a group is matched by backtracking, and any other in one pass.
"""

from __future__ import annotations

import re
from functools import cached_property

from mcp_tool_filter.jsregex.allowance import (
    FOR_A_NAME,
    LONGEST_NAME,
    Allowance,
    Budget,
    TooCostly,
)
from mcp_tool_filter.jsregex.alphabet import Alphabet
from mcp_tool_filter.jsregex.backtrack import Backtracker
from mcp_tool_filter.jsregex.case import fold_text
from mcp_tool_filter.jsregex.charset import WORD, to_units
from mcp_tool_filter.jsregex.cost import MOST_STEPS, most_scan_steps, most_steps
from mcp_tool_filter.jsregex.program import (
    LONGEST_COUNT,
    Program,
    captures_of,
    code_size,
    compile_program,
)
from mcp_tool_filter.jsregex.scan import Scan
from mcp_tool_filter.jsregex.syntax import Regex
from mcp_tool_filter.jsregex.translate import render_python
from mcp_tool_filter.jsregex.tree import (
    Node,
    Unit,
    anchored,
    groups_referred_to,
    walk,
    without_other_groups,
)

_PRICE_OF_REFERENCES = 16  # ``re`` takes longer for a pattern that refers back to a group


class Matcher:
    """Searches for one pattern. It builds its parts when needed: most never see a long name."""

    def __init__(self, regex: Regex, allowance: Allowance | None = None) -> None:
        self._regex = regex
        self._allowance = allowance or Allowance()

    def search(self, name: str, budget: Budget | None = None) -> bool:
        """Tell whether the pattern matches anywhere. Raises TooCostly.

        With a budget, its steps are spent.
        """
        if len(name) > self._allowance.longest:
            raise TooCostly
        text = fold_text(to_units(name)) if self._regex.ignore_case else to_units(name)
        if len(text) <= LONGEST_NAME and self._python and self._may_be_quick(budget):
            return self._python.search(text) is not None
        if budget is None:
            self._allowance.begin()
            return self._search_counted(text)
        self._allowance.begin(budget.steps)
        try:
            return self._search_counted(text)
        finally:
            budget.steps = self._allowance.left

    def _may_be_quick(self, budget: Budget | None) -> bool:
        return budget is None or budget.may_be_quick(
            _PRICE_OF_REFERENCES if self._refers_back else 1
        )

    def _search_counted(self, text: str) -> bool:
        limit = self._program.exact_up_to
        if limit is not None and len(text) > limit:
            raise TooCostly
        if self._refers_back:
            return self._backtracker.search(text)
        return self._scan.search(self._alphabet.read(text))

    def is_affordable(self) -> bool:
        """Tell whether every name that may be exposed can be judged within the allowance."""
        if self._python:
            return True
        if not self._refers_back:
            return self._is_scan_affordable()
        captures, is_anchored = captures_of(self._regex.groups), anchored(self._root)
        return most_steps(self._program, captures=captures, anchored=is_anchored) <= MOST_STEPS

    def _is_scan_affordable(self) -> bool:
        if 2 * LONGEST_NAME * code_size(self._root, longest=LONGEST_NAME) <= FOR_A_NAME:
            return True  # nearly every pattern, and no program was built
        is_anchored = anchored(self._root)
        return most_scan_steps(self._program, self._alphabet, anchored=is_anchored) <= FOR_A_NAME

    @cached_property
    def _python(self) -> re.Pattern[str] | None:
        source = render_python(self._root)
        return None if source is None else re.compile(source)

    @cached_property
    def _root(self) -> Node:
        kept = groups_referred_to(self._regex.root)
        return without_other_groups(self._regex.root, kept) if kept else self._regex.root

    @cached_property
    def _refers_back(self) -> bool:
        return bool(groups_referred_to(self._regex.root))

    @cached_property
    def _alphabet(self) -> Alphabet:
        units = [node.chars for node in walk(self._regex.root) if isinstance(node, Unit)]
        return Alphabet([WORD, *units])

    @cached_property
    def _program(self) -> Program:
        return compile_program(
            self._root,
            for_scan=not self._refers_back,
            groups=self._regex.groups,
            longest=LONGEST_NAME if self._allowance.longest == FOR_A_NAME else LONGEST_COUNT,
        )

    @cached_property
    def _backtracker(self) -> Backtracker:
        return Backtracker(
            self._program,
            self._alphabet,
            self._allowance,
            captures=captures_of(self._regex.groups),
            anchored=anchored(self._root),
            remembers=True,
        )

    @cached_property
    def _scan(self) -> Scan:
        return Scan(
            self._program,
            self._alphabet,
            self._allowance,
            anchored=anchored(self._root),
        )
