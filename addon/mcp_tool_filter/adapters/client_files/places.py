"""Know where each client keeps its list of MCP servers.

A client may have several files: the user's own, and those of a project, the nearest first. Our
tests run Claude Code, Codex and Gemini, and compare their lists with ours; the places of the others
are from their documentation.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
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


def places(here: Surroundings) -> Iterator[ConfigPlace]:
    """Yield every place where a client could list servers, each once."""
    known = set()
    for client, scope, file, keys in _listed(here):
        if (client, file, keys) not in known:  # at home, the user's file is also the project's
            known.add((client, file, keys))
            yield ConfigPlace(client, scope, file, keys)


type _Listed = Iterator[tuple[str, str, Path, tuple[str, ...]]]


def _listed(here: Surroundings) -> _Listed:
    home, project, servers = here.home, here.project, ("mcpServers",)
    config = here.folder("XDG_CONFIG_HOME", ".config")
    claude = here.folder("CLAUDE_CONFIG_DIR", "") / ".claude.json"
    yield "claude-code", "user", claude, servers
    of_project = str(here.main_repository or project)
    yield "claude-code", "local", claude, ("projects", of_project, "mcpServers")
    for file in here.project_files(".mcp.json"):
        yield "claude-code", "project", file, servers
    desktop = here.app_data / "Claude" / "claude_desktop_config.json"
    yield "claude-desktop", "user", desktop, servers
    yield "cursor", "user", home / ".cursor" / "mcp.json", servers
    yield "cursor", "project", project / ".cursor" / "mcp.json", servers
    yield "vscode", "user", here.app_data / "Code" / "User" / "mcp.json", ("servers",)
    yield "vscode", "project", project / ".vscode" / "mcp.json", ("servers",)
    yield "codex", "user", here.folder("CODEX_HOME", ".codex") / "config.toml", ("mcp_servers",)
    for file in here.project_files(".codex/config.toml", here.repository or project):
        yield "codex", "project", file, ("mcp_servers",)
    gemini = here.folder("GEMINI_CLI_HOME", "") / ".gemini" / "settings.json"
    yield "gemini", "user", gemini, servers
    yield "gemini", "project", project / ".gemini" / "settings.json", servers
    yield "windsurf", "user", home / ".codeium" / "windsurf" / "mcp_config.json", servers
    zed = here.app_data / "Zed" if here.platform == "win32" else config / "zed"
    yield "zed", "user", zed / "settings.json", ("context_servers",)
    yield "zed", "project", project / ".zed" / "settings.json", ("context_servers",)
    for folder in (config / "opencode", project, project / ".opencode"):
        for file in (folder / "opencode.json", folder / "opencode.jsonc"):
            scope = "user" if folder.parent == config else "project"
            yield "opencode", scope, file, ("mcp",)
            yield "opencode", scope, file, ("mcp", "servers")
    copilot = here.folder("COPILOT_HOME", ".copilot") / "mcp-config.json"
    yield "copilot", "user", copilot, servers
    if copilot.parent.is_dir():  # else the project's servers are only Claude Code's
        for file in here.project_files(".mcp.json", here.repository or project):
            yield "copilot", "project", file, servers
        yield "copilot", "project", project / ".github" / "mcp.json", servers
    extension = here.app_data / "Code" / "User" / "globalStorage" / "saoudrizwan.claude-dev"
    for folder in (extension, home / ".cline" / "data"):
        yield "cline", "user", folder / "settings" / "cline_mcp_settings.json", servers
    yield "kiro", "user", home / ".kiro" / "settings" / "mcp.json", servers
    yield "kiro", "project", project / ".kiro" / "settings" / "mcp.json", servers
    yield "lmstudio", "user", home / ".lmstudio" / "mcp.json", servers
