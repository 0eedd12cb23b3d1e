"""``mcp-tool-filter clients``, ``wrap`` and ``unwrap``: the servers in the files of your clients.

``wrap`` puts the filter in front of a server in a client's file, and ``unwrap`` undoes it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_tool_filter.adapters.client_files.entries import (
    WAS,
    ServerEntry,
    expanded,
    flags_of,
    is_filtered,
    is_wrapped,
    logs_in,
    start_of,
    target_of,
    unwrap,
    wrap,
)
from mcp_tool_filter.adapters.client_files.files import (
    BadFile,
    ClientFile,
    EditedFile,
    Surroundings,
    backup_of,
    places,
    read,
)
from mcp_tool_filter.cli.flags import COMMAND, WORDS, Given, UsageError, no_such, parse_flags
from mcp_tool_filter.cli.launcher import refuse_what_needs_http
from mcp_tool_filter.cli.settings import Settings, gather, settle
from mcp_tool_filter.cli.terminal import Colour, count, is_terminal, paint, print_table, say
from mcp_tool_filter.errors import StartError, safe_lines
from mcp_tool_filter.observers.redaction.shown import secrets_in_words
from mcp_tool_filter.options import OPTIONS
from mcp_tool_filter.policy.snapshot import shown

_PATTERNS = (
    "deny",
    "except",
    "deny-glob",
    "deny-prompts",
    "deny-resources",
    "deny-skills",
    "allow",
)


@dataclass(frozen=True, slots=True)
class ListedServer:
    """A server in a client's file."""

    file: ClientFile
    name: str
    entry: ServerEntry


def run(typed: Given) -> int:
    """Print the list; return the exit status."""
    found = list(find_servers())
    if "json" in typed:
        print(json.dumps([_as_json(one) for one in found], indent=2))
    elif found:
        head = ("CLIENT", "SCOPE", "SERVER", "FILTERED", "COMMAND OR URL")
        print_table(head, list(map(_row, found)))
    else:
        say("No MCP servers found in any client's file")
    return 0


def find_servers() -> Iterator[ListedServer]:
    """Yield every server that a client lists; a file that cannot be read gets a warning.

    If files of one scope list a name twice, the nearest file counts, as for the client.
    """
    known = set()
    for place in places(Surroundings.of_this_process()):
        try:
            file = read(place)
            servers = file.servers() if file else {}
        except BadFile as error:
            say(f"Warning: {': '.join(str(error).removeprefix('Error: ').splitlines())}")
            continue
        for name, entry in servers.items():
            assert file
            if (place.client, place.scope, name) not in known:
                known.add((place.client, place.scope, name))
                yield ListedServer(file, name, entry)


def _row(one: ListedServer) -> tuple[str, ...]:
    place = one.file.place
    filtered = "yes" if is_filtered(one.entry) else "no"
    if filtered == "yes" and _only_reports(one.entry):
        filtered = "shadow"
    return place.client, place.scope, shown(one.name), filtered, shown(target_of(one.entry))


def _as_json(one: ListedServer) -> dict[str, object]:
    place = one.file.place
    return {
        "client": place.client,
        "scope": place.scope,
        "file": str(place.file),
        "server": one.name,
        "target": target_of(one.entry),
        "filtered": is_filtered(one.entry),
        "shadow": is_filtered(one.entry) and _only_reports(one.entry),
        "flags": flags_of(one.entry),
    }


def _only_reports(entry: ServerEntry) -> bool:
    """Tell whether the filter in front of a server enforces nothing."""
    words, variables = start_of(entry)
    try:
        return settle(gather(parse_flags(words), variables)).texts["shadow"] == "true"
    except StartError:
        return "--shadow" in words


_SHORTEST_SECRET = 4  # characters
_MOST_TRIES = 20
_SECRETIVE = ("env", "environment", "headers", "http_headers")


def run_wrap(typed: Given) -> int:
    """Wrap a server, or all of a client; return the exit status."""
    found, others = _find(typed)
    if "pick" in typed and len(found) > 1:
        raise UsageError("--pick is for one server", why="Leave out --all, or name its --scope")
    flags = [] if "pick" in typed else _filter_flags(typed)

    def change(listed: ListedServer) -> int:
        chosen = flags or _picked_flags(listed, typed)
        if not chosen:
            say("Nothing changed")
            return 1
        wrapped = wrap(listed.entry, chosen, _program(listed))
        _refuse_a_bad_start(wrapped)
        if flags:
            _say_what_is_hidden(listed, flags, is_named="all" not in typed)
        return _change(listed, wrapped, typed)

    status = _for_each(found, change)
    for one in others:
        place = one.file.place
        say(
            f"Warning: {place.client} also lists {one.name} in {place.file}, without the filter."
            f" It may use that one: add --scope {place.scope}, or --scope all for both"
        )
    return status


