"""Wrap and unwrap a server's entry in a client's file: put the filter in front of the server.

A command is wrapped: the filter starts it. A URL becomes a command: the filter connects to it.
Everything else in the entry stays. The old entry of a URL is kept in a variable of the new entry
(names only; header values stay in the file, in another variable), so that it can be restored.
Members about the client's login to a URL also move into a variable: Codex does not start a command
that has one. One more variable is the entry's key: the filter that it starts reports it, so that
``status`` takes no other process for it.

>>> server = {"command": "npx", "args": ["-y", "server"]}
>>> wrapped = wrap(server, ["--deny", "^rm"], ["mcp-tool-filter"])
>>> wrapped["args"]
['--deny', '^rm', '--', 'npx', '-y', 'server']
>>> unwrap(wrapped)
{'command': 'npx', 'args': ['-y', 'server']}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.shown import may_hold_a_secret, shown_url
from mcp_tool_filter.rooms.secrets.shown import shown_words

type ServerEntry = dict[str, object]

WAS = "MCP_TOOL_FILTER_WRAPPED"  # the old entry of a URL
_WAS_EMPTY = "-"  # ends the key of an entry whose variables were an empty table
_LOGIN = "MCP_TOOL_FILTER_WRAPPED_LOGIN"  # the old login members; may contain a secret
_NO_ARGUMENTS = "--stdio"  # has no effect; marks an entry that had no arguments
_UPSTREAM = "MCP_TOOL_FILTER_UPSTREAM"
_HEADERS = "MCP_TOOL_FILTER_HEADER"  # the filter reads each line as a --header
URLS = ("url", "httpUrl", "serverUrl")
_OF_A_URL = (
    *URLS, "type", "headers", "http_headers", "env_http_headers", "bearer_token_env_var",
)  # fmt: skip
HEADER_MAPS = ("headers", "http_headers")
LOGINS = ("oauth", "oauth_resource", "oauth_client_id", "scopes", "auth")
_OWN_CREDENTIALS = ("headersHelper", "authProviderType")  # only the client can produce these
_REFERENCE = r"(\$\{(?:[^$}]|\$+[^${}])*\$*\})"
_OF_GOOSE = re.compile(r"\$(?:\$?[A-Za-z_]|\{\s)")  # its other ways to name a variable
# Variables that change which program runs, what it loads, or how our filter works.
_STEERS = re.compile(
    r"PATH|HOME|(?:PYTHON|LD_|DYLD_|MCP_TOOL_FILTER_).*", re.IGNORECASE | re.DOTALL
)
_EXECUTABLE = "mcp-tool-filter"
_MODULE = "mcp_tool_filter"


class CannotWrap(StartError):
    """We cannot put the filter in front of this kind of entry."""


def target_of(entry: ServerEntry) -> str:
    """Return the command or the URL of a server for display, without secrets."""
    try:
        original = unwrap(entry) if is_wrapped(entry) else entry
    except CannotWrap:
        return "?"
    if url := url_of(original):
        return shown_url(url.partition("?")[0]) + ("?…" if "?" in url else "")
    words = words_of(original)
    if not words:
        return "?"
    return " ".join(shown_words(words)[:3]) + (" …" if len(words) > 3 else "")


def is_wrapped(entry: ServerEntry) -> bool:
    """Tell whether ``unwrap`` can remove the filter from this server."""
    return _flags_in(entry) is not None


def is_filtered(entry: ServerEntry) -> bool:
    """Tell whether the filter is in front of this server, even if a person typed it there."""
    return words_of_filter(entry) is not None


def logs_in(entry: ServerEntry) -> bool:
    """Tell whether the client logs in to this server itself, which the filter cannot do."""
    return bool(url_of(entry)) and any(key in entry for key in LOGINS)


def flags_of(entry: ServerEntry) -> list[str]:
    """Return the filter's flags in a wrapped entry."""
    return _flags_in(entry) or []


