"""How a client starts the filter instead of a command, and the server's name then."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mcp_tool_filter.cli.commands.client_snippets import ServerCommand
from mcp_tool_filter.cli.flags import COMMAND, FLAGS, Given

# Words that say how to run a program, not which: node, npx -y, uv tool run, docker run …
_RUNNERS = re.compile(
    r"(?:npx|uvx|uv|pipx|bunx|bun|deno|node|python[\d.]*|docker|podman|run|tool|exec|dlx|pnpm|yarn"
    r"|npm|sh|bash|env)(?:\.exe|\.cmd)?"
)
_MCP_WORDS = re.compile(r"^(?:mcp-)?(?:server-)?(?:mcp-)?|(?:-mcp)?(?:-server)?$")


def program_of(typed: Given, env: Mapping[str, str], name: str) -> ServerCommand:
    """Return the command with which a client starts the filter, with its environment."""
    words = ["mcp-tool-filter"]
    for flag, values in typed.items():
        for value in values if flag not in (COMMAND, "env") else ():
            words += [f"--{flag}", value] if FLAGS[flag].value else [f"--{flag}"]
    command = typed.get(COMMAND)
    return ServerCommand(name, [*words, "--", *command] if command else words, env)


def name_of_command(command: Sequence[str]) -> str:
    """Return a name for the server in a client's list.

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