def run_unwrap(typed: Given) -> int:
    """Restore a server, or all of a client; return the exit status."""
    found, _ = _find(typed)
    if "all" in typed:
        found = [one for one in found if is_wrapped(one.entry)] or found[:1]
    return _for_each(found, lambda listed: _change(listed, unwrap(listed.entry), typed))


def _for_each(found: Sequence[ListedServer], change: Callable[[ListedServer], int]) -> int:
    """Change each entry; if there are several, an entry that cannot be changed stops no other."""
    status = 0
    for listed in found:
        file = read(listed.file.place) or listed.file  # the change before may have changed it
        try:
            status = change(replace(listed, file=file)) or status
        except StartError as error:
            if len(found) == 1:
                raise
            say(f"Warning: {listed.name} stays as it is: {error.what}. {error.why}")
            status = 1
    return status


def _settings_for(entry: ServerEntry, flags: Sequence[str], patience: str = "") -> Settings:
    """Return settings that start the server as the client would, filtered with these flags.

    ``patience`` is for how long to wait for it, in milliseconds, unless a flag says so.
    """
    words, variables = start_of(wrap(unwrap(entry), flags, ["mcp-tool-filter"]))
    given = parse_flags([expanded(word, os.environ) for word in words])
    if patience:
        given.setdefault("connection-timeout", [patience])
    values = {name: expanded(value, os.environ) for name, value in variables.items()}
    if COMMAND not in given:
        return settle(gather(given, variables))  # the filter expands its headers itself
    if values:
        given["env"] = [f"{name}={value}" for name, value in values.items()]
    if isinstance(folder := entry.get("cwd"), str):
        given["cwd"] = [folder]
    return settle(gather(given, {}))


def _say_what_is_hidden(listed: ListedServer, flags: Sequence[str], *, is_named: bool) -> None:
    """Ask the server once: a pattern that hides nothing, or everything, is seldom meant.

    A project's file may come from anybody: we start its command only if the user has named it.
    """
    from mcp_tool_filter.cli.commands.look import ask_now  # unwrap need not wait for it
    from mcp_tool_filter.observers.sentences import warnings_in

    why = ""
    if not is_named and listed.file.place.scope == "project":
        why = "it is in a project's file; wrap it by its name"
    else:
        try:
            known = ask_now(_settings_for(listed.entry, flags, patience="15000"))
            why = "" if known.who.is_listed else "it lists its tools after a login"
        except StartError as error:
            why = error.why
    if why:
        say(f"{listed.name} was not asked for its tools, or did not answer: {why}")
        return
    hidden = len(known.snapshot.denied)
    would = "would be " if known.who.is_shadow else ""
    say(f"{count(len(known.tools), 'tool')}: {hidden} {would}hidden")
    if known.who.is_shadow:
        say("Warning: nothing is enforced: with --shadow, the filter only reports")
    if known.tools and not hidden:
        say("Warning: no tool is hidden")
    for warning in warnings_in(known.snapshot):
        say(warning)


def _picked_flags(listed: ListedServer, typed: Given) -> list[str]:
    """Let the user pick tools, those that are hidden now marked; return the flags, or nothing.

    A pattern that is there stays: it may be meant for tools that come later.
    """
    from mcp_tool_filter.cli.commands.look import ask_now, choose
    from mcp_tool_filter.policy.choice import NOT_ALLOWED, switched

    before = flags_of(listed.entry)
    settings = _settings_for(listed.entry, before)
    known = ask_now(settings)
    if (hidden := choose(known.tools)) is None:
        return []
    names, choice = [one.name for one in known.tools], settings.config().choice
    not_allowed = [name for name, by in known.snapshot.denied.items() if by is NOT_ALLOWED]
    is_narrow = bool(not_allowed) and all(name in hidden for name in not_allowed)
    covered = not_allowed if is_narrow else []  # else allow goes
    changed = switched(
        choice,
        names,
        hide=[name for name in hidden if name not in covered],
        show=[name for name in names if name not in hidden],
        hinted=known.snapshot.hinted,
    )
    patterns = [(one.option, one.text) for one in changed.kept]
    patterns += [("deny", text) for text in changed.more]
    patterns += [("except", text) for text in changed.exceptions]
    flags = [word for name, text in patterns for word in (f"--{name.replace('_', '-')}", text)]
    gone = ("deny", "deny-glob", "except", *(() if is_narrow else ("allow",)))
    for name, values in parse_flags(before).items():
        for value in values if name not in gone else ():
            flags += [f"--{name}", value] if OPTIONS[name].value else [f"--{name}"]
    return [*flags, *_typed_flags(typed)]


