"""Claude Code, Codex and Gemini themselves as the child of ``run``, over http and https."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.oauth_upstream import oauth_upstream
from tests.proxy import certified

from .client_programs import PROGRAMS, ClientProgram
from .peer import need


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
        run = (sys.executable, "-m", "mcp_tool_filter", "run", "--deny", "^delete_", *trust, "--")
        _, said = client.visit(*run)
        methods = [method for method, _ in there.calls]
    assert "initialize" in methods
    assert f"{there.url} tools/list: ok, answer changed (hidden)" in said or (
        "tools/list" not in methods
    )
    assert "did not come through the filter" not in said
