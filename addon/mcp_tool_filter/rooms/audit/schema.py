"""The JSON schema of the audit log's lines, from the type that declares them.

Write ``docs/audit-line.schema.json`` anew after a change of that type:

    python -m mcp_tool_filter.rooms.audit.schema
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from mcp_tool_filter.rooms.audit.contents import Content
from mcp_tool_filter.rooms.audit.entries import AuditLine
from mcp_tool_filter.rooms.audit.entry import LazyValue

FILE = Path(__file__).resolve().parents[2] / "docs" / "audit-line.schema.json"
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}

type Schema = dict[str, object]


def json_schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of the audit log of mcp-tool-filter",
        "description": "Later versions may add members; existing members keep their meaning.",
        **_schema_of_members(AuditLine, "prev"),  # the writer adds it to each line
        "$defs": {"content": _schema_of_members(Content)},
    }


def render() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def _schema_of_members(declared: Any, *more: str) -> Schema:
    hints = get_type_hints(declared, include_extras=True)
    always = [name for name, hint in hints.items() if _is_required(hint, declared.__total__)]
    return {
        "type": "object",
        "required": [*always, *more],
        "properties": {name: _schema_of(hint) for name, hint in hints.items()},
        "additionalProperties": False,
    }


def _is_required(hint: Any, is_usual: bool) -> bool:
    marked = get_origin(hint)
    return marked is Required or (is_usual and marked is not NotRequired)


def _schema_of(hint: Any) -> Schema:
    if get_origin(hint) in (Required, NotRequired):
        return _schema_of(get_args(hint)[0])
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        noted = _noted(notes)
        return noted if "enum" in noted else _schema_of(inner) | noted
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return {"enum": list(choices)} if len(choices) > 1 else {"const": choices[0]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema_of(get_args(hint)[0])}
    if isinstance(hint, UnionType):
        # A lazy value is written as what it makes.
        kinds = [kind for kind in get_args(hint) if kind is not LazyValue]
        return _schema_of(kinds[0]) if len(kinds) == 1 else {"type": [_NAMES[k] for k in kinds]}
    return {"$ref": "#/$defs/content"} if is_typeddict(hint) else {"type": _NAMES[hint]}


def _noted(notes: list[Any]) -> Schema:
    """Return what is noted beside a type: a description, or more of its schema."""
    schema: Schema = {}
    for note in notes:
        schema |= {"description": note} if isinstance(note, str) else note
    return schema


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