def _filter_flags(typed: Given) -> list[str]:
    """Return the flags for the filter, checked as at its start."""
    from mcp_tool_filter.policy.config import parse_config

    given = {OPTIONS[name].key: typed.get(name) for name in _PATTERNS if name != "except"}
    if not any(given.values()):
        why = "Or what to keep: --allow PATTERN; or choose in the terminal: --pick"
        raise UsageError("Say what to hide: --deny PATTERN", why=why)
    parse_config(given)
    return _typed_flags(typed)


def _typed_flags(typed: Given) -> list[str]:
    flags = [
        word
        for name in _PATTERNS
        for pattern in typed.get(name, ())
        for word in (f"--{name}", pattern)
    ]
    flags += [f"--{name}" for name in ("ignore-case", "shadow") if name in typed]
    more = typed.get("flag", [])
    parse_flags(more)
    return [*flags, *more]


def _refuse_a_bad_start(wrapped: ServerEntry) -> None:
    """Refuse what the filter would not start with: the client would only show a failed server."""
    words, variables = start_of(wrapped)
    known = {name: _with_values(text) for name, text in variables.items()}
    given = gather(parse_flags([_with_values(word) for word in words]), known)
    if typed := [name for name in given if name in OPTIONS and OPTIONS[name].only_typed]:
        raise UsageError(f"--{typed[0]} does not filter: leave it out")
    refuse_what_needs_http(given)
    settings = settle(given)
    if not settings.is_stdio:
        raise UsageError("A client talks over stdio: leave out --port and --inspect")
    settings.config()


def _with_values(text: str) -> str:
    """Return a text with some value for what only the client knows."""
    if re.match(r"(https?:|\$)", text) and "$" in text:
        return "http://localhost"
    return re.sub(r"\$\{[^}]*\}", "1", text)


def _find(typed: Given) -> tuple[list[ListedServer], list[ListedServer]]:
    """Return the entries that are meant: one, or with --all or --scope all several.

    Return also other entries with their names that are not filtered: the client may use those.
    """
    client, *named = typed[WORDS]
    scope = typed.get("scope", [""])[-1]
    in_client = [one for one in find_servers() if one.file.place.client == client]
    in_scope = [one for one in in_client if scope in ("", "all", one.file.place.scope)]
    if bool(named) == ("all" in typed):
        why = "mcp-tool-filter clients lists them; --all means all of a client"
        raise UsageError("Name the client and the server: CLIENT SERVER", why=why)
    if not in_client:
        raise UsageError(f"{client} has no MCP servers", why="mcp-tool-filter clients shows all")
    server = named[0] if named else ""
    found = [one for one in in_scope if not server or one.name == server]
    listed = [one for one in in_client if not server or one.name == server]
    scopes = " or ".join(f"--scope {one.file.place.scope}" for one in listed)
    if not listed:
        known = sorted({one.name for one in in_client})
        kind = f"server in {client}'s file called"
        raise no_such(kind, server, known, help="mcp-tool-filter clients")
    if not found:
        what = f"{client} does not list {server or 'a server'} in scope {scope}"
        raise UsageError(what, why=f"Try {scopes}")
    if server and len(found) > 1 and scope != "all":
        why = f"Add {scopes}, or --scope all for all of them"
        raise UsageError(f"{client} lists {server} {len(found)} times", why=why)
    names = [one.name for one in found]
    others = [one for one in in_client if one not in found and one.name in names]
    return found, [one for one in others if not is_filtered(one.entry)]


def _program(listed: ListedServer) -> list[str]:
    """Return the command that starts the filter: its name in a shared file, else its path.

    Desktop programs do not have the shell's PATH.
    """
    found = shutil.which("mcp-tool-filter")
    if listed.file.place.scope == "project" and found:
        return ["mcp-tool-filter"]
    beside = Path(sys.executable).parent / "mcp-tool-filter"
    if path := found or shutil.which(beside):
        return [str(Path(path).absolute())]
    return [sys.executable, "-m", "mcp_tool_filter"]


