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

A value may contain any value, so the functions that read them call each other. How deep JSON nests
is counted exactly, in time that grows linearly with its length:

>>> nests_deeper('[{"a":"[[["}]', 0, 13, 2), nests_deeper('[{"a":[]}]', 0, 10, 2)
(False, True)
"""

from __future__ import annotations

import json.scanner
import re
import sys
from codecs import BOM_UTF8, utf_8_decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from types import MappingProxyType
from typing import Any

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import (
    MOST_IN_BATCH,
    MOST_LISTED,
    MOST_PARTS,
    Limits,
    OverLimit,
)
from mcp_tool_filter.protocol.skim import find_ends

_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")  # one level in, one level out
_CHUNK = 64 * 1024  # bytes


def nests_deeper(text: str, start: int, end: int, most: int) -> bool:
    """Tell whether a part of a JSON text nests more than ``most`` levels."""
    if not opens_more(text, ("[", "{"), start, end, most):
        return False
    raw = text[start:end].encode()
    quotes_only = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    structure = quotes_only.translate(_ONE_KIND, _NO_STRUCTURE)
    pieces = structure.replace(b'""', b"").split(b'"')  # most strings hold no bracket
    return _levels_exceed(b"".join(pieces[::2]), most)  # every second piece is a string


def _levels_exceed(brackets: bytes, most: int) -> bool:
    """Tell whether brackets, all of one kind, nest more than ``most`` levels."""
    brackets += b"]" * (brackets.count(b"[") - brackets.count(b"]"))
    # Most containers contain no others. Without these innermost ones there is exactly one level
    # less, and removing them is a hundred times as fast as counting.
    is_shrinking = True
    while is_shrinking and most > 0:
        fewer = brackets.replace(b"[]", b"")
        is_shrinking = 2 * len(fewer) < len(brackets)
        brackets, most = fewer, most - (len(fewer) < len(brackets))
    depth = 0
    for at in range(0, len(brackets), _CHUNK):
        steps = memoryview(brackets[at : at + _CHUNK].translate(_STEPS)).cast("b")
        levels = list(accumulate(steps, initial=depth))
        if max(levels) > most:
            return True
        depth = levels[-1]
    return False


def opens_more[Text: (str, bytes)](
    text: Text, opening: tuple[Text, Text], start: int, end: int, most: int
) -> bool:
    """Tell whether there are more than ``most`` brackets. (Counting all takes 25 times as long.)"""
    for bracket in opening:
        at = text.find(bracket, start, end)
        while at >= 0:
            most -= 1
            if most < 0:
                return True
            at = text.find(bracket, at + 1, end)
    return False


type Outline = Mapping[str, "Outline | Few | Many | None"]
"""Which members of an object to open, and which of their members.

None means: do not open it. ``EACH`` stands for the elements of an array.
"""

EACH = "[]"


@dataclass(frozen=True, slots=True)
class Few:
    """An outline of a part that is only checked, one member at a time if it has few.

    So we do not count levels in long strings, which may contain JSON with many brackets.
    """

    parts: Outline


@dataclass(frozen=True, slots=True)
class Many:
    """An outline of a tool list, which may have far more parts than the rest of a message."""

    parts: Outline


_LIMITS = Limits()
_NONE_KNOWN: Mapping[int, int] = {}
_NO_NAMES: Mapping[str, Value] = MappingProxyType({})
_LARGE = 128 * 1024  # bytes; in longer messages it pays to find the ends of long values first
_ONE_LEVEL: Outline = {EACH: None}
_SPACE = " \t\n\r"
_skip_space = re.compile(r"[ \t\n\r]*").match
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = "nested too deeply"
_PIECE = 64 * 1024  # bytes; they stay in the processor's cache
_FEW = 16  # parts
_LONG = 10_000  # characters; shorter texts are checked quickly anyway


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


class _Budget:
    """How many more parts we may look into.

    (Each costs far more than a part that is only checked.)
    """

    __slots__ = ("_listed", "ends", "left", "most")

    def __init__(self, most: int, ends: Mapping[int, int] = _NONE_KNOWN) -> None:
        self.most = self.left = most
        self.ends = ends  # of values that are known to be JSON, and not too deep
        self._listed: _Budget | None = None

    def of_lists(self) -> _Budget:
        """Return the budget for all tool lists in a message. Few messages have one."""
        if self._listed is None:
            self._listed = _Budget(MOST_LISTED)
            self._listed._listed = self._listed
        return self._listed

    def over_limit(self) -> OverLimit:
        return OverLimit(f"more than {self.most} members and elements")


def scan(raw: bytes, outline: Outline | None, limits: Limits = _LIMITS) -> tuple[str, Value]:
    """Read one JSON document; return its text and its root, opened."""
    if len(raw) > limits.message:
        raise OverLimit(f"a message is longer than {limits.message} bytes")
    text = decode(raw)
    try:
        ends = find_ends(raw, limits.depth) if len(raw) >= _LARGE else _NONE_KNOWN
        budget = _Budget(MOST_PARTS, ends)
        root = _read_root(text, after_space(text, 0), outline, limits.depth, budget)
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
    return _read(text, value.start, outline, sys.maxsize, MOST_LISTED, _Budget(MOST_LISTED))


def decode(raw: bytes) -> str:
    """Return the text of unambiguous UTF-8."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ProtocolError("not valid UTF-8") from None
    if text.startswith("\ufeff"):
        raise ProtocolError("begins with a byte order mark")
    return text


