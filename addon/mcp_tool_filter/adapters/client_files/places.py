"""Where each client keeps its list of MCP servers.

A client may have several files: the user's own, and those of a project. Looked up in each client's
documentation; the tests run the ones that can be run here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides where a client's files are."""

    home: Path
    project: Path
    environment: Mapping[str, str]
    platform: str

    @classmethod
    def of_this_process(cls) -> Surroundings:
        return cls(Path.home(), Path.cwd(), os.environ, sys.platform)

    def folder(self, variable: str, usual: str) -> Path:
        """Return the folder that a variable names, or the usual one in the home directory."""
        named = self.environment.get(variable)
        return Path(named) if named else self.home / usual

    @property
    def app_data(self) -> Path:
        """Where desktop programs keep their settings."""
        match self.platform:
            case "darwin":
                return self.home / "Library" / "Application Support"
            case "win32":
                return self.folder("APPDATA", "AppData/Roaming")
            case _:
                return self.folder("XDG_CONFIG_HOME", ".config")


@dataclass(frozen=True, slots=True)
class Place:
    """A file of a client, and where in it the servers are listed."""

    client: str
    scope: str
    """user, project, or local: the user's own for one project."""
    file: Path
    keys: tuple[str, ...]

    @property
    def is_toml(self) -> bool:
        return self.file.suffix == ".toml"


def places(surroundings: Surroundings) -> Iterator[Place]:
    """Yield every place where a client could list servers."""
    for client, find in CLIENTS.items():
        for scope, file, keys in find(surroundings):
            yield Place(client, scope, file, keys)


type _Found = Iterator[tuple[str, Path, tuple[str, ...]]]
_SERVERS = ("mcpServers",)


def _claude_code(here: Surroundings) -> _Found:
    own = here.folder("CLAUDE_CONFIG_DIR", "") / ".claude.json"
    yield "user", own, _SERVERS
    yield "local", own, ("projects", str(here.project), "mcpServers")
    yield "project", here.project / ".mcp.json", _SERVERS


def _claude_desktop(here: Surroundings) -> _Found:
    yield "user", here.app_data / "Claude" / "claude_desktop_config.json", _SERVERS


def _cursor(here: Surroundings) -> _Found:
    yield "user", here.home / ".cursor" / "mcp.json", _SERVERS
    yield "project", here.project / ".cursor" / "mcp.json", _SERVERS


def _vscode(here: Surroundings) -> _Found:
    yield "user", here.app_data / "Code" / "User" / "mcp.json", ("servers",)
    yield "project", here.project / ".vscode" / "mcp.json", ("servers",)


def _codex(here: Surroundings) -> _Found:
    yield "user", here.folder("CODEX_HOME", ".codex") / "config.toml", ("mcp_servers",)
    yield "project", here.project / ".codex" / "config.toml", ("mcp_servers",)


def _gemini(here: Surroundings) -> _Found:
    yield "user", here.home / ".gemini" / "settings.json", _SERVERS
    yield "project", here.project / ".gemini" / "settings.json", _SERVERS


def _windsurf(here: Surroundings) -> _Found:
    yield "user", here.home / ".codeium" / "windsurf" / "mcp_config.json", _SERVERS


def _zed(here: Surroundings) -> _Found:
    own = here.app_data if here.platform == "win32" else here.folder("XDG_CONFIG_HOME", ".config")
    folder = own / ("Zed" if here.platform == "win32" else "zed")
    yield "user", folder / "settings.json", ("context_servers",)
    yield "project", here.project / ".zed" / "settings.json", ("context_servers",)


CLIENTS: dict[str, Callable[[Surroundings], _Found]] = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "gemini": _gemini,
    "windsurf": _windsurf,
    "zed": _zed,
}
