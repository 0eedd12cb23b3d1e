"""Clients that start the filter themselves, in place of a command: what each wants to be told."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.cli.settings.flags import COMMAND, FLAGS, Given

# Words that say how a program is run, and not which: node, npx -y, uv tool run, docker run …
_RUNNERS = re.compile(
    r"(?:npx|uvx|uv|pipx|bunx|bun|deno|node|python[\d.]*|docker|podman|run|tool|exec|dlx|pnpm|yarn"
    r"|npm|sh|bash|env)(?:\.exe|\.cmd)?"
)
WINDSURF = "Into ~/.codeium/windsurf/mcp_config.json; then refresh the list of MCP servers:"
ZED = "Into Zed's settings.json (zed: open settings file), or .zed/settings.json of a project:"
_MCP_WORDS = re.compile(r"^(?:mcp-)?(?:server-)?(?:mcp-)?|(?:-mcp)?(?:-server)?$")


@dataclass(frozen=True, slots=True)
class Snippet:
    text: str
    where: str
    """What to do with it."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a client starts."""

    name: str
    """In the client's list."""
    words: Sequence[str]
    env: Mapping[str, str] = field(repr=False)

    @property
    def entry(self) -> dict[str, object]:
        """As most clients write it in their file."""
        command, *args = self.words
        return {"command": command, "args": args, **({"env": dict(self.env)} if self.env else {})}


def program_of(typed: Given, env: Mapping[str, str], name: str) -> Program:
    """Return how a client starts the filter. Variables go where the client keeps its own."""
    words = ["mcp-tool-filter"]
    for flag, values in typed.items():
        for value in values if flag not in (COMMAND, "env") else ():
            words += [f"--{flag}", value] if FLAGS[flag].value else [f"--{flag}"]
    command = typed.get(COMMAND)
    return Program(name, [*words, "--", *command] if command else words, env)


def name_of_command(command: Sequence[str]) -> str:
    """Make a name for the server in a client's list.

    >>> name_of_command(["npx", "-y", "@modelcontextprotocol/server-filesystem@1", "/home"])
    'filesystem-filtered'
    >>> name_of_command(["python3", "-m", "mcp_server_git"]), name_of_command(["sh", "-c"])
    ('git-filtered', 'sh-filtered')
    """
    said = [word for word in command if not word.startswith("-")]
    named = [word for word in said if not _RUNNERS.fullmatch(_last_part(word))]
    word = _last_part((named or said or ["command"])[0]).partition("@")[0]
    word = re.sub(r"\.(?:py|js|mjs|ts|exe|sh|jar)$", "", word)
    plain = re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-")
    return f"{_MCP_WORDS.sub('', plain) or plain}-filtered"


def _last_part(word: str) -> str:
    return re.split(r"[/\\]", word.rstrip("/\\"))[-1]


def started_by(client: str, program: Program) -> Snippet:
    """Return what a client needs to start the filter itself."""
    return _CLIENTS[client](program)


def _claude_code(program: Program) -> Snippet:
    words = ["claude", "mcp", "add", program.name, *_variables("--env", program)]
    return Snippet(
        shlex.join([*words, "--", *program.words]),
        "Run this command (--scope user: for all your projects):",
    )


def _claude_desktop(program: Program) -> Snippet:
    return Snippet(
        _json({"mcpServers": {program.name: program.entry}}),
        "Into claude_desktop_config.json (Settings > Developer > Edit Config); then restart it:",
    )


def _cursor(program: Program) -> Snippet:
    return Snippet(
        _json({"mcpServers": {program.name: program.entry}}),
        "Into ~/.cursor/mcp.json, or .cursor/mcp.json of a project:",
    )


def _vscode(program: Program) -> Snippet:
    entry = {"type": "stdio", **program.entry}
    return Snippet(_json({"servers": {program.name: entry}}), "Into .vscode/mcp.json:")


def _codex(program: Program) -> Snippet:
    words = ["codex", "mcp", "add", program.name, *_variables("--env", program)]
    return Snippet(shlex.join([*words, "--", *program.words]), "Run this command:")


def _gemini(program: Program) -> Snippet:
    words = ["gemini", "mcp", "add", *_variables("--env", program), program.name, program.words[0]]
    return Snippet(
        shlex.join([*words, "--", *program.words[1:]]),
        "Run this command (--scope user: for all your projects):",
    )


def _windsurf(program: Program) -> Snippet:
    return Snippet(_json({"mcpServers": {program.name: program.entry}}), WINDSURF)


def _zed(program: Program) -> Snippet:
    return Snippet(_json({"context_servers": {program.name: program.entry}}), ZED)


def _variables(flag: str, program: Program) -> list[str]:
    return [word for name, value in program.env.items() for word in (flag, f"{name}={value}")]


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


_CLIENTS: dict[str, Callable[[Program], Snippet]] = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "gemini": _gemini,
    "windsurf": _windsurf,
    "zed": _zed,
}
