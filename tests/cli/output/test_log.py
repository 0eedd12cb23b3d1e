"""What is written to stderr: whole lines, above a status."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mcp_tool_filter.cli.output.log import log_to_stderr, say, set_status

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