def _change(listed: ListedServer, entry: ServerEntry, typed: Given) -> int:
    file, name = listed.file, listed.name
    if entry == listed.entry:
        say(f"Nothing to do: {name} in {file.place.file} is {_state_of(entry)}")
        return 0
    text = _text_with(file, name, entry)
    print("\n".join(_diff(listed, entry, text)))
    if "dry-run" in typed:
        return 0
    if "yes" not in typed and not _agrees():
        say("Nothing changed")
        return 1
    _save(listed, entry, text)
    kept = backup_of(file.place.file)
    say(f"Saved {file.place.file}")
    if kept.exists():
        say(f"The file without the filter is kept at {kept}")
    if is_wrapped(entry):
        undo = shlex.join(["mcp-tool-filter", "unwrap", file.place.client, name])
        say(f"Restart {file.place.client}. Undo: {undo}")
    if is_wrapped(entry) and logs_in(unwrap(entry)):
        say("The client logged in to this server by itself. Now the filter needs a login:")
        say(f"mcp-tool-filter login {shlex.quote(target_of(entry))}")
    return 0


def _state_of(entry: ServerEntry) -> str:
    if is_wrapped(entry):
        only = ", and only reports (--shadow)" if _only_reports(entry) else ""
        return f"already wrapped like this{only}"
    return "filtered, but not by wrap" if is_filtered(entry) else "not wrapped"


def _save(listed: ListedServer, entry: ServerEntry, text: str) -> None:
    """Save the change; make it again if a client saves its file at the same time."""
    file = listed.file
    for _ in range(_MOST_TRIES):
        try:
            return file.save(text, original=_without_filter(file, listed.name, entry))
        except EditedFile:
            newer = read(file.place)
            if newer is None or newer.servers().get(listed.name) != listed.entry:
                raise  # the entry itself is another one
            file = newer
            text = _text_with(file, listed.name, entry)
    raise EditedFile(
        f"{file.place.file} is saved again and again", why="Close the client, and try again"
    )


def _text_with(file: ClientFile, name: str, entry: ServerEntry) -> str:
    """Return the file's text with another entry; if the backup has that, as it is spelt there."""
    backup = _backup_of(file)
    try:
        spelt = file.restored(name, backup, entry) if backup else None
    except StartError:  # a broken backup
        spelt = None
    return spelt or file.with_entry(name, entry)


def _backup_of(file: ClientFile) -> ClientFile | None:
    try:
        raw = backup_of(file.place.file).read_bytes()
        return ClientFile(file.place, raw, raw.decode())
    except (OSError, UnicodeDecodeError):
        return None


def _without_filter(file: ClientFile, changed: str, entry: ServerEntry) -> str | None:
    """Return the file as it would be without the filter; None if the change makes it that."""
    is_needed = is_wrapped(entry)
    text = file.text
    here = [one for one in places(Surroundings.of_this_process()) if one.file == file.place.file]
    for place in here:  # for example, of the user and of one project
        for name, one in ClientFile(place, b"", text).servers().items():
            if is_wrapped(one):
                is_needed = is_needed or (place.keys, name) != (file.place.keys, changed)
                text = _text_with(ClientFile(place, b"", text), name, unwrap(one))
    return text if is_needed else None


def _agrees() -> bool:
    if not is_terminal(sys.stdin):
        raise UsageError("Cannot ask you: there is no terminal", why="Add --yes to make the change")
    print("Make this change? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _diff(listed: ListedServer, entry: ServerEntry, text: str) -> list[str]:
    """Return the change as a diff with masked secrets, because it may be shown to others."""
    file = listed.file
    lines = difflib.unified_diff(
        file.text.splitlines(), text.splitlines(), str(file.place.file), "with the change",
        lineterm="", n=2,
    )  # fmt: skip
    # The lines around the change, or the same line, may be about other servers.
    secrets = {*_secrets_in(file.whole()), *_secrets_in(entry)}
    from mcp_tool_filter.observers.redaction.finder import SecretFinder, redact

    finder = SecretFinder(known=tuple(one.encode().decode("latin-1") for one in secrets))
    masked = redact("\n".join(lines), "***", finder).split("\n")
    return [_coloured(safe_lines(line)) for line in masked]


def _secrets_in(value: object) -> Iterator[str]:
    """Yield the values of all headers and variables, plain and as JSON spells them."""
    for key, member in value.items() if isinstance(value, dict) else ():
        if key in _SECRETIVE and isinstance(member, dict):
            yield from _spellings_of(member)
        elif key in ("args", "command") and isinstance(member, list):
            words = list(map(str, member))
            yield from _spellings_of({one: one for one in secrets_in_words(words)})
        else:
            yield from _secrets_in(member)


def _spellings_of(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET and name != WAS:
            yield value
            yield json.dumps(value)[1:-1]
            yield json.dumps(value, ensure_ascii=False)[1:-1]


def _coloured(line: str) -> str:
    match line[:1]:
        case "+":
            return paint(line, Colour.GREEN)
        case "-":
            return paint(line, Colour.RED)
        case _:
            return line
