"""FastMCP's client and server, with the filter between them in all three shapes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from .peer import INSTALLED, SCRIPTS, need, upstream
from .test_stdio_peers import DENY, FILTER, serving

PYTHON = str(INSTALLED / "fastmcp" / "bin" / "python")
SERVER = [PYTHON, str(SCRIPTS / "server_fastmcp.py")]


def play(target: str) -> dict[str, Any]:
    """Let the client do what it does; return what it found."""
    client = [PYTHON, str(SCRIPTS / "client_fastmcp.py"), target]
    played = subprocess.run(client, capture_output=True, text=True, timeout=60, check=False)
    assert played.returncode == 0, played.stderr
    found: dict[str, Any] = json.loads(played.stdout.splitlines()[-1])
    return found


@pytest.fixture(autouse=True)
def _installed() -> None:
    need("fastmcp")


def test_the_pair_works_without_a_filter() -> None:
    found = play(json.dumps(SERVER))
    assert found["tools"] == ["read_file", "delete_file"]
    assert found["delete_file"] == "deleted a"


def test_the_pair_works_over_stdio() -> None:
    assert_filtered(play(json.dumps([*FILTER, "--", *SERVER])))


def test_the_client_works_through_the_pipe() -> None:
    with upstream("mcp2") as server:
        words = [sys.executable, "-m", "mcp_tool_filter", "--deny", DENY, "--stdio"]
        found = play(json.dumps([*words, "--upstream", server.url]))
    assert found["read_file"] == "contents of a"
    assert found["delete_file"] == "error: Tool not found: delete_file"


def test_the_pair_works_with_the_command_behind_http() -> None:
    with serving(SERVER) as origin:
        assert_filtered(play(f"{origin}/mcp"))
        assert_filtered(play(f"{origin}/sse"))


def assert_filtered(found: dict[str, Any]) -> None:
    assert found == {
        "tools": ["read_file"],
        "read_file": "contents of a",
        "delete_file": "error: Tool not found: delete_file",
    }
