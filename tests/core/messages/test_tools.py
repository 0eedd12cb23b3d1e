"""Calls and lists of tools, read so that no other reader finds another tool in them."""

from __future__ import annotations

import json
import shutil
import subprocess

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import tools
from mcp_tool_filter.core.messages.messages import Notification, Response
from mcp_tool_filter.core.messages.tool_requests import (
    ToolCall,
    parse_list_request,
    parse_tool_call,
)
from mcp_tool_filter.core.messages.tools import shows_tool
from tests.make import answering, asking, definition, message, one_definition, page, request
from tests.rows import each_row

NODE = shutil.which("node")


def test_a_notification_call_has_no_id() -> None:
    raw = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}'
    called = message(raw)
    assert isinstance(called, Notification)
    assert parse_tool_call(called) == ToolCall("a", None)


@each_row("params", [
    "null", "{}", '{"name":null}', '{"name":1}', '{"name":"a","n\\u0061me":"b"}',
    '{"name":"a"," name":"b"}', '{"name":"a","name\\u0000":"b"}', '{"name":"a","na\\ud800me":"b"}',
    '{"name":"a","\\uff4eame":"b"}',
    '{"name":"a","arguments":{},"Arguments":{}}',
    '{"name":"a","ARGUMENTS":{}}', '{"name":"a","_Meta":{}}',
])  # fmt: skip
def test_an_ambiguous_call_is_refused(params: str) -> None:
    without = b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
    for raw in (asking("tools/call", params=params), without):
        with pytest.raises(ProtocolError):
            parse_tool_call(request(raw))


SPELLINGS = st.sampled_from(["name", "n\\u0061me", "Name", "name\\u0000", "x", "arguments"])
NAMES = st.sampled_from(['"a"', '"b"', '"\\u0062"', '["b"]', "null", '{"name":"b"}'])
PARAMS = st.lists(st.tuples(SPELLINGS, NAMES), max_size=3).map(
    lambda members: "{" + ",".join(f'"{key}":{value}' for key, value in members) + "}"
)


@given(params=PARAMS)
def test_the_tool_we_read_is_the_one_orjson_reads(params: str) -> None:
    raw = asking("tools/call", params=params)
    assert tool_in(raw) in (None, orjson.loads(raw)["params"].get("name"))


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@given(all_params=st.lists(PARAMS, min_size=200, max_size=200))
@settings(max_examples=3)
def test_the_tool_we_read_is_the_one_node_reads(all_params: list[str]) -> None:
    raws = [asking("tools/call", params=params) for params in all_params]
    for raw, theirs in zip(raws, node_tools_in(raws), strict=True):
        assert tool_in(raw) in (None, theirs)


def tool_in(raw: bytes) -> str | None:
    try:
        return parse_tool_call(request(raw)).tool_name
    except ProtocolError:
        return None


def node_tools_in(raws: list[bytes]) -> list[object]:
    """Ask node for the name in each call: one process for all of them."""
    script = (
        "const said = require('fs').readFileSync(0, 'utf8').split('\\n').slice(0, -1);"
        "console.log(JSON.stringify(said.map((line) => JSON.parse(line).params.name ?? null)))"
    )
    lines = b"".join(raw + b"\n" for raw in raws)
    assert NODE
    done = subprocess.run([NODE, "-e", script], input=lines, capture_output=True)
    names: list[object] = json.loads(done.stdout)
    return names


@each_row(("params", "has_cursor", "revision"), [
    ("{}", False, None), ("null", False, None), ('{"cursor":"x"}', True, None),
    ('{"cursor":null}', True, None),
    ('{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}', False, "2026-07-28"),
    ('{"_meta":{"io.modelcontextprotocol/protocolVersion":1}}', False, None),
    ('{"_meta":1}', False, None),
])  # fmt: skip
def test_a_list_request_is_read(params: str, has_cursor: bool, revision: str | None) -> None:
    asked = parse_list_request(request(asking("tools/list", params=params)))
    assert (asked.has_cursor, asked.revision) == (has_cursor, revision)


