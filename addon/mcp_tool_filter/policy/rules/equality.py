"""Compare a part of a message with a value of the policy, as JSON values.

We read the compared part completely, so a key in it that two readers could read differently raises
``Unjudgeable``, as it does on a path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from mcp_tool_filter.policy.rules.fields import Document, Unjudgeable
from mcp_tool_filter.policy.rules.values import Json, Number, Object, quote
from mcp_tool_filter.protocol.messages import fold
from mcp_tool_filter.protocol.scan import Value


def equals(document: Document, value: Value, wanted: Json) -> bool:
    """Tell whether a value equals the wanted one: 1 equals 1.0, but ``true`` does not equal 1."""
    if value.text is not None:
        return isinstance(wanted, str) and value.text == wanted
    match document.text[value.start]:
        case "{":
            return isinstance(wanted, Object) and _equals_object(document, value, wanted)
        case "[":
            elements = document.open(value).elements or ()
            return (
                isinstance(wanted, tuple)
                and len(elements) == len(wanted)
                and all(equals(document, *pair) for pair in zip(elements, wanted, strict=True))
            )
        case "t" | "f" | "n":
            # Not "in (None, True, False)": 1 == True in Python.
            return (wanted is None or isinstance(wanted, bool)) and (
                json.dumps(wanted) == document.written(value)
            )
        case _:
            return isinstance(wanted, Number) and number_in(document, value) == wanted


def number_in(document: Document, value: Value) -> Number | None:
    """Return a number's value; None for anything else."""
    if document.text[value.start] not in "-0123456789":
        return None
    try:
        return Number(document.written(value))
    except ValueError as error:
        raise Unjudgeable(str(error)) from None


def _equals_object(document: Document, value: Value, wanted: Object) -> bool:
    opened = document.open(value)
    members = opened.members or ()
    if len({fold(member.key) for member in members}) != len(members):
        raise Unjudgeable("keys that could be taken for one another")
    for key, inner in wanted.members:
        member = document.member(opened, key)
        if member is None or not equals(document, member.value, inner):
            return False
    return len(members) == len(wanted.members)


def hash_params(document: Document, params: Value | None) -> str:
    """Return a short hash that is the same for all spellings of the same params.

    Leaves out the progress token, which differs from request to request.
    """
    digest = hashlib.sha256()
    if params is None:
        digest.update(b"{}")
    else:
        for piece in _canonical(document, params, ("params",)):
            digest.update(piece.encode())
    return digest.hexdigest()[:32]


def _canonical(document: Document, value: Value, place: tuple[str, ...]) -> Iterator[str]:
    if value.text is not None:
        yield quote(value.text)
        return
    match document.text[value.start]:
        case "{":
            members = sorted(document.open(value).members or (), key=lambda one: one.key)
            shown = [one for one in members if (*place, one.key) != _PROGRESS]
            if place == ("params",):
                shown = [one for one in shown if not _is_empty_meta(document, one.key, one.value)]
            yield "{"
            for number, member in enumerate(shown):
                yield ("," if number else "") + quote(member.key) + ":"
                yield from _canonical(document, member.value, (*place[:2], member.key))
            yield "}"
        case "[":
            yield "["
            for number, element in enumerate(document.open(value).elements or ()):
                yield "," if number else ""
                yield from _canonical(document, element, ("", "", ""))
            yield "]"
        case "t" | "f" | "n":
            yield document.written(value)
        case _:
            number_value = number_in(document, value)
            assert number_value is not None
            yield repr(number_value.key)


_PROGRESS = ("params", "_meta", "progressToken")


def _is_empty_meta(document: Document, key: str, value: Value) -> bool:
    """Tell whether ``_meta`` contains nothing but a progress token."""
    if key != "_meta":
        return False
    members = document.open(value).members
    return members is not None and {member.key for member in members} <= {"progressToken"}