def wrap(
    entry: ServerEntry, flags: Sequence[str], program: Sequence[str], key: str = ""
) -> ServerEntry:
    """Return the entry with the filter in front; ``program`` starts it, and reports the ``key``.
    Raises CannotWrap."""
    original = with_key(unwrap(entry), "")
    if is_filtered(original):
        raise CannotWrap("The entry already starts the filter", why="Change the flags in its args")
    url, words = url_of(original), words_of(original)
    if url and words:
        raise CannotWrap(
            "The entry has a command and a URL", why="Remove the one that the client does not use"
        )
    if url:
        wrapped = _wrap_url(original, url, flags, program)
    elif not words:
        raise CannotWrap("The entry has neither a command nor a URL", why="Wrap it by hand")
    elif not isinstance(holder_of(original).get("args") or [], list):
        raise CannotWrap("The entry's args are not a list", why="Correct it, and try again")
    else:
        has_args = "args" in holder_of(original) or isinstance(original.get("command"), list)
        marks = [] if has_args else [_NO_ARGUMENTS]
        wrapped = with_words(original, [*program, *flags, *marks, "--", *words])
    wrapped = with_key(wrapped, key)
    if unwrap(wrapped) != original:
        raise CannotWrap("unwrap could not restore this entry", why="Wrap it by hand")
    return wrapped


def start_of(entry: ServerEntry) -> tuple[list[str], dict[str, str]]:
    """Return the words and the variables with which a wrapped entry starts the filter."""
    environment = environment_of(entry) | environment_of(holder_of(entry))
    variables = {key: str(value) for key, value in environment.items() if key != ENTRY}
    return words_of_filter(entry) or [], variables


def with_key(entry: ServerEntry, key: str) -> ServerEntry:
    """Return an entry whose filter reports this key; no key takes the present one out."""
    holder = holder_of(entry)
    in_list = isinstance(entry.get("command"), list)  # opencode's
    name = "environment" if in_list or "environment" in holder else "env"
    before = holder.get(name, {})
    if not isinstance(before, dict) or not (key or ENTRY in before):
        return entry
    variables = {each: value for each, value in before.items() if each != ENTRY}
    if key:
        was_empty = before == {} and name in holder
        variables[ENTRY] = key + _WAS_EMPTY if was_empty else key
    elif not variables and not str(before[ENTRY]).endswith(_WAS_EMPTY):
        changed = {each: value for each, value in holder.items() if each != name}
        return changed if holder is entry else entry | {"command": changed}
    changed = holder | {name: variables}
    return changed if holder is entry else entry | {"command": changed}


def key_of(entry: ServerEntry) -> str | None:
    """Return the key that the filter of an entry reports."""
    found = environment_of(holder_of(entry)).get(ENTRY)
    return str(found) if found else None


def unwrap(entry: ServerEntry) -> ServerEntry:
    """Return the entry before ``wrap``; an entry that is not wrapped stays unchanged."""
    flags = _flags_in(entry)
    if flags is None:
        return entry
    entry = with_key(entry, "")
    if environment_of(entry).get(WAS) is not None:
        return _restore_url(entry)
    words = words_of(entry)
    end = words.index("--")
    had_args = words[end - 1] != _NO_ARGUMENTS or len(words) > end + 2
    return with_words(entry, words[end + 1 :], has_args=had_args)


def holder_of(entry: ServerEntry) -> ServerEntry:
    """Return the object with the arguments: the entry, or its command in Zed's old format."""
    nested = entry.get("command")
    return nested if isinstance(nested, dict) else entry


def with_words(entry: ServerEntry, words: Sequence[str], *, has_args: bool = True) -> ServerEntry:
    """Return the entry with another command, in the form that it has now."""
    if isinstance(entry.get("command"), list):  # opencode's
        return entry | {"command": [*words]}
    holder = holder_of(entry)
    changed = holder | {
        "command" if holder is entry else "path": words[0],
        "args": [*words[1:]],
    }
    if not has_args:
        del changed["args"]
    return changed if holder is entry else entry | {"command": changed}


