"""Apply JSON patches (RFC 6902) without changing any other byte.

The usual libraries work on Python objects, and serialising these changes numbers and spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcp_tool_filter.policy.rules.edits import Edited, ImpossibleChange
from mcp_tool_filter.policy.rules.equality import equals
from mcp_tool_filter.policy.rules.fields import PathStep
from mcp_tool_filter.policy.rules.values import Json, render_json

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


def _apply(edited: Edited, one: Operation) -> Edited:
    match one.op:
        case "add":
            return _add(edited, one.path, render_json(one.value))
        case "remove":
            edited.only(one.path)
            return _remove(edited, one.path)
        case "replace":
            edited.only(one.path)
            return edited.set(one.path, render_json(one.value))
        case "move":
            if one.path[: len(one.source)] == one.source and one.path != one.source:
                raise ImpossibleChange("a value cannot be moved into itself")
            moved = edited.document.written(edited.only(one.source))
            return _add(_remove(edited, one.source), one.path, moved)
        case "copy":
            return _add(edited, one.path, edited.document.written(edited.only(one.source)))
        case _:
            if not equals(edited.document, edited.only(one.path), one.value):
                raise ImpossibleChange("a test of the patch failed")
            return edited


def _add(edited: Edited, path: tuple[PathStep, ...], written: str) -> Edited:
    return edited.insert(path, written) if path else edited.set(path, written)


def _remove(edited: Edited, path: tuple[PathStep, ...]) -> Edited:
    if not path:
        raise ImpossibleChange("a patch cannot remove all of the message")
    return edited.remove(path)
