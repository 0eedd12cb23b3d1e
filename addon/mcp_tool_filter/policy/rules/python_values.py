"""Convert a message for a Python callable, and its changes back to text.

Parts that the callable does not change keep their bytes:

>>> changed_text('{"a": 1.0,  "b": 2}', {"a": 1.0, "b": 3})
'{"a": 1.0,  "b": 3}'
"""

from __future__ import annotations

import json

from mcp_tool_filter.policy.rules.edits import Edited, ImpossibleChange
from mcp_tool_filter.policy.rules.fields import Unjudgeable
from mcp_tool_filter.protocol.scan import Member, Value


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
    written = edited.document.written(value)
    if repr(old) == repr(new):
        return written
    value = edited.document.open(value)
    if isinstance(old, dict) and isinstance(new, dict) and value.members is not None:
        return _changed_object(edited, value, old, new)
    if isinstance(old, list) and isinstance(new, list) and value.elements is not None:
        return _changed_list(edited, value, old, new)
    return _dump(new)


def _changed_object(
    edited: Edited, value: Value, old: dict[str, object], new: dict[str, object]
) -> str:
    members = value.members or ()
    kept = [member for member in members if member.key in new]
    added = [f"{_dump(str(key))}:{_dump(new[key])}" for key in new if key not in old]

    def piece(member: Member) -> str:
        head = edited.text[member.start : member.value.start]
        return head + _changed(edited, member.value, old[member.key], new[member.key])

    if len(kept) < len(members) or not members:
        return "{" + ",".join([*map(piece, kept), *added]) + "}"
    parts = [edited.text[value.start : members[0].start]]
    for number, member in enumerate(members):
        end = members[number + 1].start if number + 1 < len(members) else member.value.end
        parts += [piece(member), edited.text[member.value.end : end]]
    more = "".join(f",{one}" for one in added)
    return "".join(parts) + more + edited.text[members[-1].value.end : value.end]


def _changed_list(edited: Edited, value: Value, old: list[object], new: list[object]) -> str:
    elements = value.elements or ()
    pieces = [
        _changed(edited, element, was, now)
        for element, was, now in zip(elements, old, new, strict=False)
    ]
    if len(old) != len(new) or not elements:
        return f"[{','.join([*pieces, *map(_dump, new[len(old) :])])}]"
    parts = [edited.text[value.start : elements[0].start]]
    for number, piece in enumerate(pieces):
        end = elements[number + 1].start if number + 1 < len(elements) else value.end
        parts += [piece, edited.text[elements[number].end : end]]
    return "".join(parts)


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
