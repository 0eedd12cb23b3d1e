r"""Edit a tool's definition, and the calls of the tool, byte by byte: all else stays as it was.

>>> from mcp_tool_filter.rooms.edits.tables import ToolEdit
>>> raw = b'{ "name": "a",  "inputSchema": {"type": "object", "properties": {"p": {}, "q": {}}} }'
>>> edited_definition(raw, ToolEdit(name="b", fix={"p": '"x"'}))
b'{ "name": "b",  "inputSchema": {"type": "object", "properties": {"q": {}}} }'

A definition in which a key stands twice cannot be edited: each reader may take another one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import fold
from mcp_tool_filter.core.messages.scan import EACH, Member, Value, open_value, scan
from mcp_tool_filter.core.messages.tools import Edit as Change
from mcp_tool_filter.core.messages.tools import removed, says_of_list, with_edits
from mcp_tool_filter.rooms.edits.tables import HINTS, NO_EDIT, ToolEdit

_OUTLINE = {
    "annotations": {},
    "_meta": {},
    "inputSchema": {"properties": {}, "required": {EACH: None}},
}
_MOVED = ("allOf", "oneOf", "anyOf", "if", "then", "else")
"""Keywords at the root of a schema that some clients refuse."""


class CannotEdit(ProtocolError):
    """A definition or a call that cannot be edited. ``str()`` says why."""


def edited_definition(raw: bytes, edit: ToolEdit) -> bytes:
    """Return the definition with all that the edit changes. Raises CannotEdit."""
    if edit is NO_EDIT:
        return raw
    _refuse_repeated(raw)
    text, root = _read(raw)
    if digests := list(_digests_in(root)):  # of the definition as it was
        text, root = _read(with_edits(text, 0, len(text), digests).encode())
    description = _described(text, root, edit)
    changes = [
        *_set(root, "name", edit.name),
        *_set(root, "title", edit.title),
        *_set(root, "description", description),
        *_set_members(root, "annotations", _hints_of(edit)),
        *_set_members(root, "_meta", edit.meta),
        *_schema_changes(text, root, edit),
    ]
    return with_edits(text, 0, len(text), _joined(changes)).encode()


def _read(raw: bytes) -> tuple[str, Value]:
    return scan(raw, _OUTLINE, Limits(message=max(1, len(raw))))


def _digests_in(root: Value) -> Iterator[Change]:
    """Remove digests and signatures."""
    for holder in filter(None, (root, root.get("_meta"))):
        yield from removed(holder, [one for one in holder.members or () if says_of_list(one)])


def _refuse_repeated(raw: bytes) -> None:
    def each(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise CannotEdit("a key stands twice in its definition")

    try:
        json.loads(raw, object_pairs_hook=each, parse_int=str, parse_float=str)
    except RecursionError:
        raise CannotEdit("its definition is nested too deeply") from None


def _hints_of(edit: ToolEdit) -> dict[str, str]:
    return {HINTS[name]: json.dumps(value) for name, value in edit.hints.items()}


def _set(holder: Value, key: str, text: str | None) -> Iterator[Change]:
    """Set a member to a text, if there is one to set."""
    if text is not None:
        yield _member(holder, key, json.dumps(text, ensure_ascii=False))


def _member(holder: Value, key: str, written: str) -> Change:
    """Replace the value of a member, or add the member at the end."""
    if (value := holder.get(key)) is not None:
        return Change(value.start, value.end, written)
    return _added(holder, f"{json.dumps(key, ensure_ascii=False)}:{written}")


def _added(holder: Value, written: str) -> Change:
    members = holder.members or ()
    end = members[-1].value.end if members else holder.start + 1
    return Change(end, end, f",{written}" if members else written)


def _set_members(root: Value, key: str, members: Mapping[str, str]) -> Iterator[Change]:
    """Set members of an object within the definition, which may be missing."""
    if not members:
        return
    holder = root.get(key)
    if holder is None or holder.members is None:
        written = ",".join(f"{json.dumps(name)}:{value}" for name, value in members.items())
        yield _member(root, key, f"{{{written}}}")
        return
    for name, written in members.items():
        yield _member(holder, name, written)


def _joined(changes: Iterable[Change]) -> list[Change]:
    """Join what is added at one place: changes are sorted by place and text."""
    found: dict[tuple[int, int], str] = {}
    for change in changes:
        place = change.start, change.end
        before = found.get(place, "")
        comma = "," if before and change.start == change.end and change.text[:1] == '"' else ""
        found[place] = before + comma + change.text
    return [Change(*place, text) for place, text in found.items()]


# Schemas


def _schema_changes(text: str, root: Value, edit: ToolEdit) -> Iterator[Change]:
    schema = root.get("inputSchema")
    if schema is None or schema.members is None:
        return
    gone = {*edit.fix, *edit.drop}
    properties, required = schema.get("properties"), schema.get("required")
    if gone and properties is not None and properties.members:
        yield from removed(properties, [one for one in properties.members if one.key in gone])
    if gone and required is not None and required.elements is not None:
        yield from _without_elements(required, gone)
    if edit.flat:
        yield from removed(schema, [one for one in schema.members if one.key in _MOVED])
        yield from _as_object(text, schema)


def _without_elements(array: Value, gone: Collection[str]) -> Iterator[Change]:
    """Remove texts from an array, each with one comma."""
    as_members = [Member(one.text or "", one.start, one) for one in array.elements or ()]
    holder = Value(array.start, array.end, None, tuple(as_members))
    yield from removed(holder, [one for one in as_members if one.value.text in gone])


def _as_object(text: str, schema: Value) -> Iterator[Change]:
    """Give a schema the type object, if it has none or several."""
    kind = schema.get("type")
    if kind is not None and kind.text == "object":
        return
    if kind is not None:
        yield Change(kind.start, kind.end, '"object"')
        return
    kept = any(one.key not in _MOVED for one in schema.members or ())
    yield Change(schema.start + 1, schema.start + 1, '"type":"object"' + ("," if kept else ""))


def _described(text: str, root: Value, edit: ToolEdit) -> str | None:
    """Return the new description, with what leaves the schema; None if it stays."""
    schema = root.get("inputSchema")
    moved = [one for one in (schema.members if schema else None) or () if one.key in _MOVED]
    if not (edit.flat and moved):
        return edit.description
    described = root.get("description")
    before = edit.description
    if before is None:
        before = (described.text if described else None) or ""
    lines = [f"{one.key}: {text[one.value.start : one.value.end]}" for one in moved]
    return "\n".join([before, *lines] if before else lines)


def problems_in(raw: bytes, edit: ToolEdit) -> Iterator[str]:
    """Yield what an edit wants and this definition does not have. Raises CannotEdit."""
    try:
        schema = json.loads(raw, parse_int=str)["inputSchema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    known = schema.get("properties") if isinstance(schema, dict) else None
    names = known if isinstance(known, dict) else {}
    needed = schema.get("required") if isinstance(schema, dict) else None
    for name in edit.drop:
        if isinstance(needed, list) and name in needed:
            raise CannotEdit(f"drops {name}, which is required")
    for name in (*edit.fix, *edit.drop):
        if name not in names:
            yield f"it has no parameter {name}"
        elif not edit.flat and any(_names(schema.get(key), name) for key in _MOVED):
            yield f"a branch of its schema names {name}, too"


def _names(branch: object, name: str) -> bool:
    """Tell whether a branch of a schema speaks of a parameter."""
    waiting = [branch]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if name in one:
                return True
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif one == name:
            return True
    return False


# Calls


def fixed_arguments(text: str, params: Value, edit: ToolEdit) -> Change | None:
    """Return the one change that puts the fixed values into a call. Raises CannotEdit."""
    if not edit.fix:
        return None
    arguments = params.get("arguments")
    if arguments is None:
        return _added(params, f'"arguments":{{{edit.fixed}}}')
    arguments = open_value(text, arguments, {})
    if arguments.members is None:
        raise CannotEdit("its arguments are not an object")
    _refuse_brought([one.key for one in arguments.members], edit)
    return _added(arguments, edit.fixed)


def _refuse_brought(keys: Sequence[str], edit: ToolEdit) -> None:
    if len(set(keys)) < len(keys):
        raise CannotEdit("an argument stands twice")
    for key in keys:
        if fold(key) in edit.not_to_bring:
            raise CannotEdit(f"{key} cannot be set")


_PAIRS = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str)


def plainly_fixed(call: bytes, arguments: bytes, edit: ToolEdit) -> bytes | None:
    r"""Do the same for a call that is proven plain (``rooms/lane``): it has each member once,
    and no escaped key. None if that is not enough to find its arguments, or to judge them.

    >>> from mcp_tool_filter.rooms.edits.tables import ToolEdit
    >>> call = b'{"params":{"arguments":{"a":1 },"name":"b"}}'
    >>> plainly_fixed(call, b'{"a":1 }', ToolEdit(fix={"c": "2"}))
    b'{"params":{"arguments":{"a":1,"c":2 },"name":"b"}}'
    >>> plainly_fixed(b'{"params":{"name":"arguments"}}', b"", ToolEdit(fix={"c": "2"}))
    """
    # Without arguments the word may be an id, or what a client is called.
    if not arguments or call.count(b'"arguments"') != 1:
        return None
    text = arguments.decode()
    try:
        pairs, end = _PAIRS.raw_decode(text)
        _refuse_brought([key for key, _ in pairs], edit)
    except (CannotEdit, ValueError):
        return None
    at = len(text[: end - 1].rstrip(" \t\r\n"))
    comma = "," if pairs else ""
    fixed = f"{text[:at]}{comma}{edit.fixed}{text[at:]}".encode()
    before, key, after = call.partition(b'"arguments"')
    return before + key + after.replace(arguments, fixed, 1)
