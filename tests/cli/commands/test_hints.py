"""``--read-only`` and ``--deny-hint``, as people type them and in front of a command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.cli.launched import Typed
from tests.make import asking, calling
from tests.rooms.rules.test_rules_over_stdio import ruled_by
from tests.rooms.stdio.relaying import names_in, text_in
from tests.rooms.stdio.served_command import served_by
from tests.session_upstream import TOOLS, session_upstream
from tests.stdio_client import filtered, upstream

HINTS = {
    "read_file": {"readOnlyHint": True},
    "delete_file": {"destructiveHint": True, "openWorldHint": False},
    "say": {"readOnlyHint": "true", "openWorldHint": True},
}
SERVER = upstream("--tools", "read_file,write_file,delete_file,say", "--hints", json.dumps(HINTS))
RULE = "{id: x, conditions: [method_in: [none]], actions: [block: no]}"
ENDS = """
import sys, json
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/list":
        sys.exit(3)
    if asked["method"] == "initialize":
        hello = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": hello}), flush=True)
"""
NOT_FOUND = {"code": -32601, "message": "Tool not found: write_file"}


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("has_rules", [False, True])
def test_over_stdio_a_call_before_the_list_waits_for_it(
    page: int, has_rules: bool, tmp_path: Path
) -> None:
    """We ask ourselves; the client never sees the answers, and gets its own list later."""
    journal = tmp_path / "journal"
    words = ["--read-only", *(ruled_by(tmp_path, RULE) if has_rules else ())]
    server = [*SERVER, "--journal", str(journal), "--page", str(page)]
    with filtered(*words, "--", *server, home=tmp_path) as client:
        client.opens()
        for id, hidden in (("1", "write_file"), ("2", "say")):
            assert client.calls(hidden, id=id)["error"]["code"] == -32601
        assert "of which 3 denied, 1 exposed" in client.said_on_stderr("Saved:")
        assert text_in(client.calls("read_file", id="3")) == "read_file"
        if not page:
            assert names_in(client.asks("tools/list", id="4")) == ["read_file"]
        assert client.leaves() == 0
        assert not [line for line in client.raw if b"mcp-tool-filter" in line]
    asked = [json.loads(line).get("method") for line in journal.read_bytes().splitlines()]
    assert asked.count("tools/call") == 1
    assert asked.count("tools/list") == (4 if page else 2)


def test_a_batch_and_a_pipeline_wait_in_order(tmp_path: Path) -> None:
    with filtered("--deny-hint", "destructive", "--", *SERVER, home=tmp_path) as client:
        client.opens()
        batch = [calling("delete_file", id="2"), calling("read_file", id="3")]
        client.say(b"[" + b",".join(batch) + b"]", calling("write_file", id="4"), asking("ping"))
        heard = [client.hears() for _ in range(4)]
        by_id = {
            one["id"]: one for said in heard for one in (said if type(said) is list else [said])
        }
        assert by_id[1]["result"] == {}  # the ping
        assert by_id[2]["error"]["message"] == "Tool not found: delete_file"
        assert text_in(by_id[3]) == "read_file"
        assert by_id[4]["error"] == NOT_FOUND


@pytest.mark.parametrize("flags", [("--strict",), ("--tools", "")])
def test_where_the_list_cannot_be_had_a_call_is_refused_as_unknown(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """A name that needs no definition is judged at once; nobody waits for ever for the others."""
    words = ("--read-only", "--except", "^read_", "--deny", "^rm")
    with filtered(*words, "--", *SERVER, *flags, home=tmp_path) as client:
        assert client.calls("write_file")["error"] == NOT_FOUND  # before initialize
        assert client.calls("rm")["error"]["message"] == "Tool not found: rm"
        assert client.calls("crash")["error"]["message"] == "Tool not found: crash"


@pytest.mark.parametrize("has_rules", [False, True])
def test_a_command_that_ends_while_we_ask_counts_as_lost(has_rules: bool, tmp_path: Path) -> None:
    """So it does for the calls behind; a name that a pattern denies is not found in any case."""
    words = ("--read-only", "--deny", "^rm", *(ruled_by(tmp_path, RULE) if has_rules else ()))
    asked = [calling("write_file", id="1"), calling("rm", id="2")]
    asked += [calling("say", id="3")]
    with filtered(*words, "--", "python3", "-c", ENDS, home=tmp_path) as client:
        client.say(*asked)
        heard = [client.hears() for _ in asked]
        codes = {one["id"]: one["error"]["code"] for one in heard}
        assert codes == {1: -32000, 2: -32601, 3: -32000}
        assert client.ends() == 1


def test_a_pipe_asks_in_the_clients_session(tmp_path: Path) -> None:
    hints = [{"readOnlyHint": tool["name"] in ("read_file", "stream")} for tool in TOOLS]
    annotated: list[Any] = [
        {**tool, "annotations": said} for tool, said in zip(TOOLS, hints, strict=True)
    ]
    with patch("tests.session_upstream.TOOLS", annotated), session_upstream() as server:
        words = ("--stdio", "--read-only", "-u", server.url)
        with filtered(*words, home=tmp_path) as client:
            client.said_on_stderr("Saved:")
            server.forget()
            client.opens()
            assert client.calls("push", id="2")["error"]["code"] == -32601
            assert text_in(client.calls("read_file", id="3")) == "read_file"
            assert len(names_in(client.asks("tools/list", id="4"))) == 2
            assert client.leaves() == 0
        assert [seen.message["params"]["name"] for seen in server.calls()] == ["read_file"]
        assert server.methods().count("POST tools/list") == 2


def test_a_bridged_command_that_ends_while_we_ask_counts_as_lost(tmp_path: Path) -> None:
    """The first one lists its tools, for the report; that of the session does not."""
    once = tmp_path / "once"
    ends, lists = shlex.join(["python3", "-c", ENDS]), shlex.join(SERVER)
    script = f"[ -e {once} ] && exec {ends}; touch {once}; exec {lists}"
    words = ("--deny-hint", "open-world", "--port", "0", "--", "sh", "-c", script)
    with filtered(*words, home=tmp_path) as client:
        one = served_by(client)
        one.more["Authorization"] = "Bearer ann"  # not our own asker, so its list is unknown
        one.opens()
        [answer] = one.post(calling("delete_file")).messages()
        assert answer["error"] == {"code": -32000, "message": "Upstream connection lost"}


def test_a_server_that_says_nothing_of_its_tools_needs_allow(ran: Typed) -> None:
    for tools, whose in (("a,b,c", "none of its 3 tools has"), ("a", "its only tool has no")):
        err = ran("--list-tools", "--read-only", "--", *upstream("--tools", tools)).err
        assert f"Warning: no tool is left: {whose} annotations: use --allow" in err
    err = ran("--list-tools", "--read-only", "--deny", "^a", "--", *upstream("--tools", "a,b")).err
    assert "annotations" not in err, "a pattern hides one of them"


def test_every_source_and_the_report(tmp_path: Path, ran: Typed) -> None:
    """Hints add up, as deny patterns do."""
    file = tmp_path / "filter.toml"
    file.write_text('deny-hint = ["destructive"]\nread-only = false\nexcept = "^none"\n')
    words = ("--list-tools", "--config", str(file), "--deny-hint", "not-idempotent,open-world")
    out, err = ran(*words, "--", *SERVER)
    assert re.search(r"write_file\W+denied by --deny-hint destructive\b", out)
    assert re.search(r"read_file\W+denied by --deny-hint open-world\b", out)
    assert re.search(r"delete_file\b.*\bdestructive\b.*\[destructive\]", out)
    assert "no tool is left" in err
    assert 'the pattern "^none" matches no tool' in err
    environment = {"MCP_TOOL_FILTER_READ_ONLY": "true", "MCP_TOOL_FILTER_DENY_HINT": "open-world"}
    json_words = ("--list-tools", "--json", "--except", "^say$")
    out = ran(*json_words, "--", *SERVER, **environment).out
    tools = {one["name"]: one for one in json.loads(out)["tools"]}
    hidden_by = ["--deny-hint open-world", "--read-only", "--read-only", None]
    assert [one["pattern"] for one in tools.values()] == hidden_by
    assert tools["delete_file"]["marks"] == ["destructive"]
    assert (tools["read_file"]["marks"], tools["say"]["marks"]) == (["read-only"], ["open-world"])


def test_doctor_says_what_hides_tools_and_what_is_too_wide(ran: Typed) -> None:
    words = ("--read-only", "--deny", "^delete", "--allow", ".*", "--except", "^s|^w|^r|^d")
    out = ran("doctor", *words, "--", *SERVER).out
    assert "1 exception, --read-only" in out
    for pattern in (".*", "^s|^w|^r|^d"):
        assert f'ok   Warning: the pattern "{pattern}" matches every tool' in out
    out = ran("doctor", *words[:3], "--allow", "file", "--", *SERVER).out
    for hidden in ("by --read-only: write_file", 'by "^delete": delete_file', "not allowed: say"):
        assert re.search(rf"ok   Hidden,? {re.escape(hidden)}\n", out)


def test_strict_wants_an_exception_to_match(ran: Typed) -> None:
    words = ("--strict", "--read-only", "--except", "^none", "--list-tools")
    assert '"^none" matches no' in ran(*words, "--", *SERVER, status=1).err
