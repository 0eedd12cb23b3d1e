"""Run a client whose traffic goes through us, and check that it did.

The client keeps the terminal, gets the signals meant for it, and reaches us: variables make it send
its traffic through us and trust our certificates. Programs read different variables.

>>> found = environment_for({"NO_PROXY": "*"}, "http://127.0.0.1:1", Path("ca.pem"))
>>> found["https_proxy"], found["NO_PROXY"], found["NODE_USE_ENV_PROXY"]
('http://127.0.0.1:1', '', '1')

If the user's own environment names a proxy, we use it as the client would have done.

>>> found = find_proxy({"https_proxy": "http://me:secret@proxy.example:3128", "NO_PROXY": ".local"})
>>> found.mode, found.login, found.is_direct("a.local"), found.is_direct("a.example")
('upstream:http://proxy.example:3128', 'me:secret', True, False)

A client that ignores the proxy is not filtered, and nothing else would show it. So we compare the
servers in the client's own files with the traffic that we have seen. For ``doctor``, we remember
the result of the last run of each client.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

import certifi

from mcp_tool_filter.cli.programs import why_not_started
from mcp_tool_filter.cli.whole_file import read_whole, whole_file
from mcp_tool_filter.core.errors import InvalidOption, Mistake, StartError
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.policy.config import is_loopback
from mcp_tool_filter.rooms.clients.entries import (
    ServerEntry,
    expanded,
    url_of,
    words_of,
)
from mcp_tool_filter.rooms.clients.files import BadFile, Whereabouts, places, read
from mcp_tool_filter.rooms.clients.filtering import (
    NOT_FILTERED,
    Filtered,
    Filtering,
    filtering_of,
)

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINALS = ("SIGINT", "SIGQUIT")
"""A terminal sends these to the client itself."""
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotRun(StartError):
    """The client cannot be started; the exit status is the one that shells use."""

    def __init__(self, program: str, error: OSError, *, file: str) -> None:
        is_missing = isinstance(error, FileNotFoundError) and not os.path.isdir(file)
        self.exit_status = _NOT_FOUND if is_missing else _NOT_EXECUTABLE
        if is_missing and not os.path.exists(file):
            why = "Command not found"
        elif isinstance(error, PermissionError):
            why = "Permission denied"
        else:
            why = why_not_started(error, program, file)
        super().__init__(f"Cannot start {program}", why=why)


def find_program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the program that a command names. Raises CannotRun."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        error = PermissionError() if os.path.isfile(command[0]) else FileNotFoundError()
        raise CannotRun(command[0], error, file=command[0])
    return found


async def run_client(
    command: Sequence[str], environment: Mapping[str, str], cwd: str | None
) -> int:
    """Run a client until it ends; return its exit status like a shell."""
    program = find_program(command, environment)
    if cwd is not None and not os.path.isdir(cwd):
        raise StartError(f"Cannot start {command[0]} in {cwd}", why="There is no such folder")
    loop = asyncio.get_running_loop()
    waiting: list[int] = []  # signals that came before the client had started
    client: asyncio.subprocess.Process | None = None

    def pass_on(number: int) -> None:
        if client is None:
            waiting.append(number)
        else:
            with suppress(ProcessLookupError):
                client.send_signal(number)

    def unless_from_terminal(number: int) -> None:
        if not _is_in_foreground():
            pass_on(number)

    for names, act in ((_PASSED_ON, pass_on), (_FROM_TERMINALS, unless_from_terminal)):
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError):  # event loops on Windows take none
                    loop.add_signal_handler(number, act, number)
    try:
        client = await asyncio.create_subprocess_exec(
            command[0], *command[1:], executable=program, env=dict(environment), cwd=cwd
        )
    except OSError as error:
        raise CannotRun(command[0], error, file=program) from None
    for number in waiting:
        pass_on(number)
    status = await client.wait()
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Tell whether a terminal sends its signals to us, and so to the client too."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")
TRUSTED = (
    "SSL_CERT_FILE",  # OpenSSL, and with it Python; Go; curl; uv
    "REQUESTS_CA_BUNDLE",  # Python's requests
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "NIX_SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
"""Variables that name a file of certificates to trust."""


def environment_for(before: Mapping[str, str], proxy: str, certificates: Path) -> dict[str, str]:
    """Return an environment that makes a client send its traffic through us.

    We set each variable in upper and lower case, because programs differ in which they read.
    """
    upper = {**dict.fromkeys(_PROXIES, proxy), "NO_PROXY": ""}
    lower = {name.lower(): value for name, value in upper.items()}
    trusted = dict.fromkeys(TRUSTED, str(certificates))
    return {**before, **upper, **lower, **trusted, "NODE_USE_ENV_PROXY": "1"}


_BEGIN = b"-----BEGIN"


def write_bundles(
    folder: Path, *, ours: bytes, own: str | None, environment: Mapping[str, str]
) -> tuple[Path, Path]:
    """Write the certificates for the client and for us; return both files. Raises StartError.

    ``ours`` is our own CA, ``own`` a file that the user names. We trust whatever the client would
    have trusted without us.
    """
    known = b"\n".join(dict.fromkeys(_known(own, environment)))
    client, upstream = folder / "client.pem", folder / "upstream.pem"
    upstream.write_bytes(known + b"\n")
    client.write_bytes(known + b"\n" + ours)
    return client, upstream


def _known(own: str | None, environment: Mapping[str, str]) -> Iterator[bytes]:
    system = ssl.get_default_verify_paths().cafile
    yield Path(certifi.where()).read_bytes()
    for name in filter(None, (system, *map(environment.get, TRUSTED))):
        if (found := _bytes_of(name)) is not None:
            yield found
    if own is not None:
        if (found := _bytes_of(os.path.expanduser(own))) is None:
            raise Mistake(f"Cannot read --ca {own}", why="It must be a file of PEM certificates")
        yield found


def _bytes_of(name: str) -> bytes | None:
    try:
        found = read_whole(name)
    except OSError:
        return None
    return found if _BEGIN in found else None


_NAMES = ("https_proxy", "all_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class OuterProxy:
    mode: str
    """In mitmproxy's spelling."""
    login: str | None = field(repr=False)
    exceptions: tuple[str, ...] = ()
    """The hosts that are reached without the proxy."""

    def is_direct(self, host: str) -> bool:
        return is_loopback(host) or any(
            _fits(host.lower(), exception) for exception in self.exceptions
        )


