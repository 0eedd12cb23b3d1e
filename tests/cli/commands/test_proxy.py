"""Flags that cannot work are refused or named before anything starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import ADDON, run

TO_NOBODY = ["--stdio", "--upstream", "http://127.0.0.1:1/mcp"]
FOR_FETCHES = [
    "--require-list",
    "--keep-running",
    "--connection-timeout=9",
    "--tool-list-timeout=9",
]
ABOUT_HEADERS = ["--header-paths=*", "--header-override", "--login-through=off"]
FOR_PROXIES = ["--max-children=2", "--no-browser", "--show-secrets", "--set=a=b",
               "--paths=all", "--max-clients=9"]  # fmt: skip


def names_in(flags: list[str]) -> list[str]:
    return [flag.removeprefix("--").partition("=")[0] for flag in flags]


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
        (
            [*FOR_FETCHES, *FOR_PROXIES, *ABOUT_HEADERS, "--", sys.executable, "-c", ""],
            names_in(FOR_FETCHES + FOR_PROXIES + ABOUT_HEADERS),
        ),
        (
            [*FOR_FETCHES[1:], *FOR_PROXIES, *ABOUT_HEADERS, *TO_NOBODY],
            names_in(FOR_PROXIES + ABOUT_HEADERS),
        ),
    ],
)
def test_typed_flags_that_change_nothing_are_named(
    flags: list[str], unused: list[str], tmp_path: Path
) -> None:
    """A user who types --cert in front of a command may believe that something is encrypted."""
    ran = run("--deny", "^a", *flags, home=tmp_path)
    named = [line.split()[1] for line in ran.stderr.splitlines() if "has no effect" in line]
    assert sorted(named) == sorted(f"--{name}" for name in unused)


@pytest.mark.parametrize("words", [["--deny"], ["--allow"], ["--deny-glob"], ["check-pattern"]])
@pytest.mark.parametrize("more", [["--", "true"], ["--port", "0", "--", "true"], ["--list-tools"]])
def test_a_pattern_that_is_not_utf8_is_refused(
    words: list[str], more: list[str], tmp_path: Path
) -> None:
    more = [] if words == ["check-pattern"] else more
    if more == ["--list-tools"]:
        more += TO_NOBODY
    ran = run(*words, "a\udcff", *more, home=tmp_path)
    assert ran.returncode == 1
    said = ran.stderr.splitlines()
    assert said[0].startswith('Error: The pattern "a\\udcff" in ')
    assert len(said) == 2


@pytest.mark.parametrize("flags", [[], ["--port", "0"]])
def test_the_modules_of_a_wrapped_server_are_not_ours(flags: list[str], tmp_path: Path) -> None:
    """Its client's entry sets PYTHONPATH for the server, and so for us."""
    code, marker = tmp_path / "code", tmp_path / "imported"
    code.mkdir()
    for name in ("json", "queue", "yaml", "h11", "mitmproxy", "logging", "asyncio", "keyring"):
        (code / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')")
    program = "import os, sys; sys.exit(0 if os.environ['PYTHONPATH'].endswith('code') else 7)"
    python_path = {"PYTHONPATH": f"{ADDON}{os.pathsep}{code}"}
    command = [sys.executable, "-S", "-c", program]
    ran = run("--deny", "^a", *flags, "--", *command, home=tmp_path, environment=python_path)
    assert "exited with code 0" in ran.stderr if flags else ran.returncode == 0
    assert not marker.exists(), marker.read_text()
