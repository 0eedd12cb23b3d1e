r"""Change the items of an array in a text, JSON or TOML, and keep its comments and its lines.

>>> import json
>>> text = '[ // how\n  "-y", // sure\n  "files"\n]'
>>> print(with_items(text, ["-y", "files"], ["--deny", "^rm", "-y", "files"], json.dumps))
[ // how
  "--deny",
  "^rm",
  "-y", // sure
  "files"
]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_PART = re.compile(
    r"""(?P<space>[ \t\r\n\ufeff]+)
    | (?P<comment>//[^\n]*|/\*.*?\*/|\#[^\n]*)
    | (?P<string>\"{3}.*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\]|\\.)*"|'[^']*')
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<comma>,)
    | (?P<other>[^\s,\[\]{}"'\#/]+|.)""",
    re.DOTALL | re.VERBOSE,
)
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|\#[^\r\n]*|/\*[^\r\n]*?\*/)?[ \t]*(?=\r?\n)")


@dataclass(slots=True)
class _Item:
    start: int
    end: int
    comma: int | None = None
    """The place of the comma after it."""


def with_items(
    text: str, old: Sequence[object], new: Sequence[object], render: Callable[[object], str]
) -> str | None:
    """Return the text of an array with other items; None if it cannot be read, or is empty."""
    items = list(_items_in(text))
    if not items or len(items) != len(old):
        return None
    after = _common(list(reversed(old)), list(reversed(new)))
    before = _common(old[: len(old) - after], new[: len(new) - after])
    gone = items[before : len(items) - after]
    added = [render(one) for one in new[before : len(new) - after]]
    edits = [(one.start, one.end, said) for one, said in zip(gone, added, strict=False)]
    edits += _removals(text, items, gone[len(added) :])
    if more := added[len(gone) :]:
        edits.append(_insertion(text, items, len(items) - after, more))
    for start, end, said in sorted(edits, reverse=True):
        text = text[:start] + said + text[end:]
    return text


def _items_in(text: str) -> Iterator[_Item]:
    """Yield the items of the array, whose text begins and ends with a bracket."""
    depth, item = 0, None
    for part in _PART.finditer(text):
        match part.lastgroup:
            case "space" | "comment":
                continue
            case "comma" if depth == 1:
                if item:
                    item.comma = part.start()
                    yield item
                item = None
                continue
            case "open":
                depth += 1
                if depth == 1:
                    continue
            case "close":
                depth -= 1
                if depth == 0:
                    break
        item = item or _Item(part.start(), part.end())
        item.end = part.end()
    if item:
        yield item


def _common(some: Sequence[object], others: Sequence[object]) -> int:
    """Return how many items at the beginning are equal."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other or type(one) is not type(other):
            break
        count += 1
    return count


def _removals(
    text: str, items: Sequence[_Item], gone: Sequence[_Item]
) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that remove items next to each other, each with a comma."""
    for one in gone:
        end = one.end if one.comma is None else one.comma + 1
        if one.comma is not None and text[one.end : one.comma].strip():  # a comment in between
            yield one.comma, end, ""
            end = one.end
        line = text.rfind("\n", 0, one.start) + 1
        rest = re.compile(r"[ \t]*\r?\n").match(text, end)
        if line and rest and not text[line : one.start].strip():
            yield line, rest.end(), ""
        else:
            space = re.compile(r"[ \t]*").match(text, end)
            yield one.start, space.end() if space and one.comma is not None else end, ""
    left = [one for one in items if one not in gone]
    if gone and left and gone[-1] is items[-1] and items[-1].comma is None:
        comma = left[-1].comma
        assert comma is not None
        yield comma, comma + 1, ""


def _insertion(
    text: str, items: Sequence[_Item], index: int, said: Sequence[str]
) -> tuple[int, int, str]:
    """Return the edit that inserts items before the one with this index, or at the end."""
    first = items[0]
    line = text.rfind("\n", 0, first.start) + 1
    indent = text[line : first.start]
    if not line or indent.strip():  # not on lines of their own
        if index < len(items):
            return items[index].start, items[index].start, "".join(f"{one}, " for one in said)
        return items[-1].end, items[-1].end, "".join(f", {one}" for one in said)
    newline = "\r\n" if "\r\n" in text else "\n"
    if index == len(items):
        end = items[-1].end
        return end, end, "".join(f",{newline}{indent}{one}" for one in said)
    begin = (items[index - 1].comma or 0) + 1 if index else 1
    rest = _REST_OF_LINE.match(text, begin)  # a comment there is about what is before it
    at = rest.end() if rest else begin
    return at, at, "".join(f"{newline}{indent}{one}," for one in said)
