"""Claude Code, Codex, Gemini and the Inspector themselves connect to all servers as one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.client_programs import PROGRAMS, ClientProgram
from tests.end_to_end.peer import INSTALLED, need
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


@pytest.mark.rest
def test_the_inspector_lists_and_calls(tmp_path: Path) -> None:
    need("gateways")
    program = INSTALLED / "gateways" / "node_modules" / ".bin" / "mcp-inspector"
    text = f"[servers.one]\n{rich('one')}[servers.two]\n{rich('two')}"
    with serving(tmp_path, text) as it:
        url = f"http://127.0.0.1:{it.port}/mcp"

        def inspected(method: str, *words: str) -> Any:
            command = [
                str(program),
                "--cli",
                url,
                "--transport",
                "http",
                "--method",
                method,
                *words,
            ]
            done = subprocess.run(command, capture_output=True, timeout=90, check=True)
            return json.loads(done.stdout)

        names = [one["name"] for one in inspected("tools/list")["tools"]]
        assert (names[0], len(names)) == ("one_echo", 22)
        words = ("--tool-name", "two_echo", "--tool-arg", "n=1")
        [content] = inspected("tools/call", *words)["content"]
        assert json.loads(content["text"]) == {"tool": "echo", "arguments": {"n": 1}}
        read = inspected("resources/read", "--uri", "ui://two/widget")
        assert read["contents"][0]["text"] == "two: ui://two/widget"
        assert len(inspected("prompts/list")["prompts"]) == 4
