"""What rules do with requests: single ones, notifications, and members of a batch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import INITIALIZE, READ, call, not_found
from tests.adapters.mitmproxy.ruled import BLOCK, PING, SECRET, blocked, ruled, write
from tests.mcp_upstream import mcp_upstream, saying
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, post, raw_client


async def test_a_request_is_blocked_and_others_keep_their_bytes(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        got = await between.ask(call("read_file", '{"path":"\\/etc/passwd"}', id='"\\u0061"'))
        assert (got.status, got.body) == (200, blocked("no-etc", "not there", '"\\u0061"'))
        fine = call("read_file", '{ "path" :"/home", "n":1.00}')
        await between.ask(fine)
        assert [request.body for request in between.upstream.asked] == [fine]


async def test_rules_never_see_what_the_filter_refuses(tmp_path: Path) -> None:
    rules = "  - {id: a, conditions: [tool_equals: delete_file], actions: [block: seen]}\n"

    async with ruled(tmp_path, rules) as between:
        got = await between.ask(call("delete_file"))
        assert got.body == not_found("delete_file")


async def test_a_notification_is_dropped(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        note = call("read_file", '{"path":"/etc/x"}').replace(b'"id":1,', b"")
        assert (await between.ask(note)).status == 202
        assert between.upstream.asked == []


async def test_the_members_of_a_batch_are_judged_one_by_one(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK, respond=saying(OK)) as between:
        bad, good = call("read_file", '{"path":"/etc/x"}', id="1"), call("read_file", id="2")
        got = await between.ask(b"[" + bad + b"," + good + b"]")
        assert json.loads(got.body) == [json.loads(OK), json.loads(blocked("no-etc", "not there"))]
        assert [request.body for request in between.upstream.asked] == [b"[" + good + b"]"]


OK = b'{"jsonrpc":"2.0","id":2,"result":{}}'

UNCLEAR = [
    '{"path":"/home","path":"/etc/x"}',
    '{"path":"/home","Path":"/etc/x"}',
    '{"PATH":"/etc/x"}',
]


@pytest.mark.parametrize("arguments", UNCLEAR)
async def test_an_unclear_field_is_refused(tmp_path: Path, arguments: str) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        got = await between.ask(call("read_file", arguments, id="9"))
        assert got.status == 200
        assert json.loads(got.body)["error"]["code"] == -32600
        assert json.loads(got.body)["id"] == 9
        assert between.upstream.asked == []


CHANGE = """
  - id: safe
    conditions: [tool_equals: read_file]
    actions: [set_param: {field: arguments.safe, value: true}]
"""


async def test_a_change_leaves_every_other_byte(tmp_path: Path) -> None:
    async with ruled(tmp_path, CHANGE) as between:
        await between.ask(call("read_file", '{ "n" :1.00}'))
        (request,) = between.upstream.asked
        assert request.body == call("read_file", '{ "n" :1.00,"safe":true}')
        assert request.all("content-length") == [str(len(request.body))]


RENAME = """
  - id: rename
    conditions: [param_exists: arguments.to]
    actions: [set_param: {field: name, value: "${params.arguments.to}"}, log: {message: late}]
"""


async def test_no_rule_makes_a_denied_tool_callable(tmp_path: Path) -> None:
    async with ruled(tmp_path, RENAME) as between:
        got = await between.ask(call("read_file", '{"to":"delete_file"}'))
        assert got.body == not_found("delete_file")
        assert between.upstream.asked == []


async def test_headers_follow_a_changed_message(tmp_path: Path) -> None:
    rules = """
  - id: rename
    conditions: [tool_equals: read_file]
    actions: [transform: {json_patch: [{op: replace, path: /name, value: "r\\u00e9ad"}]}]
"""
    headers = b"Mcp-Method: tools/call\r\nMcp-Name: read_file\r\n"

    upstreams = mcp_upstream(tools=[READ, READ.replace(b"read_file", "réad".encode())])
    async with (
        upstreams as upstream,
        proxy(
            ToolFilter(), to=upstream.url, home=tmp_path, endpoint=["/mcp"],
            rules=[write(tmp_path, rules)],
        ) as it,
        raw_client(it.port) as client,
    ):  # fmt: skip
        await client.ask(post(call("read_file"), headers=MCP_HEADERS + headers))
    (request,) = upstream.asked
    assert request.all("mcp-method") == ["tools/call"]
    assert request.all("mcp-name") == ["=?base64?csOpYWQ=?="]


async def test_headers_of_arguments_follow_a_changed_message(tmp_path: Path) -> None:
    """Since 2026-07-28: servers refuse a header that says something else than the body."""
    rules = """
  - id: freeze
    conditions: [tool_equals: read_file]
    actions: [set_param: {field: arguments.region, value: eu}]
