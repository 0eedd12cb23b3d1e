r"""Show what differs between two locks: for a terminal of 80 columns, plain or coloured, and for
the page.

Texts are compared word by word, and only what is near a change is shown:

>>> from mcp_tool_filter.rooms.lock.changes import compare
>>> from mcp_tool_filter.rooms.lock.lock import parse_lock
>>> old, new = (
...     parse_lock(b'{"version":1,"tools":{"read":{"description":"%s"}}}' % text)
...     for text in (b"Reads a file and returns it", b"Reads any\\u200b file and returns it")
... )
>>> print("\n".join(map(plain, lines_of(compare(old, new)))))
changed: read
  introduces an invisible or control character: U+200B (ZERO WIDTH SPACE)
  description
    Reads [-a-]{+any\u200b+} file and returns it

difflib compares sentences, and words where sentences differ. Its cost grows with the pairs of equal
parts, which are limited: of texts with more of them, we show all that is between what they have in
common at both ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain, groupby
from typing import Final, NamedTuple
from unicodedata import east_asian_width

from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.rooms.lock.changes import (
    ABSENT,
    Absent,
    ChangeKind,
    Introduced,
    LockChanges,
    ToolChange,
    members_changed,
    visible,
)
from mcp_tool_filter.rooms.lock.lock import Json, compact, escaped

WIDTH: Final = 80
GONE: Final = "-"
FRESH: Final = "+"
LOUD: Final = "!"
HEAD: Final = "#"
_IDEOGRAPHS = "\u2e80-\ud7ff"  # and others that are written without spaces: each is a word
_BETWEEN_WORDS = re.compile(rf"[\s{_IDEOGRAPHS}]")
_LETTERS = rf"[^\W{_IDEOGRAPHS}]+"
_TOKEN = re.compile(rf"\s+|{_LETTERS}(?:[-./:@?&=%#~+'\u2019]+{_LETTERS})*|\S")  # a URL is one
_SPACES = re.compile(r"\s+")
_CONTEXT = 40  # characters beside a change
_LONGEST = 2000  # characters of one piece; the lock itself has the rest
_MOST_MEMBERS = 100  # of one tool
_MOST_STEPS = 2_000_000  # in a comparison
_ENDS = frozenset(".!?;\u3002")  # of sentences


class Piece(NamedTuple):
    """A part of a line, and how it looks: gone, fresh, loud, head, or plain (empty)."""

    text: str
    style: str = ""


class Line(NamedTuple):
    indent: int
    pieces: tuple[Piece, ...]
    """Texts in which each letter can be seen."""
    marks: bool = False
    """True if pieces that are gone or fresh are within one text, and so must be marked in it."""


def lines_of(changes: LockChanges) -> Iterator[Line]:
    """Yield everything that differs."""
    old, new = changes.old, changes.new
    if changes.is_other_server or changes.has_other_version:
        before, after = (
            visible(f"{one.server_name} {one.server_version}".strip()) for one in (old, new)
        )
        yield _line(0, Piece("server: ", HEAD), Piece(f"{before} -> {after}"))
    yield from lines_of_instructions(changes)
    for tool in changes.tools:
        yield from lines_of_tool(tool)


def lines_of_instructions(changes: LockChanges) -> Iterator[Line]:
    """Yield what differs in the instructions of the server."""
    if changes.has_other_instructions:
        yield _line(0, Piece("changed: the instructions of the server", HEAD))
        yield from _introduced(changes.in_instructions)
        yield from _values(changes.old.instructions, changes.new.instructions, 2)


def lines_of_tool(tool: ToolChange) -> Iterator[Line]:
    """Yield what differs in one tool."""
    names = dict.fromkeys((tool.was, tool.name))  # one, unless it is renamed
    yield _line(0, Piece(f"{tool.kind}: {' -> '.join(map(_name, names))}", HEAD))
    yield from _introduced(tool.introduced)
    if tool.kind is ChangeKind.REMOVED:
        return
    before = {} if tool.kind is ChangeKind.ADDED else tool.before
    members = list(members_changed(before, tool.after))
    for path, was, now in members[:_MOST_MEMBERS]:
        if path != "name" or tool.kind is ChangeKind.CHANGED:
            yield _line(2, Piece(visible(path) or "the whole definition"))
            yield from _values(was, now, 4)
    if (more := len(members) - _MOST_MEMBERS) > 0:
        yield _line(2, Piece(f"… and {more:,} more members"))


def _name(name: str) -> str:
    """Return a name; one with other letters than ASCII also in escapes, as some look like those."""
    seen = visible(shown(name))
    spelled = "".join(one if one.isascii() else escaped(one) for one in seen)
    return seen if seen == spelled else f"{seen} ({spelled})"


def _introduced(found: Iterable[Introduced]) -> Iterator[Line]:
    for one in found:
        yield _line(2, Piece(f"introduces {one}", LOUD))


def _values(before: Json | Absent, after: Json | Absent, indent: int) -> Iterator[Line]:
    if isinstance(before, str) and isinstance(after, str) and _have_words(before, after):
        yield Line(indent, tuple(_in_words(before, after)), marks=True)
        return
    for value, style in ((before, GONE), (after, FRESH)):
        if not isinstance(value, Absent) and (value is not None or ABSENT in (before, after)):
            said = f'"{_on_one_line(value)}"' if isinstance(value, str) else visible(compact(value))
            yield _line(indent, Piece(f"{style} {_cut(said)}", style))


def _have_words(*texts: str) -> bool:
    return all(_BETWEEN_WORDS.search(text.strip()) for text in texts)


def _line(indent: int, *pieces: Piece) -> Line:
    return Line(indent, pieces)


def _on_one_line(text: str) -> str:
    return visible(_SPACES.sub(" ", text))


def _cut(text: str) -> str:
    more = len(text) - _LONGEST
    return text if more <= 0 else f"{text[:_LONGEST]}… ({more:,} more characters)"


# Words


def _in_words(before: str, after: str) -> Iterator[Piece]:
    """Yield two texts as one, with what is gone and what is fresh."""
    pieces = _joined(edits(_TOKEN.findall(before), _TOKEN.findall(after)))
    for number, (style, text) in enumerate(pieces):
        if style:
            seen = _on_one_line(text) if text.strip() else text.encode("unicode_escape").decode()
            yield Piece(_cut(seen), style)
        else:
            is_first, is_last = number == 0, number == len(pieces) - 1
            yield Piece(_near(_on_one_line(text), is_first=is_first, is_last=is_last))


def _near(text: str, *, is_first: bool, is_last: bool) -> str:
    """Shorten what is the same to what is near a change."""
    if len(text) <= 2 * _CONTEXT + 3:
        return text
    head = "" if is_first else text[:_CONTEXT].rpartition(" ")[0] or text[:_CONTEXT]
    tail = "" if is_last else text[-_CONTEXT:].partition(" ")[2] or text[-_CONTEXT:]
    return f"{head} … {tail}"


def _joined(edited: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join neighbours, across spaces; what is gone comes before what is fresh."""
    joined: list[tuple[str, str]] = []
    styles = ["", *(style for style, _ in edited), ""]
    marked = [
        (style or ("both" if text.isspace() and before and after else ""), text)
        for before, (style, text), after in zip(styles, edited, styles[2:], strict=False)
    ]
    for is_same, group in groupby(marked, key=lambda one: not one[0]):
        parts = list(group)
        if is_same:
            joined.append(("", "".join(text for _, text in parts)))
            continue
        for style in (GONE, FRESH):
            text = "".join(text for of, text in parts if of in (style, "both"))
            joined += [(style, text)] if text else []
    return joined


