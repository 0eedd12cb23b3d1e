"""What matching may cost. Whoever names a tool is not asked to be kind.

A name has so many steps to be judged in, and all names that a pattern meets have so many
together. Honest names need some hundred; a list made to be slow uses them up, and from then on
each name gets few. Where they do not suffice the answer is "too costly", never a wrong one.
"""

from __future__ import annotations

FOR_A_NAME = 1_000_000
FOR_ALL_NAMES = 5_000_000
ALWAYS = 10_000  # what a name gets when all the rest is used up


class TooCostly(Exception):
    """The match was given up."""


class Allowance:
    def __init__(self) -> None:
        self._for_all = FOR_ALL_NAMES
        self._left = 0

    def begin(self) -> None:
        self._left = min(FOR_A_NAME, max(ALWAYS, self._for_all))

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self._left:
            raise TooCostly
        self._left -= steps
        self._for_all -= steps