def _wrap_url(
    entry: ServerEntry, url: str, flags: Sequence[str], program: Sequence[str]
) -> ServerEntry:
    _refuse_unsafe_url(entry, url)
    headers = headers_of(entry)
    environment = dict(environment_of(entry))
    environment[WAS] = json.dumps(_without_secrets(entry), separators=(",", ":"))
    if login := {key: entry[key] for key in LOGINS if key in entry}:
        environment[_LOGIN] = json.dumps(login, separators=(",", ":"))
    if headers:
        environment[_HEADERS] = "\n".join(headers)
    upstream = ["--stdio", "--upstream", url]
    if may_hold_a_secret(url):  # other users can list the arguments of processes
        environment[_UPSTREAM] = url
        upstream = ["--stdio"]
    return as_command(entry, [*program, *upstream, *flags], environment)


def as_command(
    entry: ServerEntry, words: Sequence[str], environment: Mapping[str, object] | None = None
) -> ServerEntry:
    """Return a URL's entry that starts a command instead."""
    entry_env = {} if environment is None else {"env": environment}
    kept = {key: value for key, value in entry.items() if key not in (*_OF_A_URL, *LOGINS)}
    if entry.get("type") == "remote":  # opencode's
        entry_env = {} if environment is None else {"environment": environment}
        return {"type": "local"} | kept | {"command": [*words]} | entry_env
    if entry.get("type") is not None:
        kept = {"type": "stdio"} | kept
    wrapped: ServerEntry = kept | {"command": words[0], "args": [*words[1:]]} | entry_env
    if variables := _variables_of(entry):
        wrapped["env_vars"] = variables
    return wrapped


def _refuse_unsafe_url(entry: ServerEntry, url: str) -> None:
    """Refuse variables that a client ignores for a URL, but that would affect our filter, and
    credentials that only the client can produce.

    Such an entry starts no program. Once wrapped, it starts the filter with these variables: a
    project's file could make the filter load the project's code. And without the credentials, no
    request would pass.
    """
    headers = headers_of(entry)
    for name in environment_of(entry):
        if _STEERS.fullmatch(name):
            why = "Remove it from the entry's env: a URL does not need it"
            raise CannotWrap(f"The entry sets {name!a}, which would change the filter", why=why)
    if any(len(header.splitlines()) > 1 for header in headers):
        raise CannotWrap("A header in the entry has more than one line", why="Correct it first")
    if entry.get("type") == "streamable_http" and any(map(_OF_GOOSE.search, [url, *headers])):
        why = "Write ${NAME}, which goose and the filter both understand"
        raise CannotWrap("The entry refers to a variable without braces", why=why)
    made_by = [key for key in _OWN_CREDENTIALS if key in entry]
    if made_by or entry.get("auth", "oauth") != "oauth":
        why = "The filter cannot do that: remove it, and give the entry a header with a token"
        what = f"The client makes this entry's credentials ({[*made_by, 'auth'][0]})"
        raise CannotWrap(what, why=why)


def _without_secrets(entry: ServerEntry) -> ServerEntry:
    """Return the old entry of a URL, without header values and without a URL that may contain a
    secret."""
    said = {key: value for key, value in entry.items() if key in _OF_A_URL}
    said |= {key: None for key in URLS if may_hold_a_secret(str(said.get(key)))}
    for key in HEADER_MAPS:
        if isinstance(headers := said.get(key), dict):
            said[key] = dict.fromkeys(headers)
    return said


