"""Colour and columns where a person looks, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.cli.output.terminal import Colour, paint, shortened
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


def test_a_pipe_gets_no_colours(tmp_path: Path) -> None:
    ended = subprocess.run(DEMO, capture_output=True, check=True, env=surroundings(tmp_path))
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert b"\r" not in ended.stdout + ended.stderr


def test_paint_changes_nothing_outside_a_terminal() -> None:
    with open(os.devnull, "w") as nowhere:
        assert paint("x", Colour.RED, nowhere) == "x"


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("\n a\nb", "a"), ("abcdef", "abcd…"), ("abcde", "abcde")]
)
def test_shortened_text_is_one_line(text: str, line: str) -> None:
    assert shortened(text, 5) == line