def find_proxy(environment: Mapping[str, str]) -> OuterProxy | None:
    """Return the proxy of an environment, if there is one. Raises StartError."""
    lower = {name.lower(): value for name, value in environment.items() if value}
    for name in _NAMES:
        if url := lower.get(name):
            entries = (one.strip().lower() for one in lower.get("no_proxy", "").split(","))
            return _parse(name, url, tuple(filter(None, entries)))
    return None


def _parse(name: str, url: str, exceptions: tuple[str, ...]) -> OuterProxy:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    from mitmproxy.net.check import is_valid_host  # only a client behind a proxy needs it

    is_web = parts.scheme in ("http", "https") and parts.username != ""  # mitmproxy needs a name
    if not host or not is_valid_host(host) or not is_web:
        why = "It must be an http or https proxy; unset it to connect directly"
        raise StartError(f"The proxy in {name.upper()} cannot be used", why=why)
    where = f"[{host}]" if ":" in host else host
    usual = 443 if parts.scheme == "https" else 80
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return OuterProxy(f"upstream:{parts.scheme}://{where}:{port or usual}", login, exceptions)


def _fits(host: str, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        name = entry.rpartition(":")[0] if entry.rpartition(":")[2].isdigit() else entry
        name = name.removeprefix("*").removeprefix(".")
        return host == name or host.endswith(f".{name}")


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
_OWN_FILE = "--mcp-config"  # Claude Code's; a file, or JSON


class Way(StrEnum):
    """How a client reaches a server."""

    URL = "url"
    MCP_REMOTE = "mcp-remote"
    """Through a command that connects to a URL."""
    COMMAND = "command"
    FILTERED = "filtered"
    """The entry starts the filter itself."""
    WATCHED = "only watched"
    """It does, and the filter enforces nothing."""


@dataclass(frozen=True, slots=True)
class ServerOfClient:
    """A server that a client lists."""

    name: str
    where: str
    """Which file lists it, in a few words."""
    way: Way
    url: str = ""
    """Without its query, which may hold a secret."""
    has_flag: bool = True
    """True if mcp-remote is told to use a proxy."""
    filtering: Filtering = NOT_FILTERED
    """What the entry says about the filter."""


@dataclass(frozen=True, slots=True)
class SeenTraffic:
    """The traffic that came through us."""

    urls: frozenset[str]
    """The URLs at named hosts to which a client sent anything, without their queries."""
    refused: frozenset[str] = frozenset()
    """Hosts for which a client did not accept our certificate."""
    unread: tuple[str, ...] = ()
    """Other hosts that a client has contacted."""


def client_of(command: Sequence[str]) -> str | None:
    """Return which client a command starts.

    >>> client_of(["/usr/bin/claude", "-p", "hi"]), client_of(["python", "x.py"])
    ('claude-code', None)
    """
    name = PurePath(command[0].replace("\\", "/")).name.lower() if command else ""
    return PROGRAMS.get(name.removesuffix(".exe").removesuffix(".cmd"))


def servers_of(
    client: str | None, command: Sequence[str], here: Whereabouts
) -> tuple[list[ServerOfClient], list[str]]:
    """Return the servers that a client lists, and the problems of unreadable files."""
    found: list[ServerOfClient] = []
    problems: list[str] = []
    for place in [one for one in places(here) if one.client == client]:
        try:
            file = read(place)
            listed = file.servers() if file else {}
        except BadFile as error:
            problems.append(error.one_line)
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


def named_server(url: str) -> ServerOfClient:
    """Return a server that the user names."""
    return ServerOfClient(_without_query(url), "named by --server", Way.URL, _without_query(url))


def hosts_of(servers: Iterable[ServerOfClient]) -> Iterator[str]:
    """Yield the hosts of servers that a client reaches by URL.

    >>> urls = ["https://mcp.example/mcp", "http://localhost:3000/mcp", "https://${NOT_SET}/mcp"]
    >>> [*hosts_of(map(named_server, urls))]
    ['mcp.example', 'localhost:3000']
    """
    for server in servers:
        try:
            origin = parse_origin(server.url)
        except InvalidOption:  # a command
            continue
        if _VARIABLE in server.url:
            continue
        # Other ports of this machine are other programs.
        yield (
            f"{_bracketed(origin.host)}:{origin.port}" if is_loopback(origin.host) else origin.host
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_VARIABLE = "${"  # of a variable that is not set


def is_seen(server: ServerOfClient, seen: SeenTraffic) -> bool:
    """Tell whether requests to this server came through us."""
    if (key := _key(server.url)) is None:
        return False
    return any(_key(url) == key for url in seen.urls)


def why_not_seen(server: ServerOfClient, seen: SeenTraffic) -> str:
    """Return why we have not seen the MCP traffic of a server, as far as known."""
    host = urlsplit(server.url).hostname or ""
    if _VARIABLE in server.url:
        return "its URL has a variable that is not set"
    if host in seen.refused:
        return "the client does not trust our certificate for it"
    if any(urlsplit(url).hostname == host for url in seen.urls):
        return "the client used this host through the filter, but sent nothing to this URL"
    if server.way is Way.MCP_REMOTE and not server.has_flag:
        return "mcp-remote uses the filter only with --enable-proxy in its args"
    return "the client did not use it, or went around the filter"


def _servers_in(
    listed: Mapping[str, ServerEntry], where: str, environment: Mapping[str, str]
) -> Iterator[ServerOfClient]:
    for name, entry in listed.items():
        if entry.get("disabled") is True or entry.get("enabled") is False:
            continue
        filtering = filtering_of(entry)
        if filtering.answer is not Filtered.NO:
            way = Way.FILTERED if filtering.answer is Filtered.YES else Way.WATCHED
            yield ServerOfClient(name, where, way, filtering=filtering)
            continue
        words, url = words_of(entry), url_of(entry)
        if url:
            yield ServerOfClient(name, where, Way.URL, _without_query(expanded(url, environment)))
        elif is_mcp_remote(words):
            target = next((word for word in words if _is_url(word)), "")
            url = _without_query(expanded(target, environment))
            yield ServerOfClient(name, where, Way.MCP_REMOTE, url, _ENABLE in words)
        else:
            yield ServerOfClient(name, where, Way.COMMAND)


def _servers_in_command(command: Sequence[str]) -> Iterator[ServerOfClient]:
    if is_mcp_remote(command):
        for url in filter(_is_url, command):
            yield ServerOfClient(_without_query(url), "the command", Way.URL, _without_query(url))
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


def not_seen(servers: Iterable[ServerOfClient], seen: SeenTraffic) -> list[ServerOfClient]:
    """Return the servers with a URL to which nothing came through us."""
    return [server for server in servers if server.way in _BY_URL and not is_seen(server, seen)]


_BY_URL = (Way.URL, Way.MCP_REMOTE)


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
    client: str,
    servers: Sequence[ServerOfClient],
    missing: Sequence[ServerOfClient],
    seen: SeenTraffic,
) -> None:
    """Save the result of this run; ignore it if that fails."""
    with suppress(OSError, RuntimeError):
        file = state_file(os.environ)
        entry = {
            "ended": time.time(),
            "seen": [
                server.name for server in servers if server not in missing and server.way in _BY_URL
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
