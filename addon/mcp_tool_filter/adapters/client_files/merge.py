"""Merge two changes of one text, and keep comments that an edit would lose.

>>> merged("a\\nb\\nc\\n", "a\\nB\\nc\\n", "a\\nb\\nc\\nd\\n")
'a\\nB\\nc\\nd\\n'
>>> merged("a\\n", "b\\n", "c\\n") is None
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile

type _Change = tuple[int, int, list[str]]


def merged(base: str, one: str, other: str) -> str | None:
    """Return the base with both changes; None if they touch the same lines."""
    lines = base.splitlines(keepends=True)
    changes = sorted([*_changes(base, one), *_changes(base, other)], key=lambda change: change[:2])
    for (start, end, _), (following, _, _) in pairwise(changes):
        if following < end or (start, end) == (following, following):
            return None
    for start, end, new in reversed(changes):
        lines[start:end] = new
    return "".join(lines)


def with_comments_of(old: str, new: str) -> str:
    """Return the new text with the old text's missing comment lines, in their places."""
    result: list[str] = []
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    for _, start, end, begin, stop in _opcodes(before, after):
        gone, there = before[start:end], after[begin:stop]
        result += there
        if there != gone:
            tail = list(takewhile(_says_nothing, reversed(gone)))[::-1]
            body = [line for line in gone[: len(gone) - len(tail)] if line.lstrip()[:1] == "#"]
            kept = [line for line in body if line not in there]
            if any(line.strip() for line in tail) and tail != there[-len(tail) :]:
                kept += tail
            result += kept
    return "".join(result)


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _changes(base: str, changed: str) -> Iterator[_Change]:
    old, new = base.splitlines(keepends=True), changed.splitlines(keepends=True)
    for kind, start, end, begin, stop in _opcodes(old, new):
        if kind != "equal":
            yield start, end, new[begin:stop]


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