@pytest.mark.parametrize("params", ["[]", '{"cursor":1,"Cursor":2}', '{"CURSOR":1}'])
def test_an_ambiguous_list_request_is_refused(params: str) -> None:
    with pytest.raises(ProtocolError):
        parse_list_request(request(asking("tools/list", params=params)))


def test_a_definition_keeps_its_bytes() -> None:
    raw = '{ "inputSchema" : {"n":1.00} ,"name":"\\u0061", "x":"\u00e9\\ud800" }'.encode()
    assert one_definition(raw).raw == raw
    assert one_definition(raw).name == "a"


def test_replacing_the_tools_of_a_list_keeps_everything_else() -> None:
    raw = answering('{ "x":1.0, "tools" : [ {} ] , "nextCursor":"n"}', id="7.0")
    assert page(raw).with_tools([b"{1}", b"{2}"]) == raw.replace(b"[ {} ]", b"[{1},{2}]")


def test_the_frame_of_a_list_has_neither_tools_nor_cursor() -> None:
    found = page(answering('{ "x":1.0, "nextCursor":"n", "tools" : [ {} ] , "ttlMs":5}'))
    assert found.frame == ('{"x":1.0,"tools" : ', ',"ttlMs":5}')
    assert found.next_cursor == "n"


PROBLEMS: dict[str | None, list[str]] = {
    "a tool that is not an object": ["[]", '"a"', "null"],
    "a tool without a name": [
        "{}", '{"inputSchema":{}}', '{"Name":"a","inputSchema":{}}',
        '{"name":["a"],"inputSchema":{}}', '{"name":null,"inputSchema":{}}',
    ],
    "a tool without an object inputSchema": [
        '{"name":"a"}', '{"name":"a","inputSchema":[]}', '{"name":"a","input_schema":{}}',
    ],
    "a tool with a key that could be read in two ways": [
        '{"name":"a","name":"b","inputSchema":{}}', '{"name":"a","Name":"b","inputSchema":{}}',
        '{"name":"a","name":"a","inputSchema":{},"annotations":{},"annotations":{}}',
        '{"name":"a","name\\u0000":"b","inputSchema":{}}',
        '{"name":"a","__proto__":{},"inputSchema":{}}',
    ],
    "half a surrogate pair in the name of a tool": ['{"name":"a\\ud800","inputSchema":{}}'],
    None: ['{"name":"a","inputSchema":{},"annotations":{},"Annotations":{}}'],
}  # fmt: skip


@each_row("problem", PROBLEMS)
def test_an_ambiguous_definition_has_a_fault(problem: str | None) -> None:
    for raw in PROBLEMS[problem]:
        assert one_definition(raw.encode()).problem == problem, raw


@each_row("text", [
    '{"name":"r\\u006d","input\\u0053chema":{}}',
    '{"\\uff4eame":"rm","inputSchema":{}}',
    '[[{"x":{"name":"rm","inputSchema":{}}}]]',
    '{"rm":{"description":"","inputSchema":{}}}',
    '{"tools":[{"name":"rm","description":"deletes"}]}',
    '{"tools":{"x":{"name":"rm"}}}', '{"result":{"tools":{"rm":{"description":""}}}}',
    '{"inputSchema":{"x":{"name":"rm","inputSchema":{}}}}',
    '[{"params":{"tools":{"x":{"name":"rm"}}}}]',
    '{"inputSchema\\u0000":1,"name":"rm"}',
])  # fmt: skip
def test_a_definition_is_found_at_any_depth_in_any_spelling(text: str) -> None:
    assert shows_tool(text, {"rm"})


