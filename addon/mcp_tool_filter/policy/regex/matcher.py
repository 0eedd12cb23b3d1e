"""Searches a name for a pattern, in the cheapest way that is exact for that pattern.

A pattern that refers back to a group is matched by backtracking, any other in one pass.
"""

from __future__ import annotations

from mcp_tool_filter.policy.regex.allowance import FOR_A_NAME, Allowance, TooCostly
from mcp_tool_filter.policy.regex.alphabet import Alphabet
from mcp_tool_filter.policy.regex.backtrack import Backtracker
from mcp_tool_filter.policy.regex.charset import WORD, to_units
from mcp_tool_filter.policy.regex.program import captures_of, compile_program
from mcp_tool_filter.policy.regex.scan import Scan
from mcp_tool_filter.policy.regex.syntax import Regex
from mcp_tool_filter.policy.regex.tree import Reference, Unit, anchored, walk


class Matcher:
    def __init__(self, regex: Regex) -> None:
        root = regex.root
        self._refers_back = any(isinstance(node, Reference) for node in walk(root))
        self._alphabet = Alphabet(
            [WORD, *(node.chars for node in walk(root) if isinstance(node, Unit))]
        )
        self._allowance = Allowance()
        self._program = compile_program(root, for_scan=not self._refers_back, groups=regex.groups)
        self._scan = self._backtracker = None
        if self._refers_back:
            self._backtracker = Backtracker(
                self._program,
                self._alphabet,
                self._allowance,
                captures=captures_of(regex.groups),
                anchored=anchored(root),
            )
        else:
            self._scan = Scan(
                self._program,
                self._alphabet,
                self._allowance,
                anchored=anchored(root),
                stop_at_match=True,
            )

    def search(self, name: str) -> bool:
        """Say whether the pattern matches anywhere. Raises TooCostly."""
        self._allowance.begin()
        if len(name) > FOR_A_NAME:
            raise TooCostly
        text = to_units(name)
        if self._program.exact_up_to is not None and len(text) > self._program.exact_up_to:
            raise TooCostly
        if self._backtracker:
            return self._backtracker.search(text)
        assert self._scan is not None
        return self._scan.search([self._alphabet.letters[char] for char in text])
