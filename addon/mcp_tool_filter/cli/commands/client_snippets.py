"""What each client needs to use the filter: a command to run, or an entry for its file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_RUN = "Run this command:"
_RUN_SCOPED = "Run this command (--scope user: for all your projects):"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A URL that a client connects to."""

    url: str
    is_sse: bool
    name: str
    """In the client's list."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command that a client starts."""

    name: str
    """In the client's list."""
    words: Sequence[str]
    env: Mapping[str, str] = field(repr=False)

    @property
    def entry(self) -> dict[str, object]:
        """The entry in the format of most clients."""
        command, *args = self.words
        return {"command": command, "args": args, **({"env": dict(self.env)} if self.env else {})}


@dataclass(frozen=True, slots=True)
class Snippet:
    text: str
    where: str
    """Where to put it."""


type Reachable = ServerUrl | ServerCommand


def _claude_code(server: Reachable) -> Snippet:
    words = ["claude", "mcp", "add"]
    if isinstance(server, ServerCommand):
        words += [server.name, *_variables("--env", server), "--", *server.words]
    else:
        words += ["--transport", _transport(server), server.name, server.url]
    return Snippet(shlex.join(words), _RUN_SCOPED)


def _claude_desktop(server: Reachable) -> Snippet:
    """Its file allows only programs, so a URL needs mcp-remote."""
    where = "Into claude_desktop_config.json (Settings > Developer > Edit Config); then restart it"
    if isinstance(server, ServerCommand):
        return _listed("mcpServers", server, server.entry, f"{where}:")
    return _listed("mcpServers", server, _mcp_remote(server), f"{where}. Needs Node.js:")


def _cursor(server: Reachable) -> Snippet:
    entry = server.entry if isinstance(server, ServerCommand) else {"url": server.url}
    where = "Into ~/.cursor/mcp.json, or .cursor/mcp.json of a project:"
    return _listed("mcpServers", server, entry, where)


def _vscode(server: Reachable) -> Snippet:
    if isinstance(server, ServerCommand):
        entry: dict[str, object] = {"type": "stdio", **server.entry}
    else:
        entry = {"type": _transport(server), "url": server.url}
    return _listed("servers", server, entry, "Into .vscode/mcp.json:")


def _codex(server: Reachable) -> Snippet:
    """It knows no HTTP+SSE."""
    words = ["codex", "mcp", "add", server.name]
    if isinstance(server, ServerCommand):
        words += [*_variables("--env", server), "--", *server.words]
        return Snippet(shlex.join(words), _RUN)
    if server.is_sse:
        remote = _mcp_remote(server)
        words += ["--", remote["command"], *remote["args"]]
        return Snippet(shlex.join(words), "Run this command (needs Node.js):")
    return Snippet(shlex.join([*words, "--url", server.url]), _RUN)


def _gemini(server: Reachable) -> Snippet:
    words = ["gemini", "mcp", "add"]
    if isinstance(server, ServerCommand):
        command, *args = server.words
        words += [*_variables("--env", server), server.name, command, "--", *args]
    else:
        words += ["--transport", _transport(server), server.name, server.url]
    return Snippet(shlex.join(words), _RUN_SCOPED)


def _windsurf(server: Reachable) -> Snippet:
    entry = server.entry if isinstance(server, ServerCommand) else {"serverUrl": server.url}
    where = "Into ~/.codeium/windsurf/mcp_config.json; then refresh the list of MCP servers:"
    return _listed("mcpServers", server, entry, where)


def _zed(server: Reachable) -> Snippet:
    """It knows no HTTP+SSE."""
    file = "Zed's settings.json (zed: open settings file), or .zed/settings.json of a project"
    where = f"Into {file}:"
    if isinstance(server, ServerCommand):
        return _listed("context_servers", server, server.entry, where)
    if server.is_sse:
        return _listed("context_servers", server, _mcp_remote(server), f"{where} Needs Node.js:")
    return _listed("context_servers", server, {"url": server.url}, where)


def _transport(place: ServerUrl) -> str:
    return "sse" if place.is_sse else "http"


def _variables(flag: str, program: ServerCommand) -> list[str]:
    return [word for name, value in program.env.items() for word in (flag, f"{name}={value}")]


def _mcp_remote(place: ServerUrl) -> dict[str, Any]:
    is_local = re.match(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):", place.url)
    allow = [] if is_local else ["--allow-http"]
    return {"command": "npx", "args": ["-y", "mcp-remote", place.url, *allow]}


def _listed(list_name: str, server: Reachable, entry: Mapping[str, object], where: str) -> Snippet:
    return Snippet(json.dumps({list_name: {server.name: entry}}, indent=2), where)


_CLIENTS: dict[str, Callable[[Reachable], Snippet]] = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "gemini": _gemini,
    "windsurf": _windsurf,
    "zed": _zed,
}


def snippet_for(client: str, server: Reachable) -> Snippet:
    """Return the snippet for a client that connects to our URL, or starts the filter itself."""
    return _CLIENTS[client](server)
