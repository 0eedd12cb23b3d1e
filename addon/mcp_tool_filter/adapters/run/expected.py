"""Check whether the traffic of each of a client's servers came through us.

A client that ignores the proxy is not filtered, and nothing else would show it. So we compare the
servers in the client's own files with the traffic that we have seen. For ``doctor``, we remember
the result of the last run of each client.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.client_files.entries import ServerEntry, is_wrapped, words_and_url
from mcp_tool_filter.adapters.client_files.files import BadFile, Surroundings, places, read
from mcp_tool_filter.adapters.whole_file import whole_file
from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.http.urls import parse_origin

PROGRAMS = {
    "claude": "claude-code",
    "codex": "codex",
    "gemini": "gemini",
    "cursor": "cursor",
    "cursor-agent": "cursor",
    "code": "vscode",
    "code-insiders": "vscode",
    "windsurf": "windsurf",
    "zed": "zed",
    "zeditor": "zed",
    "opencode": "opencode",
    "copilot": "copilot",
    "kiro": "kiro",
}
"""The client for each program name."""
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_OWN_FILE = "--mcp-config"  # Claude Code's; a file, or JSON


class Way(StrEnum):
    """How a client reaches a server."""

    URL = "url"
    MCP_REMOTE = "mcp-remote"
    """Through a command that connects to a URL."""
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that a client lists."""

    name: str
    where: str
    """Which file lists it, in a few words."""
    way: Way
    url: str = ""
    """Without its query, which may hold a secret."""
    has_flag: bool = True
    """True if mcp-remote is told to use a proxy."""


@dataclass(frozen=True, slots=True)
class SeenTraffic:
    """The traffic that came through us."""

    endpoints: frozenset[str]
    """The URLs of MCP endpoints, without their queries."""
    origins: frozenset[str]
    """All origins to which a client connected."""
    refused: frozenset[str]
    """Hosts for which a client did not accept our certificate."""


def client_of(command: Sequence[str]) -> str | None:
    """Return which client a command starts.

    >>> client_of(["/usr/bin/claude", "-p", "hi"]), client_of(["python", "x.py"])
    ('claude-code', None)
    """
    name = PurePath(command[0].replace("\\", "/")).name.lower() if command else ""
    return PROGRAMS.get(name.removesuffix(".exe").removesuffix(".cmd"))


def servers_of(
    client: str | None, command: Sequence[str], here: Surroundings
) -> tuple[list[Server], list[str]]:
    """Return the servers that a client lists, and the problems of unreadable files."""
    found: list[Server] = []
    problems: list[str] = []
    for place in [one for one in places(here) if one.client == client]:
        try:
            file = read(place)
            listed = file.servers() if file else {}
        except BadFile as error:
            problems.append(f"{error.what}. {error.why}")
            continue
        found += _servers_in(listed, f"{place.client}, {place.scope}", here.environment)
    for text in _named_configs(command):
        try:
            listed = _read_config(text, here.project)
        except (OSError, ValueError) as error:
            problems.append(f"Cannot read {_OWN_FILE} {text[:80]}. {error}")
            continue
        found += _servers_in(listed, _OWN_FILE, here.environment)
    return list(dict.fromkeys([*found, *_servers_in_command(command)])), problems


def named_server(url: str) -> Server:
    """Return a server that the user names."""
    return Server(_without_query(url), "named by --server", Way.URL, _without_query(url))


def is_seen(server: Server, seen: SeenTraffic) -> bool:
    """Tell whether MCP of this server came through us."""
    if (key := _key(server.url)) is None:
        return False
    return any(_key(one) == key for one in seen.endpoints)


def why_not_seen(server: Server, seen: SeenTraffic) -> str:
    """Return why we have not seen the MCP traffic of a server, as far as known."""
    host = urlsplit(server.url).hostname or ""
    if "${" in server.url:
        return "its URL has a variable that is not set"
    if host in seen.refused:
        return "the client does not trust our certificate for it"
    if any(urlsplit(one).hostname == host for one in seen.origins):
        return "the client connected to this host through the filter, but sent no MCP there"
    if server.way is Way.MCP_REMOTE and not server.has_flag:
        return "mcp-remote uses the filter only with --enable-proxy in its args"
    return "the client did not use it, or went around the filter"