"""
    schema = b'{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}'
    tool = b'{"name":"read_file","inputSchema":%s}' % schema
    headers = b"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
    headers += b"Mcp-Name: read_file\r\nMcp-Param-Region: us\r\n"
    meta = b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
    params = b'{"name":"read_file","arguments":{"region":"us"},%s}' % meta
    said = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}' % params

    async with (
        mcp_upstream(tools=[tool]) as upstream,
        proxy(
            ToolFilter(), to=upstream.url, home=tmp_path, endpoint=["/mcp"],
            rules=[write(tmp_path, rules)],
        ) as it,
        raw_client(it.port) as client,
    ):  # fmt: skip
        await client.ask(post(said, headers=MCP_HEADERS + headers))
    request = upstream.asked[-1]
    assert b'"region":"eu"' in request.body
    assert request.all("mcp-param-region") == ["eu"]


async def test_a_script_decides(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text('#!/bin/sh\ngrep -q secret && { echo "$MCP_TOOL: no"; exit 1; }\nexit 0\n')
    script.chmod(0o755)
    rules = "  - {id: ask, actions: [run_script: {path: ./check.sh, decides: true}]}\n"

    async with ruled(tmp_path, rules, respond=saying(SECRET)) as between:
        got = await between.ask(call("read_file", '{"a":"secret"}'))
        assert got.body == blocked("ask", "read_file: no")
        assert (await between.ask(call("read_file"))).body == SECRET


HOLD = """
import asyncio
from pathlib import Path

FOLDER = Path(__file__).parent

async def hold(_message):
    (FOLDER / "held").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    (FOLDER / "gone").touch()
"""


def holding(folder: Path) -> str:
    """Return a rule that holds each call until ``go`` exists."""
    name = f"hold_{folder.name}"
    (folder / f"{name}.py").write_text(HOLD)
    return (
        "  - {id: hold, conditions: [tool_equals: read_file], "
        f"actions: [transform: {{python: '{name}:hold'}}]}}\n"
    )


async def exists(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


CANCEL = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'
CANCELLED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}'


@pytest.mark.parametrize("has_session", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_held_call_that_is_cancelled_is_never_sent(
    tmp_path: Path, is_batch: bool, has_session: bool
) -> None:
    """The cancellation comes on another connection, and the upstream gets neither of them."""
    headers = MCP_HEADERS + (b"Mcp-Session-Id: s1\r\n" if has_session else b"")
    async with (
        ruled(tmp_path, holding(tmp_path), session=b"s1" if has_session else b"") as between,
        raw_client(between.port) as other,
    ):
        await between.ask(INITIALIZE)
        between.upstream.asked.clear()
        asked = call("read_file")
        await between.client.say(post(b"[%b]" % asked if is_batch else asked, headers=headers))
        await exists(tmp_path / "held")
        await other.ask(post(CANCEL % 2, headers=headers))  # another one
        assert (await other.ask(post(CANCEL % 1, headers=headers))).status == 202
        (tmp_path / "go").touch()
        got = (await between.client.answer()).body
        assert json.loads(got) == ([json.loads(CANCELLED)] if is_batch else json.loads(CANCELLED))
        assert [request.body for request in between.upstream.asked] == [CANCEL % 2]
        await other.ask(post(CANCEL % 1, headers=headers))  # nothing is held any more
        assert len(between.upstream.asked) == 2


async def test_nobody_cancels_the_call_of_another_session(tmp_path: Path) -> None:
    async with (
        ruled(tmp_path, holding(tmp_path)) as between,
        raw_client(between.port) as other,
    ):
        own, others = (MCP_HEADERS + b"Mcp-Session-Id: s%d\r\n" % n for n in (1, 2))
        await between.client.say(post(call("read_file"), headers=own))
        await exists(tmp_path / "held")
        await other.ask(post(CANCEL % 1, headers=others))
        (tmp_path / "go").touch()
        assert b"result" in (await between.client.answer()).body


async def test_a_held_call_whose_client_leaves_is_never_sent(tmp_path: Path) -> None:
    async with (
        ruled(tmp_path, holding(tmp_path)) as between,
        raw_client(between.port) as other,
    ):
        await between.client.say(post(call("read_file")))
        await exists(tmp_path / "held")
        between.client.writer.close()
        await asyncio.sleep(0.1)  # so that the proxy sees it
        (tmp_path / "go").touch()
        await exists(tmp_path / "gone")
        await other.ask(post(PING))
        assert [request.body for request in between.upstream.asked] == [PING]
