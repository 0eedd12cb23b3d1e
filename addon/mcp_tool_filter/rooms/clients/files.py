"""Know where each client keeps its list of MCP servers; read and edit that file.

A client may have several files: the user's own, and those of a project, the nearest first. Our
tests run Claude Code, Codex and Gemini, and compare their lists with ours; the places of the others
are from their documentation.

An edit changes only the one entry. Nothing is lost: we keep a backup of the file as it is without
the filter, replace the file atomically, and do not touch a file that was edited meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_tool_filter.cli.whole_file import read_whole, replace_if_unchanged, whole_file
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.rooms.clients import jsonc, toml_text, yaml_text
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.toml_text import merged


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Everything that determines where a client's files are."""

    home: Path
    project: Path
    environment: Mapping[str, str]
    platform: str

    @classmethod
    def of_this_process(cls) -> Whereabouts:
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
        found = re.fullmatch(r"gitdir: (/.+)/\.git/worktrees/[^/]+", text.rstrip())
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

    @property
    def goose_data(self) -> Path:
        """The folder of goose's settings."""
        if root := self.environment.get("GOOSE_PATH_ROOT"):
            return Path(root) / "config"
        if self.platform == "win32":
            return self.app_data / "Block" / "goose" / "config"
        return self.folder("XDG_CONFIG_HOME", ".config") / "goose"


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A file of a client, and the path of the server list in it."""

    client: str
    scope: str
    """user, project, or local (the user's own for one project)."""
    file: Path
    keys: tuple[str, ...]

    @property
    def is_yaml(self) -> bool:
        return self.file.suffix == ".yaml"


def places(here: Whereabouts) -> Iterator[ConfigPlace]:
    """Yield every place where a client could list servers, each once."""
    known = set()
    for client, scope, file, keys in _listed(here):
        if (client, file, keys) not in known:  # at home, the user's file is also the project's
            known.add((client, file, keys))
            yield ConfigPlace(client, scope, file, keys)


type _Listed = Iterator[tuple[str, str, Path, tuple[str, ...]]]


def _listed(here: Whereabouts) -> _Listed:
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
    yield "goose", "user", here.goose_data / "config.yaml", ("extensions",)


_MOST = 20 * 1024 * 1024  # bytes
_OF_GOOSE = {"cmd": "command", "uri": "url", "envs": "env"}
"""goose's names for members that all other clients call alike."""


class BadFile(StartError):
    """A client's file that we cannot read or must not write."""


class EditedFile(BadFile):
    """Another program has saved the file since we read it."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A file as we read it."""

    place: ConfigPlace
    raw: bytes
    text: str

    def servers(self) -> dict[str, ServerEntry]:
        """Return the servers listed at the place. Raises BadFile."""
        found = self.whole()
        for key in self.place.keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        deeper = "servers" if self.place.keys == ("mcp",) else None  # a list of opencode's, too
        return {
            name: self._renamed(entry, _OF_GOOSE)
            for name, entry in found.items()
            if isinstance(entry, Mapping) and (name != deeper or "type" in entry)
            if not self.place.is_yaml or (isinstance(name, str) and _OF_GOOSE.keys() & entry.keys())
        }

    def _renamed(self, entry: Mapping[str, object], names: Mapping[str, str]) -> ServerEntry:
        """Return an entry with the names of members that other clients have, or goose's."""
        if not self.place.is_yaml or not entry.keys().isdisjoint(names.values()):
            return dict(entry)
        return {names.get(key, key): value for key, value in entry.items()}

    def whole(self) -> object:
        """Return the whole content of the file, not only the list of servers."""
        suffix = self.place.file.suffix
        parse = {".toml": toml_text.parse, ".yaml": yaml_text.parse}.get(suffix, jsonc.parse)
        try:
            return parse(self.text)
        except ProtocolError as error:
            raise BadFile(f"{self.place.file} cannot be read", why=str(error)) from None

    def with_entry(self, name: str, entry: ServerEntry) -> str:
        """Return the text with another entry for this server."""
        own = self._renamed(entry, {value: key for key, value in _OF_GOOSE.items()})
        edits = {".toml": toml_text.with_mapping, ".yaml": yaml_text.with_mapping}
        edited = edits.get(self.place.file.suffix, jsonc.with_mapping)
        try:
            return edited(self.text, [*self.place.keys, name], own)
        except ProtocolError as error:
            raise BadFile(f"Cannot change {self.place.file}", why=str(error)) from None

    def with_servers(self, wanted: Mapping[str, ServerEntry]) -> str:
        """Return the text with these servers and no others."""
        found: Any = self.whole()
        for key in self.place.keys:
            found = found[key]
        listed = self.servers()
        own: dict[str, object] = {key: one for key, one in found.items() if key not in listed}
        goose = {value: key for key, value in _OF_GOOSE.items()}
        for name, entry in wanted.items():
            own[name] = found[name] if listed.get(name) == entry else self._renamed(entry, goose)
        edits = {".toml": toml_text.with_mapping, ".yaml": yaml_text.with_mapping}
        edited = edits.get(self.place.file.suffix, jsonc.with_mapping)
        try:
            return edited(self.text, [*self.place.keys], own)
        except ProtocolError as error:
            raise BadFile(f"Cannot change {self.place.file}", why=str(error)) from None

    def restored(self, name: str, before: ClientFile, entry: ServerEntry) -> str | None:
        """Return the text with a server's entry as it was in an earlier file.

        None if the entry is not what ``wrap`` made of the earlier one, because it was edited since.
        """
        wrapped = self.servers().get(name)
        if wrapped is None or before.servers().get(name) != entry:
            return None
        again = before.with_entry(name, wrapped)
        text = merged(again, before.text, self.text) or self._respelt(name, before, again)
        return text if text and self._says_the_same(text, name, entry) else None

    def _respelt(self, name: str, before: ClientFile, again: str) -> str | None:
        """Return the text with the earlier text of the entry, if nobody has edited it since.

        (Entries on one line cannot be merged line by line.)
        """
        if self.place.file.suffix in (".toml", ".yaml"):
            return None
        path = [*self.place.keys, name]
        start, end = jsonc.span_of(self.text, path)
        made, earlier = (text[slice(*jsonc.span_of(text, path))] for text in (again, before.text))
        return (
            self.text[:start] + earlier + self.text[end:] if self.text[start:end] == made else None
        )

    def _says_the_same(self, text: str, name: str, entry: ServerEntry) -> bool:
        """Tell whether a text differs only in this server's entry."""
        try:
            mine = replace(self, text=self.with_entry(name, entry))
            return replace(self, text=text).whole() == mine.whole()
        except StartError:
            return False

    def save(self, text: str, *, original: str | None = None) -> None:
        """Replace the file by the text. Raises BadFile; EditedFile if somebody else did.

        ``original`` is the file without the filter, which is kept as the backup; None if the text
        is that itself, so that no backup is needed.
        """
        file = Path(os.path.realpath(self.place.file))
        try:
            if not file.stat().st_mode & stat.S_IWUSR:  # even if its folder lets us replace it
                raise BadFile(f"{self.place.file} is read-only", why="Make it writable first")
            if original is not None:
                _keep(file, original.encode())
            if not replace_if_unchanged(file, self.raw, text.encode()):
                raise EditedFile(f"{self.place.file} was edited in the meantime", why="Try again")
            if original is None:
                backup_of(file).unlink(missing_ok=True)
        except OSError as error:
            what = f"Cannot write {self.place.file}"
            raise BadFile(what, why=error.strerror or str(error)) from None


def read(place: ConfigPlace) -> ClientFile | None:
    """Read the file of a place; None if there is none. Raises BadFile."""
    try:
        raw = read_whole(str(place.file), _MOST)
        if len(raw) > _MOST:
            raise BadFile(
                f"{place.file} is larger than any client's file", why="Is this the right file?"
            )
        return ClientFile(place, raw, raw.decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadFile(f"Cannot read {place.file}", why=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise BadFile(f"{place.file} is not UTF-8", why="Save it as UTF-8 first") from None


def backup_of(file: Path) -> Path:
    """Return the place of a file's backup, in a folder that only its user can read."""
    real = os.path.realpath(file)
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    key = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(base) / "mcp-tool-filter" / "backups" / f"{key}-{os.path.basename(real)}"


def _keep(file: Path, content: bytes) -> None:
    backup = backup_of(file)
    backup.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    backup.parent.chmod(0o700)
    with whole_file(backup) as new:
        new.write(content)