def edits(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """Return the words of both texts in order, each with "-", "+", or "" if both have it."""
    start, most = 0, min(len(before), len(after))
    while start < most and before[start] == after[start]:
        start += 1
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    same_before = [("", one) for one in before[:start]]
    same_after = [("", one) for one in before[len(before) - end :]]
    return [*same_before, *_between(old, new), *same_after]


def _between(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Compare the sentences of two texts first, and words only where sentences differ."""
    for is_same, gone, fresh in _compared(_sentences(old), _sentences(new)):
        if is_same:
            yield from (("", word) for sentence in gone for word in sentence)
            continue
        for is_same_too, words, others in _compared([*chain(*gone)], [*chain(*fresh)]):
            yield from (("" if is_same_too else GONE, word) for word in words)
            yield from ((FRESH, word) for word in others if not is_same_too)


def _compared[T](
    old: Sequence[T], new: Sequence[T]
) -> Iterator[tuple[bool, Sequence[T], Sequence[T]]]:
    """Yield what two sequences have in common, and what differs between that."""
    counts = Counter(new)
    pairs = sum(counts[each] for each in old)  # of equal parts, which difflib looks at each time
    if pairs * min(len(old), len(new)) > _MOST_STEPS:
        yield False, old, new
        return
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, start, end, begin, stop in matcher.get_opcodes():
        yield kind == "equal", old[start:end], new[begin:stop]


def _sentences(words: Sequence[str]) -> list[tuple[str, ...]]:
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in _ENDS or "\n" in word:
            sentences.append([])
    return [tuple(sentence) for sentence in sentences if sentence]


# Columns

_COLOURS = {GONE: "31", FRESH: "32", LOUD: "33", HEAD: "1"}
_MARKS = {GONE: ("[-", "-]"), FRESH: ("{+", "+}")}


def plain(line: Line) -> str:
    """Render a line for a file or a pipe."""
    pieces = line.pieces
    if line.marks:
        marked = ((_MARKS.get(style, ("", "")), text) for text, style in pieces)
        pieces = tuple(Piece(begin + text + end) for (begin, end), text in marked)
    rows = _rows(line.indent, pieces)
    return "\n".join("".join(one.text for one in row).rstrip() for row in rows)


def coloured(line: Line) -> str:
    """Render a line for a terminal."""
    return "\n".join(map(_painted, _rows(line.indent, line.pieces)))


def _painted(row: Iterable[Piece]) -> str:
    painted = ""
    for style, pieces in groupby(row, key=lambda one: one.style):
        text, colour = "".join(piece.text for piece in pieces), _COLOURS.get(style)
        painted += f"\x1b[{colour}m{text}\x1b[0m" if colour else text
    return painted


def _rows(indent: int, pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Break a line into rows that fit; the later ones are indented more."""
    row, room, margin = [Piece(" " * indent)], WIDTH - indent, indent + 2
    is_empty = True
    for text, style in pieces:
        for word in re.findall(r" +|[^ ]+", text):
            size = width_of(word)
            if size > room and not is_empty:
                yield row
                row, room, is_empty = [Piece(" " * margin)], WIDTH - margin, True
                if word.isspace():
                    continue
            while size > room:
                head = _fitting(word, room)
                yield [*row, Piece(head, style)]
                word = word[len(head) :]
                row, room, size = [Piece(" " * margin)], WIDTH - margin, width_of(word)
            row.append(Piece(word, style))
            room, is_empty = room - size, False
    yield row


def width_of(text: str) -> int:
    """Return how many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(one) in "WF" else 1 for one in text)


def _fitting(text: str, room: int) -> str:
    for end, letter in enumerate(text):
        room -= width_of(letter)
        if room < 0:
            return text[: max(1, end)]
    return text
