"""``mcp-tool-filter config CLIENT``: print the configuration that makes a client use the filter.

That is a command to run, or an entry for the client's file. Only this snippet goes to stdout;
where to put it, and how to start the filter, goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_tool_filter.cli.flags import COMMAND, WORDS, Given, UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, gather, settle
from mcp_tool_filter.cli.table import CLIENTS
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.options import OPTIONS


def run(typed: Given) -> int:
    """Print the snippet; return the exit status."""
    named = next(iter(typed.pop(WORDS, [])), "")
    if not named:
        why = "It must be one of: " + ", ".join(CLIENTS)
        raise UsageError("Which client? It comes after config", why=why)
    if named not in CLIENTS:
        raise no_such("client", named, CLIENTS, help="mcp-tool-filter config --help")
    settings = settle(gather(typed, os.environ))
    settings.config()
    if settings.is_stdio:
        program = program_of(typed, settings.env, _name_for(settings))
        snippet = snippet_for(named, program)
        say(snippet.where)
        print(snippet.text, flush=True)
        return 0
    snippet = snippet_for(named, _place(settings))
    say(snippet.where)
    print(snippet.text, flush=True)
    say("Start the filter first, and leave it running:")
    if variables := [variable for _, variable in _variables_for(settings.endpoint)]:
        say(f"(set {' and '.join(variables)} to the values from your URL)")
    say(command_line(typed))
    return 0


def command_line(typed: Given) -> str:
    """Return the command to start the filter.

    A header's value is shown only if it names a variable.
    """
    words = map(_quoted, filter_words(typed))
    return " ".join(["mcp-tool-filter", *words])


def _quoted(word: str) -> str:
    """Quote a word for a shell, but so that the variables of a URL are still expanded."""
    if not re.match(r"https?://[^?]*\?.*=\$", word):
        return shlex.quote(word)
    return '"' + re.sub(r'([\\"`]|\$(?![A-Z_]))', r"\\\1", word) + '"'


def _variables_for(url: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL that have a value, each with a variable for the value."""
    names = re.findall(r"(?<=[?&])([^=&]+)=[^&]", url)
    return [(name, re.sub(r"\W", "_", name, flags=re.ASCII).upper()) for name in names]


def _without_values(url: str) -> str:
    """Return a URL with variables instead of the values, which may be keys.

    >>> _without_values("http://localhost:3000/mcp?api-key=secret&q=")
    'http://localhost:3000/mcp?api-key=$API_KEY&q='
    """
    for name, variable in _variables_for(url):
        url = re.sub(rf"([?&]{re.escape(name)}=)[^&]+", rf"\1${variable}", url, count=1)
    return url


def filter_words(typed: Given) -> list[str]:
    """Return the flags as typed, and the command after them."""
    words: list[str] = []
    for name, values in typed.items():
        for value in values if name != COMMAND else ():
            words.append(f"--{name}")
            words += [_shown(name, value)] if OPTIONS[name].value else []
    command = typed.get(COMMAND, [])
    return [*words, "--", *command] if command else words


def _shown(name: str, value: str) -> str:
    match name:
        case "upstream":
            return _without_values(value)
        case "env":
            return value.partition("=")[0] + "=…"
        case "header" if not re.search(r":\s*(?:\w+\s+)?\$\{?\w+\}?\s*$", value):
            return value.partition(":")[0] + ": …"
    return value


def _place(settings: Settings) -> ServerUrl:
    endpoint = settings.endpoint or ("/mcp" if settings.command else _find_endpoint(settings))
    if not settings.port:
        why = "The client needs a fixed port: leave --port out, or name one"
        raise UsageError("--port 0 picks another port each time", why=why)
    if settings.host in ("0.0.0.0", "::"):  # all addresses; the client uses the nearest
        settings = replace(settings, host="127.0.0.1")
    return ServerUrl(
        url=settings.listens_at + endpoint,
        is_sse="/sse" in endpoint,
        name=_name_for(settings),
    )


def _find_endpoint(settings: Settings) -> str:
    from mcp_tool_filter.cli.commands.look import ask_now
    from mcp_tool_filter.errors import StartError

    try:
        return ask_now(settings).who.upstream.removeprefix(settings.origin)
    except StartError:
        say("The upstream does not answer now; the path /mcp is assumed.")
        return "/mcp"


def _name_for(settings: Settings) -> str:
    return name_of_command(settings.command) if settings.command else _name_of(settings.origin)


def _name_of(origin: str) -> str:
    """Return a name for the server in a client's list.

    >>> _name_of("https://mcp.example.com"), _name_of("http://localhost:3000")
    ('example-filtered', 'localhost-3000-filtered')
    """
    host, _, port = origin.partition("://")[2].partition(":")
    words = [word for word in host.split(".") if word not in ("mcp", "api", "www")]
    if len(words) > 1 and not words[-1].isdigit():
        words.pop()
    name = "-".join([*words, port] if port else words)
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{name}-filtered").strip("-")


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
            words += [f"--{flag}", value] if OPTIONS[flag].value else [f"--{flag}"]
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
