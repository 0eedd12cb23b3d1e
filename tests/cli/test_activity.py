"""What the launcher shows of the messages that pass."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.cli import terminal
from mcp_tool_filter.cli.activity import Activity, line_of
from mcp_tool_filter.cli.terminal import leads_nowhere
from tests.cli.launched import launched
from tests.cli.screen import Screen
from tests.hosts import LAUNCHER, filtering
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_client import post, raw_client

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
LIST = b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}'


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def entry(more: dict[str, object]) -> dict[str, object]:
    usual: dict[str, object] = {
        "time": "2026-11-18T09:30:00.123Z",
        "client": "127.0.0.1:5",
        "method": "tools/call",
    }
    return {**usual, "tool": "read", "verdict": "forwarded", "upstream_ms": 2.0, **more}


UNANSWERED: dict[str, object] = {"answered": False, "upstream_ms": None}
INVALID: dict[str, object] = {"error_code": -32603, "answer_why": "invalid"}
LINES: dict[str, dict[str, object]] = {
    "ok, 2.0 ms": {},
    "refused (denied by ^r), 2.0 ms": {"verdict": "refused", "why": "denied", "pattern": "^r"},
    "refused (blocked by no-rm), 2.0 ms": {"verdict": "refused", "why": "blocked", "rule": "no-rm"},
    "error -32000, 2.0 ms": {"error_code": -32000},
    "tool error, 2.0 ms": {"tool_error": True},
    "no answer": UNANSWERED,
    "no answer (HTTP 500)": UNANSWERED | {"status": 500},
    "no answer (cancelled)": UNANSWERED | {"answer_why": "cancelled"},
    "no answer (the client left)": UNANSWERED | {"answer_why": "client_left"},
    "no answer (the upstream failed)": UNANSWERED | {"answer_why": "upstream_failed"},
    "answered by the filter (cached), 2.0 ms": {"verdict": "answered", "why": "cached"},
    "ok, changed (changed), 2.0 ms": {"verdict": "changed", "why": "changed"},
    "error: invalid message from the upstream, 2.0 ms": INVALID,
    "answer refused (blocked by r), 2.0 ms": {"answer_why": "blocked", "answer_rule": "r"},
    "ok, answer changed (changed by r), 2.0 ms": {"answer_why": "changed", "answer_rule": "r"},
}


@pytest.mark.parametrize("said", LINES)
def test_a_line_shows_what_became_of_a_message(said: str) -> None:
    line, _ = line_of(entry(LINES[said]))
    assert line == f"09:30:00 127.0.0.1:5 tools/call read: {said}"


def test_lines_are_written_together_above_the_status() -> None:
    due: list[Callable[[], None]] = []
    written: list[str] = []
    activity = Activity(io.StringIO(), written.append, due.append, set_status=written.append)
    for number in range(3):
        activity.show(entry({"tool": f"t{number}"}))
    assert len(due) == 1
    assert not written
    due[0]()
    assert written[1].count("\n") == 2
    assert "3 calls" in activity.end()


def test_dev_null_is_recognised() -> None:
    with open(os.devnull, "w") as nowhere:
        assert leads_nowhere(nowhere)
    assert not leads_nowhere(io.StringIO())


@pytest.mark.parametrize("form", ["text", "json", "none"])
async def test_a_running_filter_shows_calls_lists_and_refusals(form: str, tmp_path: Path) -> None:
    async with filtering(LAUNCHER, tmp_path, "deny=^rm$", f"log_format={form}") as it:
        await it.hear(*map(post, (CALL % b"read", CALL % b"rm", LIST)))
        if form != "none":
            await it.it.says("tools/list")
    if form == "json":
        report, *told, summary = map(json.loads, it.stderr.splitlines())  # each line is JSON
        assert report["level"] == "info"
        assert report["message"].startswith("MCP tool filter: http://")
        assert [one["verdict"] for one in told] == ["forwarded", "refused", "forwarded"]
        assert summary["event"] == "summary"
        assert (summary["calls"], summary["refused"]) == ({"read": 1}, {"rm": 1})
        assert summary["saved_bytes"] > 0
    elif form == "none":
        assert "tools/call" not in it.stderr
    else:
        lines = it.stderr.partition("per tools/list\n")[2].splitlines()
        assert re.fullmatch(r"\S+ 127\.0\.0\.1:\d+ tools/call read: ok, \S+ ms, .*", lines[0])
        assert "tools/call rm: refused (denied by ^rm$)" in lines[1]
        assert "tools/list: ok, answer changed (hidden)" in lines[2]
        assert re.fullmatch(r"Ran 0 min \d+ s: 1 call, 1 refused, 0 errors", lines[3])
        assert lines[4].startswith("Saved ")


async def test_a_warning_is_written_as_all_other_lines_are(tmp_path: Path) -> None:
    """One that is written past them is no JSON, and garbles the status line of a terminal."""
    async with filtering(LAUNCHER, tmp_path, "log_format=json") as it:
        await it.it.says("nothing is denied")
    warnings = [json.loads(line) for line in it.stderr.splitlines()]
    assert [one["level"] for one in warnings] == ["info", "warning"]


def test_a_forbidden_head_is_not_reported_as_unreadable() -> None:
    entry: dict[str, object] = {"verdict": "refused", "why": "forbidden", "detail": "Host"}
    assert line_of(entry)[0].endswith(" request: refused (forbidden: Host)")


@pytest.mark.parametrize("breaks_rows", [True, False])
@pytest.mark.parametrize("columns", [5, 12, 30, 60])
def test_a_resized_terminal_keeps_no_part_of_the_status(
    columns: int,
    breaks_rows: bool,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some terminals break a row that is too long by now, others cut it."""
    screen = Screen(40, breaks_rows=breaks_rows)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((screen.columns, 24)))
    terminal.say("above")
    terminal.set_status("11 sessions · 7 calls · 3 refused")
    screen.write(capfd.readouterr().err)
    screen.resize(columns)
    terminal.say("line")
    terminal.set_status("12 sessions")
    terminal.set_status("")
    screen.write(capfd.readouterr().err)
    assert screen.rows == ["above", "line", ""]


@pytest.mark.parametrize(("flag", "is_shown"), [("-v", False), ("-vv", True)])
async def test_each_connection_is_logged_only_with_vv(
    flag: str, is_shown: bool, tmp_path: Path
) -> None:
    async with (
        mcp_upstream(tools=[tool("read"), tool("rm")]) as upstream,
        launched("-u", upstream.url, "-d", "^rm$", flag, home=tmp_path) as it,
    ):
        async with raw_client(await it.serving()) as client:
            await client.ask(post(CALL % b"read"))
        await it.says("tools/call read: ok")
        it.interrupt()
        assert await it.exit_code() == 0
    named = re.search(r"^\[127\.0\.0\.1:\d+\] client connect$", it.stderr, re.MULTILINE)
    assert (named is not None) is ("client connect" in it.stderr) is is_shown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"verdict": "refused", "why": "denied", "pattern": "^r"}, "ok, would be refused"),
        ({"verdict": "forwarded", "answer_verdict": "changed", "answer_why": "hidden"},
         "ok, answer would be changed (hidden)"),
        ({"verdict": "refused", "why": "blocked", "rule": "a", "error_code": -1}, "error -1, w"),
    ],
)  # fmt: skip
def test_a_line_shows_what_would_have_become_of_a_message(
    more: dict[str, object], said: str
) -> None:
    line, colour = line_of({"method": "tools/call", "tool": "read", "shadow": True, **more})
    assert f": {said}" in line
    assert colour is not None
