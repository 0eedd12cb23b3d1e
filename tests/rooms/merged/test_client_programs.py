"""Claude Code, Codex and Gemini themselves connect to all servers as one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.end_to_end.client_programs import PROGRAMS, ClientProgram
from tests.end_to_end.peer import need
from tests.rooms.merged.talking import rich
from tests.rooms.serve.test_serve import serving


@pytest.mark.rest
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_connects_over_stdio_and_http(name: str, tmp_path: Path) -> None:
    need("clients")
    (tmp_path / "project").mkdir()
    (tmp_path / ".codex").mkdir()
    client = ClientProgram(name, tmp_path)
    text = f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
    file = tmp_path / "all.toml"
    file.write_text(text)
    words = (sys.executable, "-m", "mcp_tool_filter", "serve", "--stdio", "--config", str(file))
    client.add("all", *words, secret="s")
    assert client.connects("all")
    if client.name == "codex":
        assert {"one_echo", "two_echo"} <= (client.codex_tools("all") or set())
    with serving(tmp_path, text) as it:
        client.add_url("merged", f"http://127.0.0.1:{it.port}/mcp")
        assert client.connects("merged")
