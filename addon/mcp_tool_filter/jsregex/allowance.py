"""What matching may cost. Whoever names a tool is not asked to be kind.

A name has so many steps to be judged in, and all names that a pattern meets have so many
together. Honest names need some hundred; a list made to be slow uses them up, and from then on
each name gets few. Where they do not suffice the answer is "too costly", never a wrong one.
"""

from __future__ import annotations

FOR_A_NAME = 1_000_000
FOR_ALL_NAMES = 5_000_000
ALWAYS = 10_000  # what a name gets when all the rest is used up
FOR_A_TEXT = 40_000_000  # what a text within a message gets: it may be as long as the message


class TooCostly(Exception):
    """The match was given up."""


class Allowance:
    """``longest`` limits the steps, and the characters, of one text; ``for_all`` those of all."""

    def __init__(self, *, longest: int = FOR_A_NAME, for_all: int | None = FOR_ALL_NAMES) -> None:
        self.longest = longest
        self._is_limited = for_all is not None
        self._for_all = for_all or 0
        self._left = 0

    def begin(self) -> None:
        most = max(ALWAYS, self._for_all) if self._is_limited else self.longest
        self._left = min(self.longest, most)

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self._left:
            raise TooCostly
        self._left -= steps
        self._for_all -= steps
