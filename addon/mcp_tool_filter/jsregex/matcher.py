r"""Search a name for a pattern, in the cheapest way that is exact for that pattern.

That is Python's ``re`` if the name is short and ``re`` is safe for the pattern. Otherwise a pattern
that refers back to a group is matched by backtracking, and any other in one pass.

A finder finds where a pattern matches, in order to replace what it matches:

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> PatternFinder(parse_regex(r"sk-\w+|\d{4}")).find("a sk-abc and 12345")
[(2, 8), (13, 17)]

One pass from the end of the text finds every place where a match begins. Only at these places do we
match as JavaScript does, to learn where the match ends. So a text without a match costs one pass,
however long it is.

There may be a text that every match of a pattern must contain:

>>> from mcp_tool_filter.jsregex.syntax import parse_regex
>>> [required_text(parse_regex(text).root) for text in (r"^/etc/.*\.key$", "a|b", "x+yz")]
['/etc/', '', 'yz']

Searching for it is much faster than matching, and most texts do not contain it.
"""

from __future__ import annotations

import re
from collections import abc
from functools import cached_property

from mcp_tool_filter.jsregex.automaton import Alphabet
from mcp_tool_filter.jsregex.charset import WORD, fold_text, to_units
from mcp_tool_filter.jsregex.cost import (
    FOR_A_MESSAGE,
    FOR_A_NAME,
    LONGEST_NAME,
    MOST_STEPS,
    Allowance,
    Budget,
    TooCostly,
    most_scan_steps,
    most_steps,
)
from mcp_tool_filter.jsregex.program import (
    LONGEST_COUNT,
    Program,
    captures_of,
    code_size,
    compile_program,
)
from mcp_tool_filter.jsregex.run import Backtracker, Scan
from mcp_tool_filter.jsregex.syntax import Regex
from mcp_tool_filter.jsregex.translate import render_python
from mcp_tool_filter.jsregex.tree import (
    Edge,
    Group,
    Node,
    Reference,
    Sequence,
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

    def _places(self, units: str) -> abc.Sequence[int]:
        if self._starts is None:
            return range(len(units))
        letters = self._alphabet.read(units)
        return [at for at, begins in enumerate(self._starts.table(letters)) if begins]


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
