"""Claude Code, Codex and Gemini themselves as the child of ``run``, over http and https."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.oauth_upstream import oauth_upstream
from tests.proxy import certified

from .client_programs import ASKING_CODEX, PROGRAMS, ClientProgram
from .peer import need


def command_of(program: str) -> Sequence[str]:
    """Return what makes a program connect to its servers."""
    return ("codex", "app-server") if program == "codex" else (PROGRAMS[program], "mcp", "list")


def run(client: ClientProgram, *flags: str) -> str:
    """Run a program until it has asked its servers; return what we said."""
    command = [sys.executable, "-m", "mcp_tool_filter", "run", *flags, "--"]
    with subprocess.Popen(
        [*command, *command_of(client.name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=client.project,
        env=client.surroundings(),
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        if client.name == "codex":
            process.stdin.write(ASKING_CODEX)
            process.stdin.flush()
            next((line for line in process.stdout if '"id":2' in line), None)
        process.stdin.close()
        process.stdout.read()
        return process.stderr.read()


@pytest.mark.parametrize("is_https", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_uses_our_proxy(program: str, is_https: bool, tmp_path: Path) -> None:
    """Its list comes filtered, and nothing says that it went around us."""
    need("clients")
    (tmp_path / "project").mkdir()
    (tmp_path / ".codex").mkdir()  # Codex wants it to exist
    client = ClientProgram(program, tmp_path)
    tls = certified(tmp_path) if is_https else None
    trust = ("--ca", str(tmp_path / "upstream-ca-cert.pem")) if is_https else ()
    with oauth_upstream(
        tls=tls, open_methods=("initialize", "notifications/initialized", "tools/list")
    ) as there:
        if program == "codex":  # which would log in now
            client.file.write_text(f'[mcp_servers.remote]\nurl = "{there.url}"\n')
        else:
            client.add_url("remote", there.url)
        said = run(client, "--deny", "^delete_", *trust)
        methods = [method for method, _ in there.calls]
    assert "initialize" in methods
    assert f"{there.url} tools/list: ok, answer changed (hidden)" in said or (
        "tools/list" not in methods
    )
    assert "did not come through the filter" not in said
