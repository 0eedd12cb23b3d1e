"""Flags that cannot work are refused or named before anything starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cli.launched import ADDON, Typed, run

TO_NOBODY = ["--stdio", "--upstream", "http://127.0.0.1:1/mcp"]
ENDS = ["--", sys.executable, "-c", ""]
FOR_FETCHES = ["--keep-running", "--connection-timeout=9", "--tool-list-timeout=9"]
FOR_PROXIES = ["--max-children=2", "--no-browser", "--show-secrets", "--set=a=b", "--paths=all"]
FOR_PROXIES += ["--max-clients=9", "--login-through=off"]


def names_in(flags: list[str]) -> list[str]:
    return [flag.removeprefix("--").partition("=")[0] for flag in flags]


@pytest.mark.parametrize(("flags", "unused"), [
    (ENDS, []), (["-H", "X-A: 1", "--cert", "x.pem", *ENDS], ["header", "cert"]),
    (["--audit-arguments=none", "--audit-rotate=1MB", "--metrics-host=::1", *ENDS],
     ["audit-arguments", "audit-rotate", "metrics-host"]),
    (["--audit-arguments=none", f"--audit-log={os.devnull}/x", *TO_NOBODY], []),
    (["--host", "::1", *TO_NOBODY], ["host"]), (["-H", "X-A: 1", *TO_NOBODY], []),
    (FOR_FETCHES + FOR_PROXIES + ENDS, names_in(FOR_FETCHES + FOR_PROXIES)),
    (FOR_FETCHES + FOR_PROXIES + TO_NOBODY, names_in(FOR_PROXIES)),
])  # fmt: skip
def test_typed_flags_that_change_nothing_are_named(
    flags: list[str], unused: list[str], tmp_path: Path
) -> None:
    """A user who types --cert in front of a command may believe that something is encrypted."""
    said = run("--deny", "^a", *flags, home=tmp_path).stderr
    named = [line.split()[1] for line in said.splitlines() if "has no effect" in line]
    assert sorted(named) == sorted(f"--{name}" for name in unused)


@pytest.mark.parametrize("words", [["--deny"], ["--allow"], ["--deny-glob"], ["check-pattern"]])
@pytest.mark.parametrize("more", [["--", "true"], ["--port", "0", "--", "true"], TO_NOBODY])
def test_a_pattern_that_is_not_utf8_is_refused(
    words: list[str], more: list[str], ran: Typed
) -> None:
    more = [] if words == ["check-pattern"] else more
    what, _ = ran(*words, "a\udcff", *more, status=2).err.splitlines()
    assert what.startswith('Error: The pattern "a\\udcff" in ')


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