def count_characters(raw: bytes) -> int:
    """Return the length of UTF-8 text without decoding it all at once; as strict as ``decode``.

    >>> count_characters("caf\u00e9".encode())
    4
    """
    if raw.startswith(BOM_UTF8):
        raise ProtocolError("begins with a byte order mark")
    view = memoryview(raw)
    count = at = 0
    try:
        while at < len(raw):
            text, used = utf_8_decode(view[at : at + _PIECE], "strict", at + _PIECE >= len(raw))
            count += len(text)
            at += used
    except UnicodeDecodeError:
        raise ProtocolError("not valid UTF-8") from None
    return count


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


def _read_root(text: str, at: int, outline: Outline | None, room: int, budget: _Budget) -> Value:
    if text[at] == "[" and outline is not None and EACH in outline:
        return _read_array(text, at, outline[EACH], room - 1, MOST_IN_BATCH, budget)
    return _read(text, at, outline, room, MOST_PARTS, budget)


def _read(
    text: str, at: int, outline: Outline | Few | Many | None, room: int, most: int, budget: _Budget
) -> Value:
    """Read a value that may nest ``room`` levels and, if opened, may have ``most`` parts."""
    first = text[at]
    if first == '"':
        meaning, end = scanstring(text, at + 1, True)
        return Value(at, end, meaning)
    end = budget.ends.get(at) if budget.ends else None
    if outline is not None:
        if isinstance(outline, Few):
            if end is not None:
                return Value(at, end)
            return _read_few(text, at, outline.parts, room, budget)
        if isinstance(outline, Many):
            return _read(text, at, outline.parts, room, MOST_LISTED, budget.of_lists())
        if first == "{":
            return _read_object(text, at, outline, room - 1, most, budget)
        if first == "[" and EACH in outline:
            return _read_array(text, at, outline[EACH], room - 1, most, budget)
    if end is None:
        end = skip_value(text, at)
        if end - at > 2 * room and nests_deeper(text, at, end, room):
            raise OverLimit(_TOO_DEEP)
    return Value(at, end)


def _read_few(text: str, at: int, parts: Outline, room: int, budget: _Budget) -> Value:
    """Check a value that may contain long strings."""
    if len(text) - at > _LONG:
        with suppress(OverLimit):
            return Value(at, _read(text, at, parts, room, _FEW, budget).end)
    return _read(text, at, None, room, _FEW, budget)


def _read_object(
    text: str, start: int, outline: Outline, room: int, most: int, budget: _Budget
) -> Value:
    if room < 0:
        raise OverLimit(_TOO_DEEP)
    members: list[Member] = []
    named: dict[str, Value] = {}
    at = start + 1
    if text[at] != '"':  # here and below: a call costs more than this test
        at = after_space(text, at)
        if text[at] == "}":
            return Value(start, at + 1, None, ())
    for _ in range(most):
        if text[at] != '"':
            break
        key, end = scanstring(text, at + 1, True)
        if text[end] != ":":
            end = after_space(text, end)
            if text[end] != ":":
                break
        begin = end + 1
        if text[begin] in _SPACE:
            begin = after_space(text, begin)
        if text[begin] == '"':
            meaning, end = scanstring(text, begin + 1, True)
            value = Value(begin, end, meaning)
        else:
            value = _read(text, begin, outline.get(key), room, most, budget)
            end = value.end
        named[key] = value
        members.append(Member(key, at, value))
        if text[end] in _SPACE:
            end = after_space(text, end)
        if text[end] == ",":
            at = end + 1
            if text[at] != '"':
                at = after_space(text, at)
        elif text[end] == "}":
            budget.left -= len(members)
            if budget.left < 0:
                raise budget.over_limit()
            if len(named) != len(members):
                named = {member.key: member.value for member in reversed(members)}
            return Value(start, end + 1, None, tuple(members), None, named)
        else:
            break
    else:
        raise OverLimit(_too_many(most))
    raise ProtocolError("not valid JSON")


def _read_array(
    text: str,
    start: int,
    outline: Outline | Few | Many | None,
    room: int,
    most: int,
    budget: _Budget,
) -> Value:
    if room < 0:
        raise OverLimit(_TOO_DEEP)
    elements: list[Value] = []
    at = after_space(text, start + 1)
    if text[at] == "]":
        return Value(start, at + 1, None, None, ())
    while True:
        value = _read(text, at, outline, room, most, budget)
        elements.append(value)
        if len(elements) > most:
            raise OverLimit(_too_many(most))
        end = after_space(text, value.end)
        if text[end] == "]":
            budget.left -= len(elements)
            if budget.left < 0:
                raise budget.over_limit()
            return Value(start, end + 1, None, None, tuple(elements))
        if text[end] != ",":
            raise ProtocolError("not valid JSON")
        at = after_space(text, end + 1)


def _too_many(most: int) -> str:
    what = "messages in one batch" if most == MOST_IN_BATCH else "members and elements"
    return f"more than {most} {what}"


def after_space(text: str, at: int) -> int:
    if text[at] == " ":  # usually exactly one
        at += 1
    return _skip_space(text, at).end() if text[at] in _SPACE else at  # type: ignore[union-attr]  # always matches
