"""What matching may cost. Whoever names a tool is not asked to be kind.

Each name has its own steps: a long list of costly names takes nothing away from the next one. No
accepted pattern needs more for a name that may be exposed (see ``cost``); for a longer text the
answer may be "too costly", never a wrong one.
"""

from __future__ import annotations

LONGEST_NAME = 256  # UTF-16 code units of a name that may be exposed
FOR_A_NAME = 1_000_000
FOR_A_MESSAGE = 10_000_000  # for all patterns and texts of a message: about half a second
_QUICK = 256  # short texts of a message that Python's ``re``, which counts nothing, may match


class TooCostly(Exception):
    """The match was given up."""


class Budget:
    """What all patterns together may spend on all texts of one message."""

    def __init__(self, steps: int = FOR_A_MESSAGE) -> None:
        self.steps = steps
        self.known: dict[tuple[str, str], bool] = {}
        """Whether a pattern is in a long text: a chain may ask for it again."""
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
    """``longest`` limits the steps, and the characters, of one text."""

    def __init__(self, *, longest: int = FOR_A_NAME) -> None:
        self.longest = longest
        self._left = 0

    @property
    def left(self) -> int:
        return self._left

    def begin(self, steps: int | None = None) -> None:
        """Grant steps to the text that comes now; all of them unless told otherwise."""
        self._left = self.longest if steps is None else steps

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self._left:
            raise TooCostly
        self._left -= steps
