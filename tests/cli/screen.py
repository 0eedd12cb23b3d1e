"""What a person sees: the rows of a terminal of which only the few sequences we write are known."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\r|\n|\x1b\[[JK]|[^\r\n\x1b]+")


class Screen:
    """A terminal that never scrolls. A text that is too long for a row goes on in the next one."""

    def __init__(self, columns: int, *, breaks_rows: bool = True) -> None:
        """``breaks_rows`` when it gets narrower, as most do; others cut what does not fit."""
        self.columns = columns
        self._breaks_rows = breaks_rows
        self.rows = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        assert "".join(_PIECES.findall(text)) == text
        for piece in _PIECES.findall(text):
            match piece:
                case "\r":
                    self._column = 0
                case "\n":
                    self._go_down()
                    self._column = 0
                case "\x1b[J":
                    self.rows[self._row :] = [self.rows[self._row][: self._column]]
                case "\x1b[K":
                    self.rows[self._row] = self.rows[self._row][: self._column]
                case _:
                    for letter in piece:
                        self._put(letter)

    def resize(self, columns: int) -> None:
        """Lay the rows out anew; the cursor stays with its letter."""
        rows: list[str] = []
        cursor = (0, 0)
        for number, row in enumerate(self.rows):
            if number == self._row:
                down = self._column // columns if self._breaks_rows else 0
                cursor = (len(rows) + down, min(self._column - down * columns, columns - 1))
            parts = [row[at : at + columns] for at in range(0, len(row), columns)] or [""]
            rows += parts if self._breaks_rows else parts[:1]
        self.columns, self.rows, (self._row, self._column) = columns, rows, cursor

    def _put(self, letter: str) -> None:
        if self._column == self.columns:
            self._go_down()
            self._column = 0
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + letter + row[self._column + 1 :]
        self._column += 1

    def _go_down(self) -> None:
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append("")
