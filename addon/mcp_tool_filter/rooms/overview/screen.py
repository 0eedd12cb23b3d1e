"""Draw lines in place of those before, and read single keys: plain escape codes, quick to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO


class Screen:
    """Lines of a terminal that are drawn again and again."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._height = 0

    def size(self) -> tuple[int, int]:
        """Return how many columns and rows there are."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return 80, 24
        return (found.columns or 80), (found.lines or 24)

    def draw(self, lines: Sequence[str], *, is_last: bool = False) -> None:
        """Draw the lines. What does not fit is left out until ``is_last``: no terminal can draw
        again what has left it at the top."""
        rows = self.size()[1]
        shown = [*lines]
        if not is_last and len(shown) >= rows:
            shown = [*shown[: max(1, rows - 3)], "…", shown[-1]][: rows - 1]
        up = f"\x1b[{self._height}A" if self._height else ""
        self._out.write(f"\r{up}\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._out.flush()
        self._height = 0 if is_last else len(shown)


@contextmanager
def single_keys() -> Iterator[None]:
    """Read keys from stdin one by one, without showing them, until the block ends."""
    import termios  # not on Windows
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def read_key() -> str:
    """Return the key that is there; ``q`` at the end of the input."""
    typed = os.read(sys.stdin.fileno(), 64)
    return typed[:1].decode("latin-1").lower() if typed else "q"
