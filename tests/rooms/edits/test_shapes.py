"""The same edits in every shape of the filter: what clients see, and what the server gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_upstream import tool
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import RawRequest
from tests.shapes import Options, Server, call, message, not_found, shape

EDITS = """
[tools.create_issue]
name = "new_issue"
hints = {read-only = true}
fix = {teamId = "$TEAM"}
["tools"."delete_*"]
title = "Gone"
"""
SCHEMA = (
    '"inputSchema":{"type":"object","properties":{"teamId":{},"text":{}},"required":["teamId"]}'
)
TOOLS = [
    tool("read_file"),
    b'{ "name":"create_issue", ' + SCHEMA.encode() + b', "x": 1.0 }',
    tool("delete_issue"),
]
QUICK = ["relay", "sockets"]
SLOW = ["pipe", "launcher", "bridge", "serve", "--server", "mitmdump"]


@pytest.mark.parametrize("as_events", [False, True])
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(one, marks=pytest.mark.rest) for one in SLOW)]
)
async def test_clients_know_the_edited_tools_and_the_server_its_own(
    name: str, as_events: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM", "the-team")
    (tmp_path / "edits.toml").write_text(EDITS)
    options: dict[str, Any] = {"deny": "^delete_", "edits": str(tmp_path / "edits.toml")}
    server = Server(TOOLS, as_events=as_events)
    own: Options | None = {} if name in ("serve", "--server") else None
    async with shape(name, server, tmp_path, options, own=own) as talk:
        listed = await talk.ask(message("tools/list"))
        assert [one["name"] for one in listed["result"]["tools"]] == ["read_file", "new_issue"]
        assert listed["result"]["tools"][1] == {
            "name": "new_issue", "x": 1.0, "annotations": {"readOnlyHint": True},
            "inputSchema": {"type": "object", "properties": {"text": {}}, "required": []},
        }  # fmt: skip
        said = await talk.ask(message("tools/call", 2, name="new_issue", arguments={"text": "a"}))
        assert said["result"]["content"][0]["text"] == "create_issue"
        sent = json.loads(server.heard[-1])["params"]
        assert sent == {"name": "create_issue", "arguments": {"text": "a", "teamId": "the-team"}}
        for hidden in ("create_issue", "delete_issue", "none"):
            assert await talk.ask(call(hidden, 3)) == not_found(hidden, 3)
        brought = message("tools/call", 4, name="new_issue", arguments={"teamId": "mine"})
        refused = await talk.ask(brought)
        assert refused["error"]["code"] == -32602
        assert "the-team" not in json.dumps(refused)
    assert server.called() == ["create_issue"]


async def test_only_a_vouched_hint_opens_a_tool(tmp_path: Path) -> None:
    (tmp_path / "edits.toml").write_text("[tools.create_issue]\nhints = {read-only = true}\n")
    options: dict[str, Any] = {"read-only": True, "edits": str(tmp_path / "edits.toml")}
    async with shape("relay", Server(TOOLS), tmp_path, options) as talk:
        assert await talk.names() == ["create_issue"]


class InSession(Server):
    async def posted(self, request: RawRequest) -> bytes:
        said = await super().posted(request)
        opens = b'"initialize"' in request.body
        return said.replace(b"\r\n", b"\r\nMcp-Session-Id: s\r\n", 1) if opens else said


async def test_calls_on_one_connection_are_edited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that was seen before may let a call take a short way."""
    monkeypatch.setenv("TEAM", "t")
    (tmp_path / "edits.toml").write_text(EDITS)
    server = InSession(TOOLS)
    edits = str(tmp_path / "edits.toml")
    options: dict[str, Any] = {"deny": "^delete_", "edits": edits, "log-format": "none"}
    async with shape("launcher", server, tmp_path, options) as talk:
        head = MCP_HEADERS + b"Mcp-Session-Id: s\r\nMCP-Protocol-Version: 2025-03-26\r\n"
        async with raw_client(talk.port) as client:
            for number in range(4):
                text = json.dumps(call("new_issue", number)).encode()
                got = await client.ask(post(text, path="/mcp", headers=head))
                assert json.loads(got.body)["result"]["content"][0]["text"] == "create_issue"
                text = json.dumps(call("create_issue", number)).encode()
                got = await client.ask(post(text, path="/mcp", headers=head))
                assert json.loads(got.body) == not_found("create_issue", number)
    sent = [json.loads(one)["params"] for one in server.heard if b"tools/call" in one]
    assert [one["arguments"] for one in sent] == [{"teamId": "t"}] * 4
