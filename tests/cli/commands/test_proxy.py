"""Flags that cannot work are refused or named before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import run


@pytest.mark.parametrize(
    "server", [["--", "false"], ["--stdio", "--upstream", "http://127.0.0.1:1/mcp"]]
)
@pytest.mark.parametrize("flag", ["dashboard"])
def test_flags_that_stdio_does_not_support_are_refused(
    flag: str, server: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--deny", "^a", f"--{flag}", "0", *server]) == 2
    err = capsys.readouterr().err
    assert f"Error: --{flag} does not work over stdio\n" in err
    assert "--port" in err


@pytest.mark.parametrize(
    ("flags", "unused"),
    [
        (["--", sys.executable, "-c", ""], []),
        (["-H", "X-A: 1", "--cert", "x.pem", "--", sys.executable, "-c", ""], ["header", "cert"]),
        (["--host", "::1", "--stdio", "--upstream", "http://127.0.0.1:1/mcp"], ["host"]),
        (["-H", "X-A: 1", "--stdio", "--upstream", "http://127.0.0.1:1/mcp"], []),
    ],
)
def test_typed_flags_that_change_nothing_are_named(
    flags: list[str], unused: list[str], tmp_path: Path
) -> None:
    """A user who types --cert in front of a command may believe that something is encrypted."""
    ran = run("--deny", "^a", *flags, home=tmp_path)
    named = [line.split()[1] for line in ran.stderr.splitlines() if "has no effect" in line]
    assert named == [f"--{name}" for name in unused]
