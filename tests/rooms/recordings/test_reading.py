"""Messages for the eye: lenient, short, and never at a loss."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.recordings.reading import (
    NotReadable,
    holds_message,
    render_body,
    tools_in,
)
from tests.rows import each_row

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


def result(value: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode()


def test_a_tool_list_is_one_line_a_tool() -> None:
    schema = {"properties": {"path": {}, "n": {}}, "required": ["path"]}
    reads = {"name": "read_file", "description": "Reads.\nAll of it.", "inputSchema": schema}
    tools = [reads, {"name": "odd", "inputSchema": 7}, "no tool"]
    assert render_body(result({"tools": tools, "nextCursor": "5"}), JSON) == (
        "response\n  id: 1\n  tools: 3\n    - read_file(path, n?): Reads.\n    - odd()\n"
        '    no tool\n  nextCursor: "5"'
    )


def test_a_mark_is_shown_only_for_what_is_said_in_one_way() -> None:
    said: dict[str, object] = {"annotations": {"readOnlyHint": True, "openWorldHint": True}}
    other = {"annotations ": {"readOnlyHint": False}}
    body = result({"tools": [said | {"name": "a"}, said | other | {"name": "b"}]})
    shown = render_body(body, JSON).splitlines()
    assert shown[-2:] == ["    - a() [read-only, open-world]", "    - b()"]


def test_text_of_several_lines_keeps_its_lines() -> None:
    body = result({"content": [{"type": "text", "text": "one\ntwo\n"}]})
    assert "- type: text\n      text: |\n        one\n        two" in render_body(body, JSON)


@pytest.mark.parametrize(("body", "content_type", "shown"), [
    # numbers stay as they were written
    (b'{"jsonrpc":"2.0","id":1.0,"result":{"a":1e400,"b":"1.0"}}', JSON,
     'response\n  id: 1.0\n  a: 1e400\n  b: "1.0"'),
    (b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":2,"method":"ping"}]', JSON,
     "batch of 2\n  notification x\n  request ping\n    id: 2"),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no: way","data":{"a":[1]}}}', JSON,
     'error\n  id: 1\n  code: -1\n  message: "no: way"\n  data:\n    a: [1]'),
    # events are counted, and comments shown
    (b': ping\n\nid: 7\ndata: {"jsonrpc":"2.0","method":"x"}\n\ndata: nothing\n\n\r\ndata: cu',
     EVENTS,
     "event 1: : ping\n\nevent 2\n  notification x\n\nevent 3\n  nothing\n\nevent 4\n  cu"),
    # before a colon, or of white space alone, there is nothing to read
    (b"id: 1\ndata:\n\nevent: x\ndata:  \n\n", "text/event-stream",
     "event 1: empty\n\nevent 2: empty"),
])  # fmt: skip
def test_bodies_are_shown(body: bytes, content_type: str, shown: str) -> None:
    assert render_body(body, content_type) == shown


@each_row("body", [b"", b"{", b'{"a":1}', b"[]x", b"\xff", b"[1]"])
def test_other_bodies_are_not_readable(body: bytes) -> None:
    with pytest.raises(NotReadable):
        render_body(body, JSON)


@pytest.mark.parametrize(("body", "content_type", "holds"), [
    (b'{"jsonrpc":"2.0"}', JSON, True), (b'{"jsonrpc":"2.0"}', "text/html", False),
    (b'{"a":1}', JSON, False), (b"data: x", EVENTS, True),
])  # fmt: skip
def test_readable_bodies_are_recognised(body: bytes, content_type: str, holds: bool) -> None:
    assert holds_message(body, content_type) is holds


def test_tools_are_found_in_events_and_batches() -> None:
    listing = result({"tools": [{"name": "a"}, {"name": "b"}]})
    assert tools_in(b"data: " + listing + b"\n\n", EVENTS) == ["a", "b"]
    assert tools_in(b"[" + listing + b"]", JSON) == ["a", "b"]
    assert tools_in(b"no JSON", JSON) == []


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON_VALUES, member=st.sampled_from(["result", "params", "error"]))
def test_every_message_can_be_shown(value: object, member: str) -> None:
    message = {"jsonrpc": "2.0", "id": value, "method": "x", member: value}
    assert render_body(json.dumps(message).encode(), JSON)
    del message["method"]
    assert render_body(json.dumps(message).encode(), JSON)
