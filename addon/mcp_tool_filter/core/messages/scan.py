"""Read JSON strictly, and note the place of every part that we look into.

The idea: a message is read once, and nothing is built that nobody needs. The outline tells which
containers to open: of these we know the keys and places of the members; everything else is only
checked to be JSON. So a part of a message can be removed or reused in its original bytes:

>>> call = b'{"id": 1.0, "params": {"name": "a", "arguments": {"n": 1e3}}}'
>>> text, root = scan(call, {"params": {}})
>>> text[slice(*root["id"].span)], root["params"].members[0].text
('1.0', 'a')

We use the standard library's C scanner, because orjson reports no places and refuses honest numbers
(four hundred digits) and escapes (half a surrogate pair). Here we refuse what that scanner accepts
too easily: NaN, other encodings, a BOM, depth. Refused input raises ``ProtocolError``.

A value may contain any value, so the functions that read them call each other. They are long where
they are hot: a call costs more than the tests that it would save.
"""

from __future__ import annotations

import json.scanner
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from types import MappingProxyType
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import (
    MOST_IN_BATCH,
    MOST_LISTED,
    MOST_PARTS,
    Limits,
    OverLimit,
)
from mcp_tool_filter.core.messages.skim import find_ends, nests_deeper

type Outline = Mapping[str, "Outline | Many | None"]
"""Which members of an object to open, and which of their members.

None means: do not open it. ``EACH`` stands for the elements of an array.
"""

EACH = "[]"


@dataclass(frozen=True, slots=True)
class Many:
    """An outline of a tool list, which may have far more parts than the rest of a message."""

    parts: Outline


_LIMITS = Limits()
_NONE_KNOWN: Mapping[int, int] = {}
_NONE_READ: Mapping[int, Value] = MappingProxyType({})
_NO_NAMES: Mapping[str, Value] = MappingProxyType({})
_LARGE = 32 * 1024  # bytes; in longer messages it pays to find the ends of long values first
_ONE_LEVEL: Outline = {EACH: None}
_SPACE = " \t\n\r"
_skip_space = re.compile(r"[ \t\n\r]*").match
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = "nested too deeply"


@dataclass(slots=True)  # not frozen: there are many, and that costs four times as much
class Value:
    """A value's place in the text, and its content as far as the outline asks for it."""

    start: int
    end: int
    text: str | None = None
    """A string's meaning."""
    members: tuple[Member, ...] | None = None
    """An opened object's members, in order, including repeated keys."""
    elements: tuple[Value, ...] | None = None
    """An opened array's elements."""
    named: Mapping[str, Value] = field(default=_NO_NAMES, repr=False, compare=False)
    """An opened object's members by key; of a repeated key, the first."""

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end

    def __getitem__(self, key: str) -> Value:
        """Return the first member of that name."""
        return self.named[key]

    def get(self, key: str) -> Value | None:
        return self.named.get(key)


@dataclass(slots=True)
class Member:
    key: str
    start: int  # where its key begins
    value: Value

    @property
    def text(self) -> str | None:
        return self.value.text


class PartBudget:
    """How many more parts we may look into.

    (Each costs far more than a part that is only checked.)
    """

    __slots__ = ("ends", "left", "lists", "most", "read")

    def __init__(
        self,
        most: int,
        ends: Mapping[int, int] = _NONE_KNOWN,
        read: Mapping[int, Value] = _NONE_READ,
    ) -> None:
        self.most = self.left = most
        self.ends = ends  # of values that are known to be JSON, and not too deep
        self.read = read  # values that have been read before, by where they begin
        self.lists: PartBudget | None = None  # for all tool lists of a message; few have one

    def take(self, parts: int) -> None:
        self.left -= parts
        if self.left < 0:
            raise OverLimit(f"more than {self.most} members and elements")


def scan(
    raw: bytes,
    outline: Outline | None,
    limits: Limits = _LIMITS,
    read: Mapping[int, Value] = _NONE_READ,
) -> tuple[str, Value]:
    """Read one JSON document; return its text and its root, opened. ``read`` are values in it that
    have been read before."""
    if len(raw) > limits.message:
        raise OverLimit(f"a message is longer than {limits.message} bytes")
    text = decode(raw)
    try:
        ends = find_ends(raw, limits.depth) if len(raw) >= _LARGE else _NONE_KNOWN
        budget = PartBudget(MOST_PARTS, ends, read)
        begin = after_space(text, 0)
        if text[begin] == "[" and outline is not None and EACH in outline:
            root = _read_array(text, begin, outline[EACH], limits.depth - 1, budget, MOST_IN_BATCH)
        else:
            root = read_value(text, begin, outline, limits.depth, budget)
        if text[root.end :].strip(_SPACE):
            raise ProtocolError("more than one JSON value")
    except (ProtocolError, ValueError, IndexError, RecursionError) as error:
        if nests_deeper(text, 0, len(text), limits.depth):
            raise OverLimit(f"nested deeper than {limits.depth} levels") from None
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError("not valid JSON") from None
    return text, root


