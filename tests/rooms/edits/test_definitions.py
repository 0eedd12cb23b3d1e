"""Edits change their own bytes of a definition or of a call, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_tool_filter.core.messages.messages import Request, parse_message
from mcp_tool_filter.core.messages.tools import edited
from mcp_tool_filter.rooms.edits.definitions import (
    CannotEdit,
    edited_definition,
    fixed_arguments,
    problems_in,
)
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor
from mcp_tool_filter.rooms.edits.tables import ToolEdit, parse_edits
from tests.rows import each_row

ROWS: list[tuple[bytes, ToolEdit, bytes]] = [
    (b'{ "name": "a",  "n": 1.50 }', ToolEdit(name="b"), b'{ "name": "b",  "n": 1.50 }'),
    (b'{"name":"a"}', ToolEdit(title="T"), b'{"name":"a","title":"T"}'),
    (
        b'{"name":"a","annotations":{ "readOnlyHint" : true }}',
        ToolEdit(hints={"read-only": False, "open-world": True}),
        b'{"name":"a","annotations":{ "readOnlyHint" : false,"openWorldHint":true }}',
    ),
    (
        b'{"name":"a","_meta":{"digest":"d"},"signature":"s"}',
        ToolEdit(meta={"k": "true"}),
        b'{"name":"a","_meta":{"k":true}}',
    ),
    (
        b'{"name":"a","inputSchema":{"properties":{"p":{}, "q":{}},"required":["q", "p"]}}',
        ToolEdit(fix={"p": "1"}),
        b'{"name":"a","inputSchema":{"properties":{"q":{}},"required":["q"]}}',
    ),
    (
        b'{"name":"a","inputSchema":{"allOf":[{"x":1}],"properties":{}}}',
        ToolEdit(flat=True),
        b'{"name":"a","inputSchema":{"type":"object","properties":{}},'
        b'"description":"allOf: [{\\"x\\":1}]"}',
    ),
    (
        b'{"name":"a","description":"Says.","inputSchema":{"type":["object","null"],"if":{},'
        b'"then":{},"else":{}}}',
        ToolEdit(flat=True),
        b'{"name":"a","description":"Says.\\nif: {}\\nthen: {}\\nelse: {}",'
        b'"inputSchema":{"type":"object"}}',
    ),
]


@each_row("before, edit, after", ROWS)
def test_only_the_edited_bytes_change(before: bytes, edit: ToolEdit, after: bytes) -> None:
    assert edited_definition(before, edit) == after


def test_a_definition_in_which_a_key_stands_twice_cannot_be_edited() -> None:
    raw = b'{"name":"a","inputSchema":{"properties":{"p":{},"p":{}}}}'
    with pytest.raises(CannotEdit):
        edited_definition(raw, ToolEdit(title="T"))


def test_a_required_parameter_cannot_be_dropped() -> None:
    raw = b'{"inputSchema":{"properties":{"p":{}},"required":["p"]}}'
    with pytest.raises(CannotEdit, match="required"):
        list(problems_in(raw, ToolEdit(drop=("p",))))
    assert list(problems_in(raw, ToolEdit(drop=("q",)))) == ["it has no parameter q"]
    branch = raw.replace(b'"required"', b'"anyOf":[{"required":["q"]}],"required"')
    assert "a branch of its schema names q, too" not in list(problems_in(branch, ToolEdit(fix={})))


def fixed(params: str) -> str:
    raw = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
    message = parse_message(raw.encode())
    assert isinstance(message, Request)
    assert message.params is not None
    change = fixed_arguments(message.place.text, message.params, ToolEdit(fix={"team": '"t"'}))
    text = edited(message.place, [change] if change else []).decode()
    return text.partition('"params":')[2][:-1]


@each_row("before, after", [
    ('{"name":"a","arguments":{"n": 1.0 }}', '{"name":"a","arguments":{"n": 1.0,"team":"t" }}'),
    ('{"name":"a","arguments":{}}', '{"name":"a","arguments":{"team":"t"}}'),
    ('{"name":"a"}', '{"name":"a","arguments":{"team":"t"}}'),
])  # fmt: skip
def test_a_fixed_value_is_one_change_of_the_call(before: str, after: str) -> None:
    assert fixed(before) == after


@pytest.mark.parametrize(
    "arguments",
    ['{"team":1}', '{"Team":1}', '{"te\\u0061m":1}', "null", "[]", '"x"', '{"a":1,"a":2}'],
)
def test_a_call_that_could_set_the_fixed_value_is_refused(arguments: str) -> None:
    with pytest.raises(CannotEdit):
        fixed(f'{{"name":"a","arguments":{arguments}}}')


def test_what_is_edited_stays_json() -> None:
    raw = b'{"name":"a","inputSchema":{"type":"object","properties":{"p":{}},"required":["p"]}}'
    edit = ToolEdit(
        name="b", title="T", description="D", hints={"destructive": True}, meta={"k": "1"},
        fix={"p": "1"}, flat=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(edited_definition(raw, edit))
    assert said == {
        "name": "b", "title": "T", "description": "D", "annotations": {"destructiveHint": True},
        "_meta": {"k": 1}, "inputSchema": {"type": "object", "properties": {}, "required": []},
    }  # fmt: skip


def test_what_is_remembered_of_an_upstreams_definitions_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upstream may send another definition with each list."""
    monkeypatch.setattr("mcp_tool_filter.rooms.edits.editor._LARGEST_KEPT", 1000)
    editor = DefinitionEditor(parse_edits({"a": {"title": "T"}}))
    for number in range(200):
        raw = b'{"name":"a","n":%d,"inputSchema":{}}' % number
        assert editor.edited("a", raw) == raw[:-1] + b',"title":"T"}'
    assert 0 < sum(map(len, editor._kept)) <= 1000
