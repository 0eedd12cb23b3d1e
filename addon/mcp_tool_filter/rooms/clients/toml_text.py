r"""TOML as people write it, edited in place by tomlkit: Codex's file, and ours.

tomlkit drops comments after a table that goes, and does not know how an array was laid out; both
are put back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.clients import jsonc

_BYTE_ORDER_MARK = "\ufeff"  # which editors on Windows write, and tomlkit does not read


def parse(text: str) -> object:
    """Return the value of a file. Raises ProtocolError."""
    return _parsed(text).unwrap()


def with_mapping(text: str, path: Sequence[str], value: Mapping[str, object]) -> str:
    """Return the text with another table at a path of keys. Raises ProtocolError."""

    def edit(table: Any) -> None:
        for key in path:
            table = table[key]
        for key in [key for key in table if key not in value]:
            del table[key]
        for key, member in value.items():
            if key not in table or _plain(table[key]) != member:
                table[key] = _array(table[key], member) if key in table else member

    new = edited(text, edit)
    commented = with_comments_of(text, new)
    return commented if parse(commented) == parse(new) else new


def edited(text: str, edit: Callable[[Any], None]) -> str:
    """Return the text after an edit of its tomlkit document. Raises ProtocolError."""
    document = _parsed(text)
    edit(document)
    new = text[: text.startswith(_BYTE_ORDER_MARK)] + str(document.as_string())
    if "\n" in text and not re.search(r"(?<!\r)\n", text):
        new = re.sub(r"\r?\n", "\r\n", new)  # tomlkit ends its own lines otherwise
    return new


def _parsed(text: str) -> Any:
    import tomlkit  # which only Codex's files need
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text.removeprefix(_BYTE_ORDER_MARK))
    except TOMLKitError as error:
        raise ProtocolError(str(error)) from None


def _array(old: Any, value: Any) -> Any:
    """Return an array in which the items that stay keep their spelling and their comments."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    before = _plain(old)
    if not isinstance(before, list) or not isinstance(value, list):
        return value

    def render(one: object) -> str:
        return str(tomlkit.item(one).as_string())

    try:
        text = jsonc.with_items(old.as_string(), before, value, render)
        new = tomlkit.parse(f"x = {text}\n")["x"] if text is not None else None
    except (TOMLKitError, ValueError, TypeError):
        return value
    return new if new is not None and _plain(new) == value else value


def _plain(value: Any) -> object:
    return value.unwrap() if hasattr(value, "unwrap") else value


def with_comments_of(old: str, new: str, comment_in: Callable[[str], str] | None = None) -> str:
    """Return the new text with the old text's missing comments, as lines in their places.

    ``comment_in`` returns the comment in a line, as a line of its own.
    """
    comment_in = comment_in or _comment_in
    result: list[str] = []
    before, after = lines_of(old), lines_of(new)
    for _, start, end, begin, stop in opcodes(before, after):
        gone, there = before[start:end], after[begin:stop]
        result += there
        if there != gone:
            tail = list(takewhile(_says_nothing, reversed(gone)))[::-1]
            body = gone[: len(gone) - len(tail)]
            said = "".join(there)
            result += [one for line in body if (one := comment_in(line)).strip() not in said]
            if any(line.strip() for line in tail) and "".join(tail).rstrip() not in said:
                result += tail
    return "".join(result)


def _comment_in(line: str) -> str:
    """Return the comment in a line of TOML, as a line."""
    if _says_nothing(line):
        return line
    end = line[len(line.rstrip("\r\n")) :]
    return next((f"{one}{end}" for one in jsonc.comments_in(line) if one[0] == "#"), "")


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def lines_of(text: str) -> list[str]:
    r"""Return the lines with their ends; what else ends a line for Python may be in a value.

    >>> lines_of("a\x85b\r\nc")
    ['a\x85b\r\n', 'c']
    """
    return re.findall(r"[^\n]+\n?|\n", text)


def opcodes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """Return how the lines of a text become those of another one."""
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


type _Change = tuple[int, int, list[str]]


def merged(base: str, one: str, other: str) -> str | None:
    r"""Return the base with both changes; None if they touch the same lines.

    >>> merged("a\nb\nc\n", "a\nB\nc\n", "a\nb\nc\nd\n")
    'a\nB\nc\nd\n'
    >>> merged("a\n", "b\n", "c\n") is None
    True
    """
    lines = lines_of(base)
    changes = sorted([*_changes(base, one), *_changes(base, other)], key=lambda change: change[:2])
    for (start, end, _), (following, _, _) in pairwise(changes):
        if following < end or (start, end) == (following, following):
            return None
    for start, end, new in reversed(changes):
        lines[start:end] = new
    return "".join(lines)


def _changes(base: str, changed: str) -> Iterator[_Change]:
    old, new = lines_of(base), lines_of(changed)
    for kind, start, end, begin, stop in opcodes(old, new):
        if kind != "equal":
            yield start, end, new[begin:stop]