def open_value(text: str, value: Value, outline: Outline = _ONE_LEVEL) -> Value:
    """Return a value of a text that was scanned, opened by one level or along an outline.

    >>> text, root = scan(b'{"a": {"b": [1, 2]}}', {})
    >>> inner = open_value(text, root["a"])
    >>> [text[slice(*one.span)] for one in open_value(text, inner["b"]).elements or ()]
    ['1', '2']
    """
    if value.members is not None or value.elements is not None or text[value.start] not in "{[":
        return value
    return read_value(text, value.start, outline, sys.maxsize, PartBudget(MOST_LISTED))


def decode(raw: bytes) -> str:
    """Return the text of unambiguous UTF-8."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ProtocolError("not valid UTF-8") from None
    if text.startswith("\ufeff"):
        raise ProtocolError("begins with a byte order mark")
    return text


def has_lone_surrogate(text: str) -> bool:
    """Tell whether a string contains half a surrogate pair. (No two readers treat it alike.)"""
    return not text.isascii() and _SURROGATE.search(text) is not None


def skip_value(text: str, at: int) -> int:
    """Return where a value ends. Raises ValueError, RecursionError if there is none."""
    try:
        end: int = _scan_value(text, at)[1]
    except StopIteration:  # it would end a generator
        raise ValueError("no JSON value") from None
    return end


def _refuse_constant(name: str) -> object:
    raise ProtocolError(f"{name} is not JSON")


class _Strict:
    """What the C scanner expects of its decoder. We use only the end that it returns."""

    strict = True
    object_hook = None
    object_pairs_hook = bool  # keeps nothing
    parse_float = bool
    parse_int = bool  # int() would refuse numbers of more than 4300 digits
    parse_constant = staticmethod(_refuse_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner empties it


_scan_value: Any = json.scanner.c_make_scanner(_Strict)  # type: ignore[attr-defined]  # typeshed leaves it out


def read_value(
    text: str, at: int, outline: Outline | Many | None, room: int, budget: PartBudget
) -> Value:
    """Read a value that may nest ``room`` levels."""
    first = text[at]
    if first == '"':
        meaning, end = scanstring(text, at + 1, True)
        return Value(at, end, meaning)
    if budget.read and (before := budget.read.get(at)):
        return before
    if isinstance(outline, Many):
        if budget.lists is None:
            budget.lists = PartBudget(MOST_LISTED)
        outline, budget = outline.parts, budget.lists
    if outline is not None and room > 0:  # else it is only measured
        if first == "{":
            return _read_object(text, at, outline, room - 1, budget)
        if first == "[" and EACH in outline:
            return _read_array(text, at, outline[EACH], room - 1, budget)
    if budget.ends and (known := budget.ends.get(at)):
        return Value(at, known)
    end = skip_value(text, at)
    if end - at > 2 * room and nests_deeper(text, at, end, room):
        raise OverLimit(_TOO_DEEP)
    return Value(at, end)


def _read_object(text: str, start: int, outline: Outline, room: int, budget: PartBudget) -> Value:
    members: list[Member] = []
    named: dict[str, Value] = {}
    at = start + 1
    if text[at] != '"':
        at = after_space(text, at)
        if text[at] == "}":
            return Value(start, at + 1, None, ())
    while text[at] == '"':
        key, end = scanstring(text, at + 1, True)
        if text[end] != ":":
            end = after_space(text, end)
            if text[end] != ":":
                break
        begin = end + 1
        if text[begin] == " ":  # usually at most one
            begin += 1
        if text[begin] in _SPACE:
            begin = after_space(text, begin)
        if text[begin] == '"':
            meaning, end = scanstring(text, begin + 1, True)
            value = Value(begin, end, meaning)
        else:
            value = read_value(text, begin, outline.get(key), room, budget)
            end = value.end
        named[key] = value
        members.append(Member(key, at, value))
        if text[end] in _SPACE:
            end = after_space(text, end)
        if text[end] == ",":
            at = end + 1
            if text[at] == " ":
                at += 1
            if text[at] != '"':
                at = after_space(text, at)
            if len(members) <= budget.left:
                continue
        elif text[end] != "}":
            break
        budget.take(len(members))
        if len(named) != len(members):
            named = {member.key: member.value for member in reversed(members)}
        return Value(start, end + 1, None, tuple(members), None, named)
    raise ProtocolError("not valid JSON")


def _read_array(
    text: str,
    start: int,
    outline: Outline | Many | None,
    room: int,
    budget: PartBudget,
    most_in_batch: int = sys.maxsize,
) -> Value:
    elements: list[Value] = []
    at = after_space(text, start + 1)
    if text[at] == "]":
        return Value(start, at + 1, None, None, ())
    while True:
        value = read_value(text, at, outline, room, budget)
        elements.append(value)
        end = after_space(text, value.end)
        if len(elements) > most_in_batch:
            raise OverLimit(f"more than {most_in_batch} messages in one batch")
        if text[end] == "]" or len(elements) > budget.left:
            budget.take(len(elements))
            return Value(start, end + 1, None, None, tuple(elements))
        if text[end] != ",":
            raise ProtocolError("not valid JSON")
        at = after_space(text, end + 1)


def after_space(text: str, at: int) -> int:
    if text[at] == " ":  # usually exactly one
        at += 1
    return _skip_space(text, at).end() if text[at] in _SPACE else at  # type: ignore[union-attr]  # always matches
