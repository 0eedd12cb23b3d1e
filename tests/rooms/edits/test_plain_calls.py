"""Calls that need no reading: the short way gives the upstream the same bytes as the usual one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Single, parse_message
from mcp_tool_filter.core.policy.choice import Choice
from mcp_tool_filter.core.policy.patterns import parse_pattern
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor
from mcp_tool_filter.rooms.edits.tables import parse_edits
from mcp_tool_filter.rooms.lane.lane import plain_call
from tests.mcp_upstream import tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.rows import each_row
from tests.shapes import Server, call, message, shape

LIMITS = Limits()
MIRRORED = ', "inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}'
EDITOR = DefinitionEditor(
    parse_edits(
        {
            "old": {"name": "new"},
            "fixed": {"fix": {"p": "s", "Q": 1}},
            "both": {"name": "other", "fix": {"p": 1}},
            "titled": {"title": "T"},
            "twice": {"title": "T"},
            "mirrored": {"fix": {"p": "s"}},
            "a*": {"title": "1"},
            "*b": {"title": "2"},
        }
    )
)
NAMES = ("old", "new", "fixed", "both", "other", "titled", "plain", "denied", "ab", "none", "twice")


def known() -> Snapshot:
    from mcp_tool_filter.core.messages.tools import parse_listing

    tools = [tool(one) for one in NAMES if one not in ("none", "twice", "new", "other")]
    tools += [tool("twice", ', "title":"a", "title":"b"')]
    tools += [b'{"name":"mirrored"' + MIRRORED.encode() + b"}"]
    text = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[' + b",".join(tools) + b"]}}"
    parsed = parse_message(text)
    assert isinstance(parsed, Single.__value__)
    listing = parse_listing(parsed)
    assert listing is not None
    return take_snapshot([listing], Choice(deny=(parse_pattern("^denied$"),)))


@each_row("arguments", [
    "{}", '{"a": 1.50 }', '{"a":{"p":1,"p":2}}', '{ }', '{"p":1}', '{"P":1}', '{"q":1}',
    '{"a":1,"a":2}', '{"arguments":{"p":1}}', '{"a":"}"}', '{"a":[1,{"b":null}]\n}',
])  # fmt: skip
def test_the_short_way_sends_what_the_usual_way_sends(arguments: str) -> None:
    snapshot, found = known(), 0
    for name in (*NAMES, "mirrored"):
        for params in (
            f'{{"name":"{name}","arguments":{arguments}}}',
            f'{{"arguments":{arguments},"name":"{name}"}}',
            f'{{"name":"{name}"}}',
        ):
            raw = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()
            read = plain_call(raw)
            if read is None or name not in snapshot.allowed:
                continue
            short = EDITOR.plain(name, raw, read.arguments, snapshot)
            usual = EDITOR.asked(parse_message(raw), snapshot, LIMITS)  # type: ignore[arg-type]
            if short is not None:
                assert usual.refusal is None
                assert usual.sent.place.raw == short
                found += 1
            if usual.refusal is not None or name in ("old", "both", "ab", "twice", "mirrored"):
                assert short is None, (name, params)
            if name in ("titled", "plain"):
                assert short == raw
    assert found >= 4


CAPABLE = '"io.modelcontextprotocol/clientCapabilities":{"arguments":{}}'
NAMED = '"io.modelcontextprotocol/clientInfo":{"name":"arguments","version":"1"}'
EMPTY = '"io.modelcontextprotocol/clientCapabilities":{}'


@each_row("id, params", [
    ('"arguments"', '"name":"fixed"'),
    ('"arguments"', '"name":"fixed","arguments":{}'),
    ("1", f'"_meta":{{{CAPABLE}}},"name":"fixed"'),
    ("1", f'"_meta":{{{CAPABLE}}},"name":"fixed","arguments":{{}}'),
    ("1", f'"_meta":{{{NAMED},{EMPTY}}},"name":"fixed"'),
    ("1", '"_meta":{"progressToken":"arguments"},"name":"fixed"'),
    ("1", f'"arguments":{{}},"name":"fixed","_meta":{{{EMPTY}}}'),
])  # fmt: skip
def test_a_fixed_value_goes_nowhere_but_into_the_arguments(id: str, params: str) -> None:
    """Other things may be called "arguments", too."""
    for said in (
        f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{{params}}}}}',
        f'{{"params":{{{params}}},"jsonrpc":"2.0","method":"tools/call","id":{id}}}',
    ):
        raw, snapshot = said.encode(), known()
        read = plain_call(raw)
        assert read is not None
        short = EDITOR.plain("fixed", raw, read.arguments, snapshot)
        usual = EDITOR.asked(parse_message(raw), snapshot, LIMITS)  # type: ignore[arg-type]
        assert short in (None, usual.sent.place.raw)


SECRET = 'fix = {teamId = "$TEAM"}\n'


@pytest.mark.parametrize("name", ["relay", "launcher"])
@pytest.mark.parametrize("edit", [SECRET, f'name = "new_issue"\n{SECRET}'])
async def test_no_log_has_a_fixed_value(
    name: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM", "s3cret-team")
    (tmp_path / "edits.toml").write_text(f"[tools.create_issue]\n{edit}")
    log = tmp_path / "audit.jsonl"
    options: dict[str, Any] = {
        "edits": str(tmp_path / "edits.toml"), "audit-log": str(log), "audit-arguments": "full",
    }  # fmt: skip
    server = Server([tool("read_file"), tool("create_issue")])
    called = "new_issue" if "name" in edit else "create_issue"
    async with shape(name, server, tmp_path, options) as talk:
        said = await talk.ask(message("tools/call", 2, name=called, arguments={"mine": "kept"}))
        assert "result" in said
        assert "result" in await talk.ask(message("tools/call", 3, name=called))
        assert "s3cret" not in talk.stderr()
    sent = [json.loads(one)["params"]["arguments"] for one in server.heard if b"tools/call" in one]
    assert sent == [{"mine": "kept", "teamId": "s3cret-team"}, {"teamId": "s3cret-team"}]
    written = log.read_text()
    assert "kept" in written
    assert "create_issue" in written
    assert "s3cret" not in written


async def test_calls_on_one_connection_get_the_fixed_value(tmp_path: Path) -> None:
    """Nobody wants to see them, so they take the lane."""
    (tmp_path / "edits.toml").write_text(f"[tools.create_issue]\n{SECRET.replace('$', '')}")
    server = Server([tool("read_file"), tool("create_issue")])
    options: dict[str, Any] = {"edits": str(tmp_path / "edits.toml"), "log-format": "none"}
    async with (
        shape("launcher", server, tmp_path, options) as talk,
        raw_client(talk.port) as client,
    ):
        for number in range(4):
            text = json.dumps(call("create_issue", number)).encode()
            got = await client.ask(post(text, path="/mcp", headers=MCP_HEADERS))
            assert json.loads(got.body)["id"] == number
            bad = message("tools/call", number, name="create_issue", arguments={"TEAMID": 1})
            got = await client.ask(post(json.dumps(bad).encode(), headers=MCP_HEADERS))
            assert json.loads(got.body)["error"]["code"] == -32602
            text = json.dumps(call("read_file", number)).encode()
            await client.ask(post(text, path="/mcp", headers=MCP_HEADERS))
    sent = [json.loads(one)["params"] for one in server.heard if b"tools/call" in one]
    assert [one["arguments"] for one in sent] == [{"teamId": "TEAM"}, {}] * 4
