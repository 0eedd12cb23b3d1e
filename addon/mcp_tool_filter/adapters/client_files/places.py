"""Know where each client keeps its list of MCP servers.

A client may have several files: the user's own, and those of a project, the nearest first. Our
tests run Claude Code, Codex and Gemini, and compare their lists with ours; the places of the others
are from their documentation.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that determines where a client's files are."""

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

    def project_files(self, name: str, last: Path | None = None) -> Iterator[Path]:
        """Yield the project's file, then those in the folders above it, up to ``last``."""
        for folder in (self.project, *self.project.parents):
            file = folder / name
            if folder == self.project or file.is_file():
                yield file
            if folder == last:
                return

    @property
    def repository(self) -> Path | None:
        """The folder of the project's git repository, or None."""
        folders = (self.project, *self.project.parents)
        return next((one for one in folders if (one / ".git").exists()), None)

    @property
    def main_repository(self) -> Path | None:
        """The same, but for a linked worktree the main repository."""
        here = self.repository
        try:
            is_link = here is not None and (here / ".git").is_file()
            text = (here / ".git").read_text("utf-8") if here and is_link else ""
        except (OSError, UnicodeDecodeError):  # usually a folder
            return here
        found = re.fullmatch(r"gitdir: (/.+)/\.git/worktrees/[^/]+\s*", text)
        return Path(found[1]) if found else here

    @property
    def app_data(self) -> Path:
        """The folder where desktop programs keep their settings."""
        match self.platform:
            case "darwin":
                return self.home / "Library" / "Application Support"
            case "win32":
                return self.folder("APPDATA", "AppData/Roaming")
            case _:
                return self.folder("XDG_CONFIG_HOME", ".config")


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A file of a client, and the path of the server list in it."""

    client: str
    scope: str
    """user, project, or local (the user's own for one project)."""
    file: Path
    keys: tuple[str, ...]

    @property
    def is_toml(self) -> bool:
        return self.file.suffix == ".toml"


def places(surroundings: Surroundings) -> Iterator[ConfigPlace]:
    """Yield every place where a client could list servers, each once."""
    for client, find in CLIENTS.items():
        known = set()
        for scope, file, keys in find(surroundings):
            if (
                file,
                keys,
            ) not in known:  # at home, the user's file is also the project's
                known.add((file, keys))
                yield ConfigPlace(client, scope, file, keys)


type _Found = Iterator[tuple[str, Path, tuple[str, ...]]]
_SERVERS = ("mcpServers",)


def _claude_code(here: Surroundings) -> _Found:
    own = here.folder("CLAUDE_CONFIG_DIR", "") / ".claude.json"
    yield "user", own, _SERVERS
    of_project = here.main_repository or here.project
    yield "local", own, ("projects", str(of_project), "mcpServers")
    for file in here.project_files(".mcp.json"):
        yield "project", file, _SERVERS


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
    for file in here.project_files(".codex/config.toml", here.repository or here.project):
        yield "project", file, ("mcp_servers",)


def _gemini(here: Surroundings) -> _Found:
    home = here.folder("GEMINI_CLI_HOME", "")
    yield "user", home / ".gemini" / "settings.json", _SERVERS
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