def _restore_url(entry: ServerEntry) -> ServerEntry:
    environment = dict(environment_of(entry))
    said = _said(environment.pop(WAS), _OF_A_URL) | _said(environment.pop(_LOGIN, "{}"), LOGINS)
    url = environment.pop(_UPSTREAM, None)
    said = {key: url if key in URLS and value is None else value for key, value in said.items()}
    values = {
        name: re.sub(rf"{_REFERENCE}|\$\$", lambda found: found[1] or "$", value)
        for name, value in header_values(str(environment.pop(_HEADERS, "")).splitlines())
    }
    for key in HEADER_MAPS:
        if isinstance(names := said.get(key), dict):
            said[key] = {name: values.get(name, "") for name in names}
    variables = "environment" if said.get("type") == "remote" else "env"
    gone = {"command", "args", "type", variables}
    gone |= {"env_vars"} if _variables_of(said) else set()
    rest = {key: value for key, value in entry.items() if key not in gone}
    return said | rest | ({variables: environment} if environment else {})


def _said(was: object, known: Sequence[str]) -> ServerEntry:
    """Parse the old entry of a URL. Raises CannotWrap if it was edited."""
    try:
        said = json.loads(str(was))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not said.keys() <= set(known):
        raise CannotWrap(f"{WAS} in the entry has been changed", why="Restore it by hand")
    return said


def headers_of(entry: ServerEntry) -> list[str]:
    """Return the headers for the filter, which expands ${NAME}; other dollars are escaped."""
    headers = []
    for key in HEADER_MAPS:
        if isinstance(found := entry.get(key), dict):
            headers += [f"{name}: {doubled(str(value))}" for name, value in found.items()]
    if isinstance(named := entry.get("env_http_headers"), dict):
        headers += [f"{name}: ${{{variable}}}" for name, variable in named.items()]
    if token := entry.get("bearer_token_env_var"):
        headers.append(f"Authorization: Bearer ${{{token}}}")
    return headers


def doubled(text: str, reference: str = _REFERENCE) -> str:
    """Return a text in which a dollar is a dollar, but a reference is still one."""
    return re.sub(rf"{reference}|\$", lambda found: found[1] or "$$", text)


def header_values(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, value = line.partition(": ")
        yield name, value


def _variables_of(entry: ServerEntry) -> list[str]:
    """Return the environment variables that Codex must pass on."""
    named = entry.get("env_http_headers")
    found = [str(value) for value in named.values()] if isinstance(named, dict) else []
    token = entry.get("bearer_token_env_var")
    return found + ([str(token)] if token else [])


def words_of_filter(entry: ServerEntry) -> list[str] | None:
    """Return the words after the filter's program; None if the entry does not start it."""
    words = words_of(entry)
    if words and PurePath(words[0].replace("\\", "/")).stem == _EXECUTABLE:
        return words[1:]
    return words[3:] if words[1:3] == ["-m", _MODULE] else None


def _flags_in(entry: ServerEntry) -> list[str] | None:
    rest = words_of_filter(entry)
    if rest is None:
        return None
    if WAS in environment_of(entry) and rest[:1] == ["--stdio"]:
        return rest[3:] if rest[1:2] == ["--upstream"] else rest[1:]
    if "--" not in rest[:-1]:
        return None
    flags = list(rest[: rest.index("--")])
    return flags[:-1] if flags[-1:] == [_NO_ARGUMENTS] else flags


def words_of(entry: ServerEntry) -> list[str]:
    holder = holder_of(entry)
    command, arguments = holder.get("command"), holder.get("args")
    if holder is not entry:
        command = holder.get("command", holder.get("path"))
    if isinstance(command, list):  # opencode's
        return [*map(str, command)]
    if not isinstance(command, str) or not command:
        return []
    return [command, *map(str, arguments if isinstance(arguments, list) else [])]


def url_of(entry: ServerEntry) -> str | None:
    found = (entry.get(key) for key in URLS)
    return next((value for value in found if isinstance(value, str) and value), None)


def environment_of(entry: ServerEntry) -> dict[str, object]:
    found = entry.get("environment" if "environment" in entry else "env")
    return found if isinstance(found, dict) else {}


_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-((?:[^$}]|\$+[^${}])*\$*))?\}")


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return a text of a client's file with the values of its variables, as far as known."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1]) or found[2] or found[0]

    return _VARIABLE.sub(value, text)
