"""Colour and columns where a person looks, whole lines above a status, and Ctrl+C."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.cli import terminal
from mcp_tool_filter.cli.terminal import (
    Colour,
    leads_nowhere,
    log_to_stderr,
    on_signals,
    paint,
    progress,
    say,
    set_status,
    shortened,
)
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.audit.activity import Activity, line_of
from tests.cli.launched import launched, surroundings
from tests.hosts import LAUNCHER, filtering
from tests.make import asking, calling
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_client import post, raw_client
from tests.rows import each_row

type Captured = pytest.CaptureFixture[str]
DEMO = [sys.executable, "-m", "mcp_tool_filter", "demo"]


def shown(home: Path, **environment: str) -> str:
    """What the demo writes to a terminal."""
    ours, theirs = pty.openpty()
    more = {"TERM": "xterm", **environment}
    kept = {k: v for k, v in surroundings(home, more).items() if k != "NO_COLOR" or k in more}
    with subprocess.Popen(DEMO, stdin=theirs, stdout=theirs, stderr=theirs, env=kept) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:  # the process has ended
            pass
        os.close(ours)
    assert process.returncode == 0
    return written.decode()


def test_a_terminal_gets_colours_and_a_progress_line(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert "\x1b[31m" in text
    assert len(re.findall(r"Asking http://127\.0\.0\.1:\S+ for its tools …\r", text)) == 1


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(environment: dict[str, str], tmp_path: Path) -> None:
    assert "\x1b[" not in shown(tmp_path, **environment)


def test_paint_changes_nothing_outside_a_terminal() -> None:
    with open(os.devnull, "w") as nowhere:
        assert paint("x", Colour.RED, nowhere) == "x"


def test_another_program_does_not_write_over_what_we_wait_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress("Asking it …", others_write=True):
        assert capsys.readouterr().err == "Asking it …\n"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("\n a\nb", "a"), ("abcdef", "abcd…"), ("abcde", "abcde")]
)
def test_shortened_text_is_one_line(text: str, line: str) -> None:
    assert shortened(text, 5) == line


LOG = logging.getLogger("mcp_tool_filter.some")


def logged(verbosity: int, capsys: Captured) -> list[str]:
    log_to_stderr(verbosity)
    LOG.debug("debug")
    LOG.info("info")
    LOG.warning("warning")
    LOG.error("Error: its own words")
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(("verbosity", "left_out"), [(2, 0), (1, 1), (0, 2), (-1, 3)])
def test_the_log_level_follows_the_flags(verbosity: int, left_out: int, capsys: Captured) -> None:
    lines = ["debug", "info", "Warning: warning", "Error: its own words"]
    assert logged(verbosity, capsys) == lines[left_out:]


@pytest.mark.parametrize("verbosity", [0, 1])
def test_a_traceback_is_shown_only_if_verbose(verbosity: int, capsys: Captured) -> None:
    log_to_stderr(verbosity)
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError:
        LOG.exception("it broke")
    said = capsys.readouterr().err
    assert said.startswith("Error: it broke")
    assert ("Traceback" in said) is bool(verbosity)
    assert ("(-v shows where)" in said) is not bool(verbosity)


def test_warnings_name_our_flags_but_quote_others_as_they_are(
    capsys: Captured,
) -> None:
    log_to_stderr(0)
    LOG.warning("%d clients are refused (see max_clients)", 2)
    LOG.warning("Not adopted. %s", StartError("no list", why="the credentials in upstream_headers"))
    LOG.warning("Rule 'a': %s", "the tool audit_log was called")
    assert capsys.readouterr().err.splitlines() == [
        "Warning: 2 clients are refused (see --max-clients)",
        "Warning: Not adopted. Error: no list",
        "the credentials in --header",
        "Warning: Rule 'a': the tool audit_log was called",
    ]


def test_an_already_printed_error_is_not_logged_again(capsys: Captured) -> None:
    log_to_stderr(0)
    LOG.error("said", extra={"is_said": True})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("variable", "value", "clear"), [
    ("TERM", "xterm", "\r\x1b[J"), ("TERM", "dumb", "\r        \r"),
    ("NO_COLOR", "1", "\r        \r"),
])  # fmt: skip
def test_log_lines_are_written_above_the_status(
    variable: str, value: str, clear: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    set_status("asking …")
    set_status("asking …")
    say("a line")
    set_status("")
    say("another")
    assert capsys.readouterr().err == f"asking …\r{clear}a line\nasking …\r{clear}another\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_calls_the_newest_handler(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    before = signal.getsignal(number)
    left = asyncio.Event()
    try:
        on_signals(loop, lambda: pytest.fail("another was named since"))
        on_signals(loop, left.set)
        os.kill(os.getpid(), number)
        await left.wait()
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
        signal.signal(number, before)


_PIECES = re.compile(r"\r|\n|\x1b\[[JK]|[^\r\n\x1b]+")


class Screen:
    """A terminal that never scrolls. A text that is too long for a row goes on in the next one."""

    def __init__(self, columns: int, *, breaks_rows: bool = True) -> None:
        """``breaks_rows`` when it gets narrower, as most do; others cut what does not fit."""
        self.columns = columns
        self._breaks_rows = breaks_rows
        self.rows = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        assert "".join(_PIECES.findall(text)) == text
        for piece in _PIECES.findall(text):
            match piece:
                case "\r":
                    self._column = 0
                case "\n":
                    self._go_down()
                    self._column = 0
                case "\x1b[J":
                    self.rows[self._row :] = [self.rows[self._row][: self._column]]
                case "\x1b[K":
                    self.rows[self._row] = self.rows[self._row][: self._column]
                case _:
                    for letter in piece:
                        self._put(letter)

    def resize(self, columns: int) -> None:
        """Lay the rows out anew; the cursor stays with its letter."""
        rows: list[str] = []
        cursor = (0, 0)
        for number, row in enumerate(self.rows):
            if number == self._row:
                down = self._column // columns if self._breaks_rows else 0
                cursor = (len(rows) + down, min(self._column - down * columns, columns - 1))
            parts = [row[at : at + columns] for at in range(0, len(row), columns)] or [""]
            rows += parts if self._breaks_rows else parts[:1]
        self.columns, self.rows, (self._row, self._column) = columns, rows, cursor

    def _put(self, letter: str) -> None:
        if self._column == self.columns:
            self._go_down()
            self._column = 0
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + letter + row[self._column + 1 :]
        self._column += 1

    def _go_down(self) -> None:
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append("")


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def entry(more: dict[str, object]) -> dict[str, object]:
    where = {"time": "2026-11-18T09:30:00.123Z", "client": "127.0.0.1:5", "method": "tools/call"}
    return {**where, "tool": "read", "verdict": "forwarded", "upstream_ms": 2.0, **more}


UNANSWERED: dict[str, object] = {"answered": False, "upstream_ms": None}
INVALID: dict[str, object] = {"error_code": -32603, "answer_why": "invalid"}
LINES: dict[str, dict[str, object]] = {
    "ok, 2.0 ms": {},
    "refused (denied by ^r), 2.0 ms": {"verdict": "refused", "why": "denied", "pattern": "^r"},
    "refused (blocked by no-rm), 2.0 ms": {"verdict": "refused", "why": "blocked", "rule": "no-rm"},
    "error -32000, 2.0 ms": {"error_code": -32000}, "tool error, 2.0 ms": {"tool_error": True},
    "no answer": UNANSWERED, "no answer (HTTP 500)": UNANSWERED | {"status": 500},
    "no answer (cancelled)": UNANSWERED | {"answer_why": "cancelled"},
    "no answer (the client left)": UNANSWERED | {"answer_why": "client_left"},
    "no answer (the upstream failed)": UNANSWERED | {"answer_why": "upstream_failed"},
    "answered by the filter (cached), 2.0 ms": {"verdict": "answered", "why": "cached"},
    "ok, changed (changed), 2.0 ms": {"verdict": "changed", "why": "changed"},
    "error: invalid message from the upstream, 2.0 ms": INVALID,
    "answer refused (blocked by r), 2.0 ms": {"answer_why": "blocked", "answer_rule": "r"},
    "ok, answer changed (changed by r), 2.0 ms": {"answer_why": "changed", "answer_rule": "r"},
}  # fmt: skip


@each_row("said", LINES)
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
        await it.hear(*map(post, (calling("read"), calling("rm"), asking("tools/list", id="2"))))
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
        assert [one.split() for one in lines[5:]] == [["1", "read"], ["1", "rm", "refused"]]


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
    columns: int, breaks_rows: bool, capfd: Captured, monkeypatch: pytest.MonkeyPatch
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
            await client.ask(post(calling("read")))
        await it.says("tools/call read: ok")
        it.interrupt()
        assert await it.exit_code() == 0
    named = re.search(r"^\[127\.0\.0\.1:\d+\] client connect$", it.stderr, re.MULTILINE)
    assert (named is not None) is ("client connect" in it.stderr) is is_shown


@pytest.mark.parametrize(("more", "said"), [
    ({"verdict": "refused", "why": "denied", "pattern": "^r"}, "ok, would be refused"),
    ({"verdict": "forwarded", "answer_verdict": "changed", "answer_why": "hidden"},
     "ok, answer would be changed (hidden)"),
    ({"verdict": "refused", "why": "blocked", "rule": "a", "error_code": -1}, "error -1, w"),
])  # fmt: skip
def test_a_line_shows_what_would_have_become_of_a_message(
    more: dict[str, object], said: str
) -> None:
    line, colour = line_of({"method": "tools/call", "tool": "read", "shadow": True, **more})
    assert f": {said}" in line
    assert colour is not None
