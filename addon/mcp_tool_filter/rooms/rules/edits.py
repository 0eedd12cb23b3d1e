r"""Edit JSON without changing any other byte: fields, patches, and what a callable made of it.

>>> from mcp_tool_filter.rooms.rules.fields import parse_field
>>> edit = Edited('{ "path": "/a",  "n": 1.0 }')
>>> edit.set(parse_field("path").steps, '"/b"').text
'{ "path": "/b",  "n": 1.0 }'
>>> edit.set(parse_field("options.deep").steps, "true").text
'{ "path": "/a",  "n": 1.0,"options":{"deep":true} }'
>>> edit.remove(parse_field("path").steps).text
'{ "n": 1.0 }'
>>> changed_text('{"a": 1.0,  "b": 2}', {"a": 1.0, "b": 3})
'{"a": 1.0,  "b": 3}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jsregex.cost import Budget
from jsregex.tree import to_units
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.scan import EACH, Member, Value, scan
from mcp_tool_filter.rooms.rules.fields import (
    Document,
    Every,
    Json,
    Key,
    Object,
    PathStep,
    RulePattern,
    Token,
    Unjudgeable,
    equals,
    index_of,
    quote,
    render_json,
)

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?')
_KEY_ENDS = re.compile(r"[ \t\n\r]*:")
_UNITS = re.compile(r"[^\\\U00010000-\U0010ffff]+|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_LOOK_EVERY = 1000  # strings
_PRICE_OF_ESCAPE = 20  # decoding one escape takes as long as so many steps of a pattern


class ImpossibleChange(Exception):
    """A change that this message does not allow. ``str()`` says why."""


type _Splice = tuple[int, int, str]
"""A start, an end, and the text to write there instead."""


class Edited:
    """A JSON text. Each change returns a new one."""

    def __init__(self, text: str, look: Callable[[], object] = bool) -> None:
        """Each change calls ``look``, which raises if they take too long."""
        look()
        self.look = look
        self.text = text
        raw = text.encode()
        _, self.root = scan(raw, {EACH: None}, Limits(message=max(1, len(raw))))
        self.document = Document(text)

    def set(self, steps: Sequence[PathStep], written: str) -> Edited:
        """Set a field; create the members on its path that are missing."""
        return self._spliced(_set(self.document, self.root, steps, written))

    def remove(self, steps: Sequence[PathStep]) -> Edited:
        """Remove a field, if it is there."""
        holders = self.document.find(self.root, steps[:-1])
        return self._spliced(
            splice for holder in holders for splice in _remove(self.document, holder, steps[-1])
        )

    def redact(
        self, steps: Sequence[PathStep], pattern: RulePattern, replacement: str, budget: Budget
    ) -> Edited:
        """Replace the matches of a pattern in the strings at a field and below it.

        Raises PatternGivenUp.
        """
        return self._spliced(
            splice
            for value in self.document.find(self.root, steps)
            for splice in _redact(self, value, pattern, quote(replacement)[1:-1], budget)
        )

    def insert(self, steps: Sequence[PathStep], written: str) -> Edited:
        """Add a value as RFC 6902 does: in a list, before the element at that index."""
        *path, last = steps
        holder = self.document.open(self.only(path))
        if holder.elements is None:
            return self.set(steps, written)
        count = len(holder.elements)
        at = count if last == Token("-") else index_of(last)
        if at is None or at > count:
            raise ImpossibleChange("past the end of a list")
        if at < count:
            start = holder.elements[at].start
            return self._spliced([(start, start, f"{written},")])
        start = holder.elements[-1].end if count else holder.start + 1
        return self._spliced([(start, start, f",{written}" if count else written)])

    def only(self, steps: Sequence[PathStep]) -> Value:
        """Return the value at a place. Raises ImpossibleChange if there is none."""
        values = self.document.find(self.root, steps)
        if not values:
            raise ImpossibleChange("there is no such place in the message")
        return values[0]

    def merge(self, patch: Json, path: tuple[PathStep, ...] = ()) -> Edited:
        """Apply a merge patch (RFC 7396)."""
        if not isinstance(patch, Object) or self.text[self.only(path).start] != "{":
            return self.set(path, render_json(_without_nulls(patch)))
        edited = self
        for key, inner in patch.members:
            place = (*path, Key(key))
            values = edited.document.find(edited.root, place)
            if inner is None:
                edited = edited.remove(place)
            elif isinstance(inner, Object) and values and edited.text[values[0].start] == "{":
                edited = edited.merge(inner, place)
            else:
                edited = edited.set(place, render_json(_without_nulls(inner)))
        return edited

    def _spliced(self, splices: Iterable[_Splice]) -> Edited:
        pieces, past = [], 0
        for start, end, text in sorted(splices):
            pieces += [self.text[past:start], text]
            past = end
        return Edited("".join([*pieces, self.text[past:]]), self.look) if pieces else self


def _set(
    document: Document, value: Value, steps: Sequence[PathStep], written: str
) -> Iterator[_Splice]:
    if not steps:
        yield (value.start, value.end, written)
        return
    value = document.open(value)
    step, *rest = steps
    if value.members is not None and isinstance(step, Key | Token):
        member = document.member(value, step.name)
        if member is not None:
            yield from _set(document, member.value, rest, written)
        elif (built := _built(rest, written)) is not None:
            yield _added(value, step.name, built)
    elif value.elements is None or isinstance(step, Key):
        raise ImpossibleChange("a part of the path is neither an object nor a list")
    elif step is Every.EVERY:
        for element in value.elements:
            yield from _set(document, element, rest, written)
    else:
        index = index_of(step)
        if index is None or index >= len(value.elements):
            raise ImpossibleChange("past the end of a list")
        yield from _set(document, value.elements[index], rest, written)


def _added(holder: Value, key: str, written: str) -> _Splice:
    """Add a member after the last one."""
    members = holder.members or ()
    at = members[-1].value.end if members else holder.start + 1
    comma = "," if members else ""
    return (at, at, f"{comma}{quote(key)}:{written}")


def _built(steps: Sequence[PathStep], written: str) -> str | None:
    """Render the missing objects on a path; None if the path needs list elements that do not
    exist."""
    for step in reversed(steps):
        if step is Every.EVERY:
            return None
        if isinstance(step, int):
            raise ImpossibleChange("past the end of a list")
        written = f"{{{quote(step.name)}:{written}}}"
    return written


def _remove(document: Document, holder: Value, step: PathStep) -> Iterator[_Splice]:
    holder = document.open(holder)
    parts: Sequence[Member] | Sequence[Value]
    if holder.members is not None and isinstance(step, Key | Token):
        member = document.member(holder, step.name)
        if member is not None:
            yield _cut(holder.members, holder.members.index(member))
    elif holder.elements is not None and step is Every.EVERY:
        if holder.elements:
            yield (holder.elements[0].start, holder.elements[-1].end, "")
    elif holder.elements is not None and not isinstance(step, Key):
        index = index_of(step)
        if index is not None and index < len(holder.elements):
            parts = holder.elements
            yield _cut(parts, index)


def _cut(parts: Sequence[Member] | Sequence[Value], index: int) -> _Splice:
    """Remove a part together with one comma beside it."""
    if index:
        return (_end(parts[index - 1]), _end(parts[index]), "")
    if len(parts) > 1:
        return (parts[0].start, parts[1].start, "")
    return (parts[0].start, _end(parts[0]), "")


def _end(part: Member | Value) -> int:
    return part.end if isinstance(part, Value) else part.value.end


def _redact(
    edited: Edited, value: Value, pattern: RulePattern, replacement: str, budget: Budget
) -> Iterator[_Splice]:
    text = edited.text
    for number, found in enumerate(_STRING.finditer(text, value.start, value.end), 1):
        if not number % _LOOK_EVERY:
            edited.look()
        if not _KEY_ENDS.match(text, found.end(), value.end):
            first, last = found.start() + 1, found.end() - 1
            yield from _redact_string(text, first, last, pattern, replacement, budget)


def _redact_string(
    text: str, start: int, end: int, pattern: RulePattern, replacement: str, budget: Budget
) -> Iterator[_Splice]:
    written = text[start:end]
    escapes = written.count("\\") + len(to_units(written)) - len(written)
    pattern.spend(escapes * _PRICE_OF_ESCAPE, budget)
    units, places = _units(written)
    for first, last in pattern.find(units, budget):
        yield (start + places[first], start + places[last], replacement)


def _units(written: str) -> tuple[str, Sequence[int]]:
    """Return a string's UTF-16 code units, and where each begins in the written string."""
    if "\\" not in written and len(to_units(written)) == len(written):
        return written, range(len(written) + 1)
    units: list[str] = []
    places: list[int] = []
    for found in _UNITS.finditer(written):
        piece = found.group()
        if piece[0] != "\\" and len(to_units(piece)) == len(piece):  # each character is one unit
            units.append(piece)
            places += range(found.start(), found.end())
            continue
        for unit in to_units(_unescaped(piece)):
            units.append(unit)
            places.append(found.start())
    return "".join(units), [*places, len(written)]


