"""What could pass by the edits: spellings, shadow mode, a start with tools that do not fit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.config_file import parse_file
from mcp_tool_filter.core.errors import StartError, UnsetVariable
from mcp_tool_filter.rooms.edits.tables import BadEdit, parse_edits
from tests.cli.launched import launched
from tests.mcp_upstream import tool
from tests.raw_upstream import raw_upstream
from tests.shapes import COMMAND, LISTENING, Server, call, message, shape, talking
from tests.stdio_client import filtered

EDITS = '[tools.create_issue]\nname = "new_issue"\nfix = {teamId = "SECRET"}\n'
TOOLS = [tool("read_file"), tool("create_issue"), tool("delete_issue")]


def options(home: Path, text: str = EDITS, **more: Any) -> dict[str, Any]:
    (home / "edits.toml").write_text(text)
    return {"deny": "^delete_", "edits": str(home / "edits.toml")} | more


@pytest.mark.parametrize("name", ["relay", "sockets"])
@pytest.mark.parametrize("tool", ["create_issue", "delete_issue"])
async def test_a_carried_call_with_escapes_in_its_keys_is_read(
    name: str, tool: str, tmp_path: Path
) -> None:
    server = Server(TOOLS)
    inside = json.dumps(call(tool)).replace("method", r"m\u0065thod")
    async with shape(name, server, tmp_path, options(tmp_path)) as talk:
        allowed = json.dumps(call("read_file"))
        for params in (inside, f'{{"request":{inside}}}', f'{{"a":{allowed},"b":{inside}}}'):
            text = f'{{"jsonrpc":"2.0","id":7,"method":"tasks/create","params":{params}}}'
            await talk.say(text.encode())
            refused = json.loads(await talk.hear())
            assert refused["error"]["message"] == f"Tool not found: {tool}"
    assert not any(b"tasks/create" in one for one in server.heard)


@pytest.mark.parametrize("name", ["relay", "sockets"])
async def test_what_edits_refuse_is_refused_in_shadow_mode_too(name: str, tmp_path: Path) -> None:
    server = Server(TOOLS)
    text = EDITS + "[tools.delete_issue]\nfix = {teamId = 1}\n"
    async with shape(name, server, tmp_path, options(tmp_path, text, shadow=True)) as talk:
        for tool in ("new_issue", "delete_issue"):
            brought = message("tools/call", 2, name=tool, arguments={"TeamID": "mine"})
            assert (await talk.ask(brought))["error"]["code"] == -32602
        assert (await talk.ask(call("create_issue", 3)))["error"]["code"] == -32601
        assert "result" in await talk.ask(call("delete_issue", 4))
        assert "result" in await talk.ask(call("new_issue", 5))
    assert server.called() == ["delete_issue", "create_issue"]


async def test_each_list_of_a_batch_is_edited(tmp_path: Path) -> None:
    async with shape("relay", Server(TOOLS), tmp_path, options(tmp_path)) as talk:
        await talk.names()
        answers = await talk.ask_all(message("tools/list", 2), message("tools/list", 3))
        assert len(answers) == 2
        assert b"create_issue" not in json.dumps(answers).encode()


@pytest.mark.parametrize(
    ("text", "strict", "why"),
    [
        ('[tools.create_issue]\nname = "read_file"\n', False, "is taken"),
        ('[tools.none]\ntitle = "a"\n', True, "matches no tool"),
        ('[tools.create_issue]\nname = "delete_x"\n', False, "is denied"),
    ],
)
@pytest.mark.parametrize("behind", ["command", "url"])
async def test_a_session_over_stdio_does_not_start_with_edits_that_do_not_fit(
    text: str, strict: bool, why: str, behind: str, tmp_path: Path
) -> None:
    given = options(tmp_path, text)
    words = [f"--{key}={one}" for key, one in given.items()] + ["--strict"] * strict
    async with raw_upstream(Server(TOOLS).serve) as there:
        command = ["--", sys.executable, "-c", COMMAND, str(there.port)]
        url = ["--stdio", "--upstream", f"{there.url}/mcp"]
        with filtered(*words, *(command if behind == "command" else url), home=tmp_path) as client:
            hello = message("initialize", 0, protocolVersion="2025-03-26", capabilities={})
            for each in (hello, message("tools/list")):
                try:
                    client.say(json.dumps(each).encode())
                except BrokenPipeError:
                    break
            assert await asyncio.to_thread(client.leaves) == 1
            assert why in client.stderr()


async def test_a_session_over_stdio_reports_its_edits(tmp_path: Path) -> None:
    text = EDITS + '[tools.none]\ntitle = "a"\n'
    async with shape("relay", Server(TOOLS), tmp_path, options(tmp_path, text)) as talk:
        await talk.names()
        await talk.names()
    assert "\nWarning: the edit of none matches no tool" in talk.stderr()
    assert "Edited: create_issue: named new_issue, fixed teamId" in talk.stderr()
    assert "SECRET" not in talk.stderr()


def test_what_cannot_be_written_is_refused() -> None:
    bad = os.fsdecode(b"a\xff")
    with pytest.raises(BadEdit, match="is not JSON"):
        parse_edits({"a": {"fix": {"b": "$BAD"}}}, {"BAD": bad})
    with pytest.raises(UnsetVariable, match="cannot be filled in"):
        parse_edits({"a": {"fix": {"b": "$UNSET"}}}, {})
    with pytest.raises(BadEdit, match="twice"):
        parse_edits({"a": {"hints": {"read_only": True, "read-only": False}}})
    with pytest.raises(StartError, match="nested too deeply"):
        parse_file("x.toml", b"tools.a.fix.x" + b".a" * 30_000 + b" = 1\n")


async def test_an_unset_variable_takes_only_its_own_server_down(tmp_path: Path) -> None:
    server = Server(TOOLS)
    async with raw_upstream(server.serve) as there:
        file = tmp_path / "servers.toml"
        file.write_text(
            f'[servers.good]\nurl = "{there.url}/mcp"\n'
            f'[servers.bad]\nurl = "{there.url}/mcp"\n'
            '[servers.bad.tools.create_issue]\nfix = {teamId = "$NOT_SET_AT_ALL"}\n'
        )
        async with launched("serve", "--config", str(file), home=tmp_path) as it:
            found = await it.says(LISTENING["serve"])
            await it.says("NOT_SET_AT_ALL is not set")
            async with talking("HTTP", int(found[1]), "/good/mcp") as talk:
                await talk.opens()
                assert "create_issue" in await talk.names()


async def test_the_merged_server_knows_the_edited_tools(tmp_path: Path) -> None:
    server = Server(TOOLS)
    async with raw_upstream(server.serve) as there:
        file = tmp_path / "servers.toml"
        file.write_text(
            'deny = "^delete_"\n[tools.read_file]\ntitle = "R"\n'
            f'[servers.a]\nurl = "{there.url}/mcp"\n'
            f'[servers.b]\nurl = "{there.url}/mcp"\n'
            '[servers.a.tools.create_issue]\nname = "new_issue"\nfix = {teamId = "SECRET"}\n'
            '[profiles.few]\nservers = ["a"]\ndeny = "^create_"\n'
        )
        async with launched("serve", "--config", str(file), home=tmp_path) as it:
            port = int((await it.says(LISTENING["serve"]))[1])
            async with talking("HTTP", port, "/mcp") as talk:
                await talk.opens()
                listed = ["a_read_file", "a_new_issue", "b_read_file", "b_create_issue"]
                assert await talk.names() == listed
                said = await talk.ask(call("a_new_issue", 3))
                assert said["result"]["content"][0]["text"] == "create_issue"
                for hidden in ("a_create_issue", "a_delete_issue", "b_new_issue"):
                    assert (await talk.ask(call(hidden, 4)))["error"]["code"] == -32601
                brought = message("tools/call", 5, name="a_new_issue", arguments={"teamid": 1})
                assert (await talk.ask(brought))["error"]["code"] == -32602
            async with talking("HTTP", port, "/few/mcp") as talk:
                await talk.opens()
                assert await talk.names() == ["a_read_file"]
                assert (await talk.ask(call("a_new_issue", 3)))["error"]["code"] == -32601
            assert it.stderr.count("Edited: create_issue") == 1
            assert it.stderr.startswith("Warning: a: the edit of create_issue: it has no parameter")
    sent = [json.loads(one)["params"]["arguments"] for one in server.heard if b"tools/call" in one]
    assert sent == [{"teamId": "SECRET"}]


@pytest.mark.parametrize(
    ("top", "own", "starts"),
    [("delete_issue", "read_file", True), ("none", "read_file", False), ("other", "none", False)],
)
async def test_with_strict_an_edit_for_all_servers_must_match_at_one(
    top: str, own: str, starts: bool, tmp_path: Path
) -> None:
    first, second = Server(TOOLS), Server([tool("other"), tool("more")])
    async with raw_upstream(first.serve) as there, raw_upstream(second.serve) as beside:
        file = tmp_path / "servers.toml"
        file.write_text(
            f'strict = true\ndeny = "e"\n[tools.{top}]\ntitle = "R"\n'
            f'[servers.a]\nurl = "{there.url}/mcp"\n[servers.a.tools.{own}]\ntitle = "a"\n'
            f'[servers.b]\nurl = "{beside.url}/mcp"\n'
        )
        async with launched("serve", "--config", str(file), home=tmp_path) as it:
            await it.says(LISTENING["serve"] if starts else "The edit of none matches no tool")
