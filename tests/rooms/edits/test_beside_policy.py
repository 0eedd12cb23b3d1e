"""Edits beside rules, a lock, profiles, and a file that is read again: which names each sees."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launched import launched, run
from tests.mcp_upstream import tool
from tests.raw_upstream import raw_upstream
from tests.rooms.serve.test_serve import command, serving
from tests.shapes import LISTENING, Server, call, message, shape, talking

EDITS = '[tools.create_issue]\nname = "new_issue"\nfix = {teamId = "T"}\n'
TOOLS = [tool("read_file"), tool("create_issue"), tool("delete_issue")]
LIMIT = """interceptor:
  rules:
    - id: limited
      conditions: [tool_equals: create_issue]
      actions: [rate_limit: {key: all, limit: 1, window: 1h}]
"""
BLOCK = """interceptor:
  rules:
    - id: guarded
      conditions: [tool_equals: create_issue, param_equals: {field: arguments.teamId, value: T}]
      actions: [block: not with T]
"""


def given(home: Path, *, edits: str = EDITS, rules: str = "", **more: Any) -> dict[str, Any]:
    (home / "edits.toml").write_text(edits)
    (home / "rules.yaml").write_text(rules)
    options = {"deny": "^delete_", "edits": str(home / "edits.toml")} | more
    return options | ({"rules": str(home / "rules.yaml")} if rules else {})


@pytest.mark.parametrize("name", ["relay", "sockets"])
async def test_what_edits_refuse_counts_for_no_rule(name: str, tmp_path: Path) -> None:
    """The old name is unknown: a limit for the tool must not be used up by it, nor be seen."""
    server = Server(TOOLS)
    async with shape(name, server, tmp_path, given(tmp_path, rules=LIMIT)) as talk:
        for number in range(3):
            refused = await talk.ask(call("create_issue", number))
            assert refused["error"]["message"] == "Tool not found: create_issue"
            brought = message("tools/call", number + 10, name="new_issue", arguments={"teamId": 1})
            assert (await talk.ask(brought))["error"]["code"] == -32602
        assert "result" in await talk.ask(call("new_issue", 20))
        limited = await talk.ask(call("new_issue", 21))
        assert "error" in limited
        assert "create_issue" not in json.dumps(limited)
        unknown = await talk.ask(call("create_issue", 22))
        assert unknown["error"]["message"] == "Tool not found: create_issue"
    assert server.called() == ["create_issue"]


@pytest.mark.parametrize("name", ["relay", "sockets"])
async def test_a_rule_sees_the_own_name_and_the_fixed_value(name: str, tmp_path: Path) -> None:
    server = Server(TOOLS)
    async with shape(name, server, tmp_path, given(tmp_path, rules=BLOCK)) as talk:
        assert "not with T" in json.dumps(await talk.ask(call("new_issue", 1)))
    assert server.called() == []


async def test_the_audit_log_has_both_names(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    options = given(tmp_path) | {"audit-log": str(log)}
    async with shape("relay", Server(TOOLS), tmp_path, options) as talk:
        await talk.ask(call("new_issue", 1))
        await talk.ask(call("create_issue", 2))
        await talk.ask(message("tools/call", 3, name="new_issue", arguments={"teamid": 1}))
        await talk.ask(call("read_file", 4))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [one for one in entries if one.get("method") == "tools/call"]
    assert [(one["tool"], one.get("exposed"), one["verdict"]) for one in calls] == [
        ("create_issue", "new_issue", "forwarded"),
        ("create_issue", None, "refused"),
        ("create_issue", "new_issue", "refused"),
        ("read_file", None, "forwarded"),
    ]


async def test_a_lock_holds_the_servers_own_bytes(tmp_path: Path) -> None:
    """So an edit can be changed without another approval, and hides no change of the server."""
    lock, server = tmp_path / "tools.lock", Server(TOOLS)
    async with raw_upstream(server.serve) as there:
        options = given(tmp_path)
        flags = [f"--edits={options['edits']}", "--upstream", f"{there.url}/mcp"]
        made = await asyncio.to_thread(run, "lock", str(lock), *flags, home=tmp_path)
        assert made.returncode == 0, made.stderr
    written = lock.read_text()
    assert "create_issue" in written
    assert "new_issue" not in written
    text = '[tools.create_issue]\nname = "third"\ndescription = "mine"\n'
    options = given(tmp_path, edits=text, lock=str(lock))
    async with shape("relay", Server(TOOLS), tmp_path, options) as talk:
        assert await talk.names() == ["read_file", "third"]
        assert "result" in await talk.ask(call("third", 3))
    changed = [TOOLS[0], tool("create_issue", ', "description":"other"'), TOOLS[2]]
    async with shape("relay", Server(changed), tmp_path, options) as talk:
        assert await talk.names() == ["read_file"]
        assert "error" in await talk.ask(call("third", 3))


async def test_a_profile_believes_the_operators_word(tmp_path: Path) -> None:
    server = Server([tool("a", ', "annotations":{"readOnlyHint":true}'), tool("b"), tool("c")])
    async with raw_upstream(server.serve) as there:
        file = tmp_path / "servers.toml"
        file.write_text(
            f'[servers.s]\nurl = "{there.url}/mcp"\n'
            "[servers.s.tools.a]\nhints = {read-only = false}\n"
            "[servers.s.tools.b]\nhints = {read-only = true}\n"
            "[profiles.safe]\nread-only = true\n"
        )
        async with launched("serve", "--config", str(file), home=tmp_path) as it:
            port = int((await it.says(LISTENING["serve"]))[1])
            async with talking("HTTP", port, "/safe/mcp") as talk:
                await talk.opens()
                assert await talk.names() == ["s_b"]
                assert (await talk.ask(call("s_a", 2)))["error"]["code"] == -32601


def test_an_edit_for_all_servers_is_dead_only_if_it_matches_nowhere(tmp_path: Path) -> None:
    text = (
        '[tools.none]\ntitle = "a"\n[tools.read]\ntitle = "b"\n'
        f'[servers.one]\n{command("read,write")}\n[servers.one.tools.nil]\ntitle = "c"\n'
        f"[servers.two]\n{command('other')}\n"
    )
    with serving(tmp_path, text) as it:
        it.says("Warning: the edit of none matches no tool of any server")
        it.says("Warning: one: the edit of nil matches no tool")
        it.says(r"    Edited: read: title\n")
        assert it.stderr.count("matches no tool") == 2
    with serving(tmp_path, f"quiet = true\n{text}", report="matches no tool of any") as it:
        assert it.stderr.count("matches no tool") == 2


def test_edits_of_a_changed_file_must_fit_the_tools(tmp_path: Path) -> None:
    one = f"[servers.one]\n{command('read,write')}\n"
    bad = [
        ('[servers.one.tools.read]\nname = "write"\n', "is taken"),
        (
            '[servers.one.tools."r*"]\ntitle = "a"\n[servers.one.tools."*d"]\ntitle = "b"\n',
            "disagr",
        ),
    ]
    with serving(tmp_path, one + '[servers.one.tools.read]\nname = "look"\n') as it:
        for text, why in bad:
            it.reads(one + text, f"Warning: one: the old policy stays: .*{why}")
            assert it.at("one").tools() == ["look", "write"]
        it.reads(one + '[servers.one.tools.nil]\ntitle = "a"\n', "the edit of nil matches no tool")
    with serving(tmp_path, one + bad[1][0]) as it:
        it.says("one is not available: .* disagree about read")


@pytest.mark.rest
@pytest.mark.parametrize("name", ["mitmdump", "launcher", "serve"])
async def test_the_report_says_what_was_edited(name: str, tmp_path: Path) -> None:
    own: dict[str, Any] | None = {} if name == "serve" else None
    async with shape(name, Server(TOOLS), tmp_path, given(tmp_path), own=own) as talk:
        assert "Edited: create_issue: named new_issue, fixed teamId" in talk.stderr()


def test_one_entry_over_stdio_reports_it_too(tmp_path: Path) -> None:
    file = tmp_path / "servers.toml"
    file.write_text(f'[servers.one]\n{command("read")}\n[servers.one.tools.read]\ntitle = "a"\n')
    done = run("serve", "--stdio", "--config", str(file), home=tmp_path)
    assert "    Edited: read: title\n" in done.stderr


async def test_a_changed_file_of_edits_must_fit_the_tools(tmp_path: Path) -> None:
    file = tmp_path / "edits.toml"
    file.write_text('[tools.read_file]\ntitle = "x"\n')
    async with raw_upstream(Server(TOOLS).serve) as there:
        words = ("--edits", str(file), "--upstream", f"{there.url}/mcp")
        async with launched(*words, home=tmp_path) as it:
            port = await it.serving()
            for text, said in (
                ('name = "create_issue"', "the old edits stay in force: The new name of read_file"),
                ('name = "look"', "SIGHUP: the edits have changed"),
            ):
                file.write_text(f"[tools.read_file]\n{text}\n")
                it.process.send_signal(signal.SIGHUP)
                await it.says(said)
            async with talking("HTTP", port) as talk:
                await talk.opens()
                assert await talk.names() == ["look", "create_issue", "delete_issue"]
                assert "result" in await talk.ask(call("look", 2))
