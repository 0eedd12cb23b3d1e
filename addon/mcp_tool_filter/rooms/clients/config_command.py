"""``mcp-tool-filter config CLIENT``: print the configuration that makes a client use the filter.

That is a command to run, or an entry for the client's file. Only this snippet goes to stdout;
where to put it, and how to start the filter, goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import quote, urlencode

from mcp_tool_filter.cli.flags import COMMAND, WORDS, Given, UsageError, typed_as
from mcp_tool_filter.cli.settings import Settings, chosen
from mcp_tool_filter.cli.terminal import say


def run(typed: Given) -> int:
    """Print the snippet; return the exit status."""
    [named] = typed.pop(WORDS)
    settings = chosen(typed, os.environ)
    settings.config()
    if not settings.is_stdio and not _can_reach_us(named, settings):
        # The client starts the filter, which asks the upstream.
        with suppress(UsageError):  # a port was asked for
            settings = chosen(over_stdio := {"stdio": ["true"], **typed}, os.environ)
            typed = over_stdio
    server = _command_of(typed, settings) if settings.is_stdio else _place(settings)
    snippet = snippet_for(named, server)
    say(snippet.where)
    print(snippet.text, flush=True)
    is_open = _words(typed, _shown) == _words(typed, lambda _name, value: value)
    if is_open and (link := link_for(named, server)):  # a link with a secret would be passed on
        say(f"Or open this link: {link}")
    if not settings.is_stdio:
        say("Start the filter first, and leave it running:")
        if variables := [variable for _, variable in _variables_for(settings.endpoint)]:
            say(f"(set {' and '.join(variables)} to the values from your URL)")
        say(" ".join(["mcp-tool-filter", *map(_quoted, _words(typed, _shown))]))
    return 0


def _quoted(word: str) -> str:
    """Quote a word for a shell, but so that the variables of a URL are still expanded."""
    if not re.match(r"https?://[^?]*\?.*=\$", word):
        return shlex.quote(word)
    return '"' + re.sub(r'([\\"`]|\$(?![A-Z_]))', r"\\\1", word) + '"'


def _variables_for(url: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL that have a value, each with a variable for the value."""
    names = re.findall(r"(?<=[?&])([^=&?]+)=[^&]", url)
    return [(name, re.sub(r"\W", "_", name, flags=re.ASCII).upper()) for name in names]


def _without_values(url: str) -> str:
    """Return a URL with variables instead of the values, which may be keys.

    >>> _without_values("http://localhost:3000/mcp?api-key=secret&q=")
    'http://localhost:3000/mcp?api-key=$API_KEY&q='
    """
    for name, variable in _variables_for(url):
        url = re.sub(rf"([?&]{re.escape(name)}=)[^&]+", rf"\1${variable}", url, count=1)
    return url


def _words(typed: Given, shown: Callable[[str, str], str]) -> list[str]:
    """Return the flags as typed, with their values as ``shown`` gives them, and the command."""
    words = [
        word
        for name, values in typed.items()
        if name != COMMAND
        for word in typed_as(name, [shown(name, value) for value in values])
    ]
    command = typed.get(COMMAND, [])
    return [*words, "--", *command] if command else words


def _shown(name: str, value: str) -> str:
    """Return a flag's value without secrets: a header's is shown only if it names a variable."""
    match name:
        case "upstream":
            return _without_values(value)
        case "env":
            return value.partition("=")[0] + "=…"
        case "metrics-token" if not re.fullmatch(r"\$\{?\w+\}?", value):
            return "…"
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
    from mcp_tool_filter.core.errors import StartError

    try:
        return ask_now(settings).who.upstream.removeprefix(settings.origin)
    except StartError:
        say("The upstream does not answer now; the path /mcp is assumed.")
        return "/mcp"


def _name_for(settings: Settings) -> str:
    """Return a name for the server in a client's list."""
    if settings.name:
        return settings.name
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


def _command_of(typed: Given, settings: Settings) -> ServerCommand:
    """Return the command with which a client starts the filter, with its environment."""
    given = {name: values for name, values in typed.items() if name != "env"}
    if "config" in given:  # a client has another current folder
        given["config"] = [os.path.abspath(path) for path in given["config"]]
    words = ["mcp-tool-filter", *_words(given, lambda _name, value: value)]
    own = {} if settings.name else settings.env  # else the config file has them
    return ServerCommand(_name_for(settings), words, own)


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


type Reachable = ServerUrl | ServerCommand


class Snippet(NamedTuple):
    text: str
    where: str
    """Where to put it."""


class _Form(NamedTuple):
    """How a client wants to be told about a server."""

    where: str
    servers: str = ""
    """The list of servers in its file; empty if a command of the client adds one."""
    url: str = "url"
    """The member with a URL; empty if it only starts programs."""
    types: tuple[str, str, str] | None = None
    """What an entry calls a command, Streamable HTTP and HTTP+SSE, if it names them."""
    knows_sse: bool = True


