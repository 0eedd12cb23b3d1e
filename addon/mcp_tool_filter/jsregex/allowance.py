"""What matching may cost: an upstream or a client may choose names that are slow to match.

Each name gets its own steps, so costly names in a long list leave the next name as many. No
accepted pattern needs more steps for a name that may be exposed (see ``cost``); for a longer text
the result may be "too costly", but never a wrong one.
"""

from __future__ import annotations

LONGEST_NAME = 256  # UTF-16 code units of a name that may be exposed
FOR_A_NAME = 1_000_000
FOR_A_MESSAGE = 10_000_000  # for all patterns and texts of a message: about half a second
_QUICK = 256  # so many short texts of a message may go to Python's ``re``, which counts no steps


class TooCostly(Exception):
    """The match was given up."""


class Budget:
    """What all patterns together may spend on all texts of one message."""

    def __init__(self, steps: int = FOR_A_MESSAGE) -> None:
        self.steps = steps
        self.known: dict[tuple[str, bool, str], bool] = {}
        """Earlier results for long texts: a chain may ask for the same one again."""
        self._quick = _QUICK

    def spend(self, steps: int) -> None:
        """Count steps. Raises TooCostly if they cannot be afforded."""
        if steps > self.steps:
            raise TooCostly
        self.steps -= steps

    def may_be_quick(self, price: int) -> bool:
        """Tell whether one more short text may be matched without counting its steps."""
        if price > self._quick:
            return False
        self._quick -= price
        return True


class Allowance:
    """The steps for one text; ``longest`` limits both its steps and its characters."""

    def __init__(self, *, longest: int = FOR_A_NAME) -> None:
        self.longest = longest
        self._left = 0

    @property
    def left(self) -> int:
        return self._left

    def begin(self, steps: int | None = None) -> None:
        """Start a new text with so many steps; with as many as allowed by default."""
        self._left = self.longest if steps is None else steps

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self._left:
            raise TooCostly
        self._left -= steps
