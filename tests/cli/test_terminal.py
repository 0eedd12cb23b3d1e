"""Colour and columns where a person looks, whole lines above a status, and Ctrl+C."""

from __future__ import annotations

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_tool_filter.cli.terminal import (
    Colour,
    log_to_stderr,
    on_signals,
    paint,
    progress,
    say,
    set_status,
    shortened,
)
from mcp_tool_filter.errors import StartError
from tests.cli.launched import surroundings

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
    assert "Asking http://127.0.0.1:" in text
    assert text.count("for its tools …\r") == 1


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(environment: dict[str, str], tmp_path: Path) -> None:
    assert "\x1b[" not in shown(tmp_path, **environment)


def test_paint_changes_nothing_outside_a_terminal() -> None:
    with open(os.devnull, "w") as nowhere:
        assert paint("x", Colour.RED, nowhere) == "x"


def test_another_program_does_not_write_over_what_we_wait_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    set_status("")
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(verbosity: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    log_to_stderr(verbosity)
    LOG.debug("debug")
    LOG.info("info")
    LOG.warning("warning")
    LOG.error("Error: its own words")
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("verbosity", "lines"),
    [
        (-1, ["Error: its own words"]),
        (0, ["Warning: warning", "Error: its own words"]),
        (1, ["info", "Warning: warning", "Error: its own words"]),
        (2, ["debug", "info", "Warning: warning", "Error: its own words"]),
    ],
)
def test_the_log_level_follows_the_flags(
    verbosity: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert logged(verbosity, capsys) == lines


@pytest.mark.parametrize("verbosity", [0, 1])
def test_a_traceback_is_shown_only_if_verbose(
    verbosity: int, capsys: pytest.CaptureFixture[str]
) -> None:
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
    capsys: pytest.CaptureFixture[str],
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


def test_an_already_printed_error_is_not_logged_again(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(0)
    LOG.error("said", extra={"is_said": True})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("variable", "value", "clear"),
    [
        ("TERM", "xterm", "\r\x1b[J"),
        ("TERM", "dumb", "\r        \r"),
        ("NO_COLOR", "1", "\r        \r"),
    ],
)
def test_log_lines_are_written_above_the_status(
    variable: str,
    value: str,
    clear: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
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
