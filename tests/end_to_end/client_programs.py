"""The command lines of real clients, each with a home of its own: no account, no network.

    client = ClientProgram("codex", tmp_path)
    client.add("files", "python3", "server.py")
    assert client.connects("files")

Claude Code and Gemini start each server to see whether it answers. Codex does so when a program
asks it for the servers' tools.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .peer import INSTALLED, NODE

PROGRAMS = {"claude-code": "claude", "codex": "codex", "gemini": "gemini"}
FILES = {
    "claude-code": ".claude.json", "codex": ".codex/config.toml", "gemini": ".gemini/settings.json",
}  # fmt: skip
_BIN = INSTALLED / "clients" / "node_modules" / ".bin"
_TIMEOUT = 90.0
_OTHERS = re.compile(r"(?:ANTHROPIC|CLAUDE|CODEX|OPENAI|GEMINI|GOOGLE|MCP|XDG)_")
_QUIET = {
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "GEMINI_CLI_NO_RELAUNCH": "true",  # it starts itself once more with more memory
    "GEMINI_CLI_TRUST_WORKSPACE": "true",  # else it starts no server in this folder
}
ASKING_CODEX = """\
{"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "test", "version": "1"}}}
{"method": "initialized"}
{"id": 2, "method": "mcpServerStatus/list", "params": {}}
"""


@dataclass(frozen=True)
class ClientProgram:
    name: str
    home: Path

    @property
    def file(self) -> Path:
        """Where it keeps the user's servers."""
        return self.home / FILES[self.name]

    @property
    def project(self) -> Path:
        return self.home / "project"

    def add(self, server: str, *command: str, secret: str) -> None:
        """Let the client write a command into its file."""
        scope, env = ("--scope", "user"), ("--env", f"KEY={secret}")
        words = {
            "claude-code": [*scope, server, *env, "--", *command],
            "codex": [server, *env, "--", *command],
            "gemini": [*scope, *env, server, *command],
        }[self.name]
        self.run(PROGRAMS[self.name], "mcp", "add", *words)

    def add_url(self, server: str, url: str) -> None:
        """Let the client write a URL into its file."""
        words = ["--scope", "user", "--transport", "http", server, url]
        if self.name == "codex":
            words = [server, "--url", url]
        self.run(PROGRAMS[self.name], "mcp", "add", *words)

    def connects(self, server: str) -> bool:
        """Tell whether the client reaches a server of its file."""
        if self.name == "codex":
            return self.codex_tools(server) is not None
        [line] = re.findall(rf"^\W*{re.escape(server)}: .*$", "\n".join(self.visit()), re.MULTILINE)
        return bool(re.search(r"(?<!Dis)(?<!dis)[Cc]onnected$", line))

    def codex_tools(self, server: str) -> set[str] | None:
        """Return the tools that Codex sees; None if it does not reach the server."""
        lines = self.visit()[0].split("\n")  # a description may hold other ends of a line
        [said] = [json.loads(line) for line in lines if '"id":2' in line]
        for one in said["result"]["data"]:
            if one["name"] == server and one["serverInfo"]:
                return set(one["tools"])
        return None

    def visit(self, *before: str) -> tuple[str, str]:
        """Let it connect to its servers, as the child of a command; return what was written."""
        is_codex = self.name == "codex"
        own = ("codex", "app-server") if is_codex else (PROGRAMS[self.name], "mcp", "list")
        with subprocess.Popen(
            [*before, *own], text=True, cwd=self.project, env=self.surroundings(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin
            assert process.stdout
            answer = ""
            if is_codex:
                process.stdin.write(ASKING_CODEX)
                process.stdin.flush()
                answer = next((line for line in process.stdout if '"id":2' in line), "")
            out, err = process.communicate(timeout=_TIMEOUT)
            return answer + out, err

    def filter(self, *words: str) -> str:
        """Run mcp-tool-filter as this user; return what it printed."""
        return self.run(sys.executable, "-m", "mcp_tool_filter", *words)

    def shell(self, line: str) -> None:
        """Run a line that we printed."""
        self.run("sh", "-c", line)

    def run(self, *words: str) -> str:
        """Run a command; return what it wrote to stdout."""
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=_TIMEOUT, check=False,
            stdin=subprocess.DEVNULL, cwd=self.project, env=self.surroundings(),
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def surroundings(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}
        path = [str(_BIN), str(NODE.parent), str(Path(sys.executable).parent), kept["PATH"]]
        return kept | _QUIET | {"HOME": str(self.home), "PATH": os.pathsep.join(path)}

    def listed(self) -> Sequence[dict[str, Any]]:
        """Return what ``mcp-tool-filter clients`` says of this client."""
        every = json.loads(self.filter("clients", "--json"))
        return [one for one in every if one["client"] == self.name]
