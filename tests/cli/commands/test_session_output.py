"""What a session over stdio shows and keeps, in front of a command and of a URL."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import read_flows
from mcp_tool_filter.cli.commands.stdio import open_recorder, say_beside_client
from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.policy.verdict import Forward
from tests.cli.launched import run
from tests.make import answering, asking
from tests.stdio_client import filtered, upstream

SAID: list[dict[str, object]] = [
    {"id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"}}},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
    {"id": 3, "method": "tools/call", "params": {"name": "read_file", "arguments": {"a": 1}}},
    {"id": 4, "method": "tools/call", "params": {"name": "delete_file"}},
]  # fmt: skip


def session(home: Path, *flags: str) -> str:
    """Say it all over stdio, one message after the other; return what stderr got."""
    with filtered("--deny", "^delete_", *flags, "--", *upstream(), home=home) as client:
        for one in SAID:
            client.say(json.dumps({"jsonrpc": "2.0", **one}).encode())
            if "id" in one:
                assert client.hears()["id"] == one["id"]
        assert client.leaves() == 0
    return client.stderr()


def test_the_audit_log_has_a_line_for_each_message_that_matters(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    session(tmp_path, "--audit-log", str(file))
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [(one["method"], one.get("tool"), one["verdict"]) for one in entries] == [
        ("tools/list", None, "forwarded"),
        ("tools/call", "read_file", "forwarded"),
        ("tools/call", "delete_file", "refused"),
    ]
    assert {one["transport"] for one in entries} == {"stdio"}
    assert entries[0]["answer_why"] == "hidden"
    assert entries[1]["answered"]
    assert main(["audit", "verify", str(file)]) == 0


def test_a_rules_log_line_is_audited_over_stdio(tmp_path: Path) -> None:
    file, rules = tmp_path / "audit.jsonl", tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor: {rules: [{id: tell, conditions: [tool_equals: read_file],"
        ' actions: [log: {message: "a is ${params.arguments.a}"}]}]}'
    )
    session(tmp_path, "--audit-log", str(file), "--rules", str(rules))
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    (told,) = [one for one in entries if "event" in one]
    assert (told["event"], told["rule"], told["message"]) == ("rule", "tell", "a is 1")
    assert len(entries) == 4


@pytest.mark.parametrize("is_shown", [True, False])
def test_activity_lines_are_shown_only_on_request(is_shown: bool, tmp_path: Path) -> None:
    """Clients show stderr to their users."""
    stderr = session(tmp_path, *(["-v"] if is_shown else []))
    assert ("tools/call read_file: ok" in stderr) is is_shown
    assert ("Ran 0 min" in stderr) is is_shown


def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    words = ("-d", "x", "--audit-log", str(tmp_path / "none" / "a"), "--", "true")
    done = run(*words, home=tmp_path)
    assert done.returncode == 1
    assert "Error: Cannot write the audit log" in done.stderr
    assert "Traceback" not in done.stderr


def record(path: str) -> None:
    recorder = open_recorder(path)
    recorder.from_client(asking("ping"), Forward())
    recorder.from_upstream(answering("{}"), Forward())
    recorder.end()


def test_a_recording_is_private_and_is_replaced_or_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "s.flow"
    counts = []
    for path in (str(file), str(file), f"+{file}"):
        record(path)
        counts.append(len(read_flows(file)))
    assert counts == [1, 1, 2]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_text_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """stdout belongs to the client's messages."""
    say_beside_client("hidden: 3 tools")
    assert capsys.readouterr() == ("", "hidden: 3 tools\n")


def test_a_client_may_close_our_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        say_beside_client("nobody reads this")
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            closed.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())