_TYPES = ("stdio", "http", "sse")
_RUN = "Run this command"
_RUN_SCOPED = f"{_RUN} (--scope user: for all your projects)"
_FORMS = {
    "claude-code": _Form(_RUN_SCOPED),
    "claude-desktop": _Form(
        "Into claude_desktop_config.json (Settings > Developer > Edit Config); then restart it",
        "mcpServers",
        url="",
    ),
    "cursor": _Form("Into ~/.cursor/mcp.json, or .cursor/mcp.json of a project", "mcpServers"),
    "vscode": _Form("Into .vscode/mcp.json", "servers", types=_TYPES),
    "codex": _Form(_RUN, knows_sse=False),
    "gemini": _Form(_RUN_SCOPED),
    "windsurf": _Form(
        "Into ~/.codeium/windsurf/mcp_config.json; then refresh the list of MCP servers",
        "mcpServers",
        url="serverUrl",
    ),
    "zed": _Form(
        "Into Zed's settings.json (zed: open settings file), or .zed/settings.json of a project",
        "context_servers",
        knows_sse=False,
    ),
    "opencode": _Form(
        "Into ~/.config/opencode/opencode.json, or opencode.json of a project",
        "mcp",
        types=("local", "remote", "remote"),
    ),
    "copilot": _Form("Into ~/.copilot/mcp-config.json", "mcpServers", types=_TYPES),
    "cline": _Form(
        "Into cline_mcp_settings.json (MCP Servers > Configure MCP Servers)",
        "mcpServers",
        types=("stdio", "streamableHttp", "sse"),
    ),
    "kiro": _Form(
        "Into ~/.kiro/settings/mcp.json, or .kiro/settings/mcp.json of a project", "mcpServers"
    ),
    "lmstudio": _Form("Into ~/.lmstudio/mcp.json", "mcpServers"),
    "goose": _Form(
        "Into ~/.config/goose/config.yaml",
        "extensions",
        url="uri",
        types=("stdio", "streamable_http", ""),
        knows_sse=False,
    ),
}


def _can_reach_us(client: str, settings: Settings) -> bool:
    return bool(_FORMS[client].url) and _can_reach(client, _place(settings))


def _can_reach(client: str, server: ServerUrl) -> bool:
    form = _FORMS[client]
    return bool(form.url) and (form.knows_sse or not server.is_sse)


def snippet_for(client: str, server: Reachable) -> Snippet:
    """Return the snippet for a client that connects to our URL, or starts the filter itself."""
    form, needs = _FORMS[client], ""
    if isinstance(server, ServerUrl) and not _can_reach(client, server):
        server, needs = _through_mcp_remote(server), " (needs Node.js)"
    if not form.servers:
        return Snippet(shlex.join(_words_to_add(client, server)), f"{form.where}{needs}:")
    entry = _entry(form, server)
    text = json.dumps({form.servers: {server.name: entry}}, indent=2)
    if client == "goose":
        text = _as_yaml(form.servers, server.name, entry)
    return Snippet(text, f"{form.where}{needs}:")


def link_for(client: str, server: Reachable) -> str | None:
    """Return a link that adds a server if it is opened; None if the client knows no such links."""
    entry = _entry(_FORMS[client], server)
    if client == "vscode":
        text = json.dumps({"name": server.name, **entry}, separators=(",", ":"))
        return f"vscode:mcp/install?{quote(text, safe='')}"
    if client == "cursor":
        config = b64encode(json.dumps(entry).encode()).decode()
        query = urlencode({"name": server.name, "config": config})
        return f"cursor://anysphere.cursor-deeplink/mcp/install?{query}"
    return None


def _as_yaml(servers: str, name: str, entry: Mapping[str, object]) -> str:
    """Return an entry for goose, which has names of its own for some members."""
    named = {"enabled": True, "name": name} | {
        {"command": "cmd", "env": "envs"}.get(key, key): value for key, value in entry.items()
    }
    lines = [f"    {key}: {json.dumps(value)}" for key, value in named.items()]
    return "\n".join([f"{servers}:", f"  {name}:", *lines])


def _words_to_add(client: str, server: Reachable) -> list[str]:
    """Return the command with which a client adds a server to its list."""
    add = [client.removesuffix("-code"), "mcp", "add"]
    if isinstance(server, ServerUrl):
        if client == "codex":
            return [*add, server.name, "--url", server.url]
        transport = "sse" if server.is_sse else "http"
        return [*add, "--transport", transport, server.name, server.url]
    variables = [word for one in server.env.items() for word in ("--env", "=".join(one))]
    if client == "gemini":
        command, *args = server.words
        return [*add, *variables, server.name, command, "--", *args]
    return [*add, server.name, *variables, "--", *server.words]


def _entry(form: _Form, server: Reachable) -> dict[str, object]:
    command, http, sse = form.types or ("", "", "")
    if isinstance(server, ServerUrl):
        kind = {"type": sse if server.is_sse else http} if form.types else {}
        return {**kind, form.url: server.url}
    kind = {"type": command} if form.types else {}
    if command == "local":  # opencode's
        env = {"environment": dict(server.env)} if server.env else {}
        return {**kind, "command": list(server.words), **env}
    env = {"env": dict(server.env)} if server.env else {}
    return {**kind, "command": server.words[0], "args": list(server.words[1:]), **env}


def _through_mcp_remote(server: ServerUrl) -> ServerCommand:
    is_local = re.match(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):", server.url)
    allow = [] if is_local else ["--allow-http"]
    return ServerCommand(server.name, ["npx", "-y", "mcp-remote", server.url, *allow], {})
