"""Mistakes in a rules file, in the words that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcp_tool_filter.errors import StartError


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """``path`` is the place in the file's structure; lines and columns count from 1."""

    line: int
    column: int
    path: str
    text: str

    def shown(self, file: str) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{file}:{self.line}:{self.column}: {where}{self.text}"


class InvalidRules(StartError):
    """All mistakes of a file, in the order of the file."""

    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        self.file = file
        self.mistakes = tuple(sorted(set(mistakes)))
        count = len(self.mistakes)
        said = "1 mistake" if count == 1 else f"{count} mistakes"
        lines = [mistake.shown(file) for mistake in self.mistakes]
        super().__init__(f"Invalid rules file: {file} has {said}", why="\n".join(lines))