def _servers_in(
    listed: Mapping[str, ServerEntry], where: str, environment: Mapping[str, str]
) -> Iterator[Server]:
    for name, entry in listed.items():
        if is_wrapped(entry) or entry.get("disabled") is True or entry.get("enabled") is False:
            continue
        words, url = words_and_url(entry)
        if url:
            yield Server(name, where, Way.URL, _without_query(expanded(url, environment)))
        elif is_mcp_remote(words):
            target = next((word for word in words if _is_url(word)), "")
            url = _without_query(expanded(target, environment))
            yield Server(name, where, Way.MCP_REMOTE, url, uses_proxy(words))
        else:
            yield Server(name, where, Way.COMMAND)


def _servers_in_command(command: Sequence[str]) -> Iterator[Server]:
    if is_mcp_remote(command):
        for url in filter(_is_url, command):
            yield Server(_without_query(url), "the command", Way.URL, _without_query(url))
            return


def _named_configs(command: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in command[1:]:
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            is_value = name == _OWN_FILE and not equals
            if name == _OWN_FILE and equals:
                yield value
        elif is_value:
            yield word


def _read_config(text: str, folder: Path) -> dict[str, ServerEntry]:
    if not text.lstrip().startswith("{"):
        text = (folder / os.path.expanduser(text)).read_text()
    whole = json.loads(text)
    listed = whole.get("mcpServers") if isinstance(whole, dict) else None
    if not isinstance(listed, dict):
        raise ValueError("It lists no mcpServers")
    return {name: entry for name, entry in listed.items() if isinstance(entry, dict)}


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return a text of a client's file with the values of its variables, as far as known."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1]) or found[2] or found[0]

    return _VARIABLE.sub(value, text)


def _is_url(word: str) -> bool:
    return word.startswith(("http://", "https://"))


def _without_query(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _key(url: str) -> tuple[str, str] | None:
    """Return the same key for all spellings of a URL."""
    try:
        origin = parse_origin(url).url
        path = urlsplit(url).path
    except (InvalidOption, ValueError):
        return None
    return origin.lower(), path.rstrip("/")


def not_seen(servers: Iterable[Server], seen: SeenTraffic) -> list[Server]:
    """Return the servers with a URL whose MCP did not come through us."""
    return [one for one in servers if one.way is not Way.COMMAND and not is_seen(one, seen)]


_MCP_REMOTE = re.compile(r"mcp-remote(?:@.*)?")
_ENABLE = "--enable-proxy"


def command_for(command: Sequence[str]) -> list[str]:
    """Return the command; mcp-remote uses a proxy only if a flag says so.

    >>> command_for(["npx", "-y", "mcp-remote@latest", "https://mcp.example/mcp"])
    ['npx', '-y', 'mcp-remote@latest', 'https://mcp.example/mcp', '--enable-proxy']
    """
    words = list(command)
    return [*words, _ENABLE] if is_mcp_remote(words) and _ENABLE not in words else words


def is_mcp_remote(command: Sequence[str]) -> bool:
    """Tell whether a command runs mcp-remote, itself or by way of npx and the like."""
    names = (PurePath(word.replace("\\", "/")).name for word in command)
    return any(_MCP_REMOTE.fullmatch(name) for name in names)


def uses_proxy(command: Sequence[str]) -> bool:
    """Tell whether mcp-remote is told to use a proxy."""
    return _ENABLE in command


_MOST = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Last:
    """The result of the last run."""

    ended: float
    seen: tuple[str, ...]
    """The names of servers that came through us."""
    missing: tuple[tuple[str, str, str], ...]
    """Name, URL and explanation of the servers that did not."""


def state_file(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "mcp-tool-filter" / "runs.json"


def keep_last(
    client: str, servers: Sequence[Server], missing: Sequence[Server], seen: SeenTraffic
) -> None:
    """Save the result of this run; ignore it if that fails."""
    with suppress(OSError, RuntimeError):
        file = state_file(os.environ)
        entry = {
            "ended": time.time(),
            "seen": [
                one.name for one in servers if one not in missing and one.way is not Way.COMMAND
            ],
            "missing": [[one.name, one.url, why_not_seen(one, seen)] for one in missing],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write(json.dumps({**_read(file), client: entry}).encode())


def last_of(client: str) -> Last | None:
    """Return the result of a client's last run; None if there was none."""
    try:
        entry = _read(state_file(os.environ)).get(client)
        assert isinstance(entry, dict)
        missing = tuple((str(a), str(b), str(c)) for a, b, c in entry["missing"])
        return Last(float(entry["ended"]), tuple(map(str, entry["seen"])), missing)
    except (AssertionError, KeyError, TypeError, ValueError, OSError, RuntimeError):
        return None


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