@each_row("text", [
    '{"name":"rm","description":"a prompt may have the name of a tool"}',
    '{"name":"a","inputSchema":{"properties":{"name":{"const":"rm"},"inputSchema":{}}}}',
    '{"capabilities":{"tools":{"listChanged":true}}}',
    '{"tools":["rm"]}',
    '{"capabilities":{"tasks":{"requests":{"tools":{"rm":{}}}}}}',
    '{"result":{"tools":{"rm":{"count":3}}}}',
    '{"result":{"_meta":{"tools":[{"name":"rm"}]}}}',
    '{"requestedSchema":{"properties":{"rm":{"inputSchema":{}},"name":{"const":"rm"}}}}',
    '{"inputSchema":{"examples":[{"name":"rm","inputSchema":{}}]}}',
    '{"text":"use rm, its inputSchema is {}"}',
    '{"rm":{"tools":{}}}',
    '{"prompts":[{"name":"rm","arguments":[]}]}',
    "[" * 120 + "]" * 120 + "", "1" * 5000,
])  # fmt: skip
def test_other_values_are_no_definition(text: str) -> None:
    assert not shows_tool(text, {"rm"})


KEYS = ["name", "Name", "tools", "result", "inputSchema", "input_schema", "input\\nSchema", "x"]


@st.composite
def members(draw: st.DrawFn) -> str:
    """Write further members of a definition, among them some that define tools."""
    texts = st.sampled_from(
        ['"rm"', '"a"', '"{schema rm"', r'"{\"name\":\"rm\",\"inputSchema\":{}}"', '"\u00e9"', "1"]
    )

    def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(st.sampled_from([*KEYS, r"input\u0053chema", "input\x7fschema"]), values)
        written = st.lists(pairs.map(lambda pair: f'"{pair[0]}":{pair[1]}'), max_size=3)
        return written.map(lambda some: "{" + ",".join(some) + "}") | values.map("[{}]".format)

    return f',"_meta":{draw(st.recursive(texts, objects, max_leaves=6))}'


@given(more=members(), key=st.sampled_from(["title", "result", "tools"]))
def test_the_quick_search_for_definitions_finds_the_same(more: str, key: str) -> None:
    raw = definition("a", more.replace("_meta", key)).decode()
    finds = tools._Search({"rm"}).finds_in(raw, tools._Place.ELSEWHERE)
    assert tools.carries_another(raw, {"rm"}) == finds


def test_the_content_of_a_tool_result_is_left_out() -> None:
    raw = answering('{"content":[1], "x":2,"structuredContent":{"tools":[]},"isError":false}')
    assert tools.besides_content(message(raw)) == (
        '{"jsonrpc":"2.0","id":1,"result":'
        '{"content":null, "x":2,"structuredContent":null,"isError":false}}'
    )


@each_row("before, after", [
    ('{"digest":1,"tools":[]}', '{"tools":[]}'),
    ('{"digest":1 , "etag":"2","tools":[]}', '{"tools":[]}'),
    ('{"tools":[],"digest":1}', '{"tools":[]}'),
    ('{"a":1,"digest":{"b":2},"tools":[]}', '{"a":1,"tools":[]}'),
    ('{"digest":1}', "{}"),
    ('{"_meta":{"x":1,"a/etag":2},"tools":[]}', '{"_meta":{"x":1},"tools":[]}'),
    ('{"other":{"x":1,"etag":2},"tools":[]}', None),  # it says nothing of the list
    ('{"_meta":3,"tools":[]}', None),
    ('{"cacheScope":"public","ttlMs":60001}', '{"cacheScope":"private","ttlMs":60000}'),
    ('{"cacheScope":"private","ttlMs":60000,"ttl":60}', None),
    ('{"ttl":"for ever","TTL":61}', '{"ttl":0,"TTL":60}'),
])  # fmt: skip
def test_what_is_said_around_a_changed_list(before: str, after: str | None) -> None:
    """Digests of the list as it was are left out, with one comma each; nobody keeps it for long."""
    read = message(answering(before))
    assert isinstance(read, Response)
    assert read.result is not None
    text, result = read.place.text, read.result
    said = tools.with_edits(text, result.start, result.end, tools.cache_edits(text, result))
    assert said == (after or before)


@each_row("name", ['a"b', "a\\b", "a/b", "a\u0001", "\u00e9"])
def test_a_name_that_json_can_write_in_several_ways_is_found_in_each(name: str) -> None:
    for written in {json.dumps(name), json.dumps(name, ensure_ascii=False)}:
        inner = f',"_meta":{{"name":{written},"inputSchema":{{}}}}'
        assert tools.carries_another(definition("x", inner).decode(), {name})
