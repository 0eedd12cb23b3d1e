"""What matching may cost. Whoever names a tool is not asked to be kind.

Each name has its own steps: a long list of costly names takes nothing away from the next one. No
accepted pattern needs more for a name that may be exposed (see ``cost``); for a longer text the
answer may be "too costly", never a wrong one.
"""

from __future__ import annotations

LONGEST_NAME = 256  # UTF-16 code units of a name that may be exposed
FOR_A_NAME = 1_000_000
FOR_A_TEXT = 40_000_000  # what a text within a message gets: it may be as long as the message


class TooCostly(Exception):
    """The match was given up."""


class Allowance:
    """``longest`` limits the steps, and the characters, of one text."""

    def __init__(self, *, longest: int = FOR_A_NAME) -> None:
        self.longest = longest
        self._left = 0

    def begin(self) -> None:
        """Grant all steps to the text that comes now."""
        self._left = self.longest

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self._left:
            raise TooCostly
        self._left -= steps
