r"""The fields that rules read: paths within ``params`` or ``result``.

>>> parse_field("content[*].text").steps
(Key(name='content'), <Every.EVERY: '*'>, Key(name='text'))
>>> parse_field(r"a\.b[0]").steps, parse_field("/a~1b/0").steps
((Key(name='a.b'), 0), (Token(name='a/b'), Token(name='0')))

We do not judge a path that two readers could read differently: a key on it that occurs twice, in
two spellings, or only in a spelling other than the rule's raises ``Unjudgeable``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import repeat

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.messages import fold
from mcp_tool_filter.protocol.scan import EACH, Member, Outline, Value, open_value

_DOTTED = re.compile(r"(?P<key>(?:[^.\[\]\\]|\\.)+)|\[(?P<index>\d{1,9}|\*)\]|(?P<dot>\.)")
_LONGEST_KEPT = 64  # characters of a key
_SHORT = 64 * 1024  # characters; so few cannot have more parts than we may open
_FEW = 64  # members, among which we find one without an index
_INDEX = re.compile(r"0|[1-9]\d{0,8}")


class Unjudgeable(ProtocolError):
    """A field that two readers could read differently."""


class Every(Enum):
    EVERY = "*"


@dataclass(frozen=True, slots=True)
class Key:
    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a JSON pointer: a key in an object, an index in a list."""

    name: str


type PathStep = Key | Token | int | Every
_NAMED = (Key, Token)  # a tuple: the union Key | Token would be built for each message


@dataclass(frozen=True, slots=True)
class Field:
    text: str
    steps: tuple[PathStep, ...]
    outlines: tuple[Outline, ...] = field(default=(), repr=False, compare=False)
    """For each step, what to open together with the value it leads to."""

    def __hash__(self) -> int:
        """Hash only the text, which caches its hash, because each message needs it."""
        return hash(self.text)


def parse_field(text: str) -> Field:
    """Parse a path. Raises ValueError, which says what would be right."""
    if text.startswith("/"):
        steps: tuple[PathStep, ...] = tuple(map(Token, parse_pointer(text)))
    else:
        steps = tuple(_dotted(text))
    return Field(text, steps, _outlines(steps))


def _outlines(steps: Sequence[PathStep]) -> tuple[Outline, ...]:
    """Return, for each step, an outline of the rest of the path."""
    outlines: list[Outline] = []
    inner: Outline | None = None
    for step in reversed(steps):
        outline = {EACH: None if isinstance(step, Key) else inner}
        if isinstance(step, _NAMED):
            outline[step.name] = inner
        outlines.append(outline)
        inner = outline
    return tuple(reversed(outlines))


def parse_pointer(text: str) -> list[str]:
    """Parse a JSON pointer (RFC 6901). Raises ValueError."""
    if text and not text.startswith("/"):
        raise ValueError("a JSON pointer begins with /")
    if re.search(r"~(?![01])", text):
        raise ValueError("in a JSON pointer, ~ is written ~0 and / is written ~1")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _dotted(text: str) -> Iterator[PathStep]:
    at, wants_key = 0, True
    while at < len(text):
        found = _DOTTED.match(text, at)
        if found is None:
            break
        if found["key"]:
            if not wants_key:
                break
            yield Key(re.sub(r"\\(.)", r"\1", found["key"], flags=re.DOTALL))
            wants_key = False
        elif found["dot"]:
            if wants_key:
                break
            wants_key = True
        else:
            if wants_key and at:
                break
            yield Every.EVERY if found["index"] == "*" else int(found["index"])
            wants_key = False
        at = found.end()
    if at < len(text) or wants_key:
        raise ValueError(
            "a field is a path such as name, arguments.path, content[0].text, content[*].text, "
            r"a\.b for a dot in a key, or a JSON pointer such as /arguments/path"
        )


@dataclass(slots=True)
class Document:
    """A message's text. Its parts are opened once, when they are read."""

    text: str
    _opened: dict[int, Value]
    _indexes: dict[int, dict[str, list[Member]]]
    """The members of large objects by their spellings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._opened = {}
        self._indexes = {}

    def open(self, value: Value, outline: Outline | None = None) -> Value:
        """Return a value with its members or elements. Raises ProtocolError for too many.

        A short value is opened along an outline, so that it is not read again for inner members.
        """
        if value.members is not None or value.elements is not None:
            return value
        if self.text[value.start] not in "{[":
            return value
        known = self._opened.get(value.start)
        if known is None:
            if outline is None or value.end - value.start > _SHORT:
                known = open_value(self.text, value)
            else:
                known = open_value(self.text, value, outline)
            self._opened[value.start] = known
        return known

    def member(self, holder: Value, name: str) -> Member | None:
        """Return an opened object's member of that name, or None. Raises Unjudgeable."""
        members = holder.members or ()
        if len(members) <= _FEW:
            return find_member(members, name)
        index = self._indexes.get(holder.start)
        if index is None:
            index = self._indexes[holder.start] = _by_spelling(members)
        near = {one.start: one for way in _spellings(name) for one in index.get(way, ())}
        return find_member(tuple(near.values()), name)

    def written(self, value: Value) -> str:
        return self.text[value.start : value.end]

    def find(
        self, root: Value | None, steps: Sequence[PathStep], outlines: Sequence[Outline] = ()
    ) -> list[Value]:
        """Return the values at a path: one or none, or with ``[*]`` any number."""
        found = [] if root is None else [root]
        for step, outline in zip(steps, outlines or repeat(None), strict=False):
            if len(found) == 1:
                found = list(self._inside(found[0], step, outline))
            else:
                found = [inner for value in found for inner in self._inside(value, step, outline)]
        return found

    def _inside(self, value: Value, step: PathStep, outline: Outline | None) -> Sequence[Value]:
        value = self.open(value, outline)
        if value.members is not None and isinstance(step, _NAMED):
            member = self.member(value, step.name)
            return () if member is None else (member.value,)
        if value.elements is None or isinstance(step, Key):
            return ()
        if step is Every.EVERY:
            return value.elements
        index = index_of(step)
        return () if index is None else value.elements[index : index + 1]


def index_of(step: PathStep) -> int | None:
    """Return the list index that a step means, or None."""
    if isinstance(step, Token):
        return int(step.name) if _INDEX.fullmatch(step.name) else None
    return step if isinstance(step, int) else None


def find_member(members: Sequence[Member], name: str) -> Member | None:
    """Return the member of that name, or None.

    Raises Unjudgeable if another could be taken for it.
    """
    found = None
    for member in members:
        key = member.key
        if key == name or could_be(key, name):
            if found is not None or key != name:
                raise Unjudgeable(f"the key {name!r} appears twice or in another spelling")
            found = member
    return found


def could_be(key: str, name: str) -> bool:
    """Tell whether careless readers could take a key for another."""
    if len(key) <= _LONGEST_KEPT:
        return _could_be_once(key, name)
    return not _spellings(key).isdisjoint(_spellings(name))


@lru_cache(maxsize=4096)
def _could_be_once(key: str, name: str) -> bool:
    """Cached, because the same few keys come again and again."""
    return not _spellings(key).isdisjoint(_spellings(name))


def _by_spelling(members: Sequence[Member]) -> dict[str, list[Member]]:
    index: dict[str, list[Member]] = {}
    for member in members:
        key = member.key
        index.setdefault(fold(key), []).append(member)
        index.setdefault(key.casefold(), []).append(member)
    return index


def _spellings(key: str) -> frozenset[str]:
    return frozenset((fold(key), key.casefold()))