_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescaped(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    return chr(int(piece[2:], 16)) if piece[1] == "u" else _ESCAPED.get(piece[1], piece[1])


def _without_nulls(value: Json) -> Json:
    """Return a value that a merge patch adds, without nulls, which mean "remove"."""
    if not isinstance(value, Object):
        return value
    return Object(tuple((key, _without_nulls(of)) for key, of in value.members if of is not None))


OPERATIONS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
"""Each operation and the members it needs."""


@dataclass(frozen=True, slots=True)
class Operation:
    op: str
    path: tuple[PathStep, ...]
    source: tuple[PathStep, ...] = ()
    """``from`` in a patch."""
    value: Json = None


def apply_patch(edited: Edited, patch: Sequence[Operation]) -> Edited:
    """Apply all operations. Raises ImpossibleChange if one of them fails."""
    for operation in patch:
        edited = _apply(edited, operation)
    return edited


def _apply(edited: Edited, operation: Operation) -> Edited:
    match operation.op:
        case "add":
            return _add(edited, operation.path, render_json(operation.value))
        case "remove":
            edited.only(operation.path)
            return _remove_value(edited, operation.path)
        case "replace":
            edited.only(operation.path)
            return edited.set(operation.path, render_json(operation.value))
        case "move":
            if (
                operation.path[: len(operation.source)] == operation.source
                and operation.path != operation.source
            ):
                raise ImpossibleChange("a value cannot be moved into itself")
            moved = edited.document.written(edited.only(operation.source))
            return _add(_remove_value(edited, operation.source), operation.path, moved)
        case "copy":
            return _add(
                edited, operation.path, edited.document.written(edited.only(operation.source))
            )
        case _:
            if not equals(edited.document, edited.only(operation.path), operation.value):
                raise ImpossibleChange("a test of the patch failed")
            return edited


def _add(edited: Edited, path: tuple[PathStep, ...], written: str) -> Edited:
    return edited.insert(path, written) if path else edited.set(path, written)


def _remove_value(edited: Edited, path: tuple[PathStep, ...]) -> Edited:
    if not path:
        raise ImpossibleChange("a patch cannot remove all of the message")
    return edited.remove(path)


def to_python(text: str) -> object:
    """Return a message as Python values.

    Raises Unjudgeable if a key occurs twice, ImpossibleChange if a number is too long for Python.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ImpossibleChange("Python cannot read the message") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unjudgeable("a key appears twice, and a callable sees only one of them")
    return members


def changed_text(text: str, new: object) -> str:
    """Render the value that a callable returned.

    Raises TypeError or ValueError if it is not JSON.
    """
    edited = Edited(text)
    return _changed(edited, edited.root, to_python(text), new)


def _changed(edited: Edited, value: Value, old: object, new: object) -> str:
    if repr(old) == repr(new):
        return edited.document.written(value)
    value = edited.document.open(value)
    parts: list[tuple[int, Value, object, object]]
    kept: dict[Any, object]
    if isinstance(old, dict) and isinstance(new, dict) and value.members is not None:
        parts = [
            (member.start, member.value, old[member.key], member.key) for member in value.members
        ]
        kept = {key: new[key] for key in old if key in new}
        added = [f"{_dump(str(key))}:{_dump(new[key])}" for key in new if key not in old]
    elif isinstance(old, list) and isinstance(new, list) and value.elements is not None:
        parts = [(element.start, element, old[at], at) for at, element in enumerate(value.elements)]
        kept = dict(enumerate(new[: len(old)]))
        added = [_dump(element) for element in new[len(old) :]]
    else:
        return _dump(new)
    text = edited.text
    pieces = [
        text[start : one.start] + _changed(edited, one, was, kept[key])
        for start, one, was, key in parts
        if key in kept
    ]
    if len(kept) < len(parts) or not parts or (added and isinstance(new, list)):
        return f"{text[value.start]}{','.join([*pieces, *added])}{text[value.end - 1]}"
    # What stands between the parts is kept.
    ends = [*(start for start, *_ in parts[1:]), parts[-1][1].end]
    between = [text[one.end : end] for (_, one, *_), end in zip(parts, ends, strict=True)]
    head, tail = text[value.start : parts[0][0]], text[parts[-1][1].end : value.end]
    body = "".join(f"{piece}{gap}" for piece, gap in zip(pieces, between, strict=True))
    return head + body + "".join(f",{element}" for element in added) + tail


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
