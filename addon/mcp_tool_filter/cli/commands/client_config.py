"""``mcp-tool-filter config CLIENT``: print the configuration that makes a client use the filter.

Only the snippet goes to stdout; where to put it, and how to start the filter, goes to stderr.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace

from mcp_tool_filter.cli.commands.client_programs import name_of_command, program_of
from mcp_tool_filter.cli.commands.client_snippets import ServerUrl, snippet_for
from mcp_tool_filter.cli.flags import COMMAND, FLAGS, WORDS, Given, UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, gather, settle
from mcp_tool_filter.cli.table import CLIENTS
from mcp_tool_filter.cli.terminal import say


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
            words += [_shown(name, value)] if FLAGS[name].value else []
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
    from mcp_tool_filter.cli.commands.asking import ask_now
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
