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
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

from mcp_tool_filter.cli.config_file import NOT_OF_A_SERVER, parse_file
from mcp_tool_filter.cli.flags import (
    COMMAND,
    WORDS,
    Given,
    UsageError,
    no_such,
    parse_flags,
    typed_as,
)
from mcp_tool_filter.cli.launcher import refuse_what_needs_http
from mcp_tool_filter.cli.options import CHOICE, OPTIONS
from mcp_tool_filter.cli.settings import (
    Settings,
    Sources,
    chosen,
    default_file,
    gather,
    is_on,
    settle,
    texts_of,
)
from mcp_tool_filter.cli.terminal import Colour, count, is_terminal, paint, print_table, say
from mcp_tool_filter.core.errors import StartError, UnsetVariable, safe_lines
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.rooms.clients import entries, files, moving, one_entry
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import BadFile, ClientFile, ConfigPlace, EditedFile
from mcp_tool_filter.rooms.clients.moving import ServersFile
from mcp_tool_filter.rooms.secrets.shown import secrets_in_words


@dataclass(frozen=True, slots=True)
class Moved:
    """A section of a file of servers that ``wrap --into`` has made, or will make."""

    file: ServersFile
    name: str
    original: ServerEntry
    """The client's entry without the filter."""
    text: str = ""
    """What the file shall say."""

    def is_in(self, path: str) -> bool:
        return str(self.file.path) == os.path.realpath(os.path.expanduser(path))


@dataclass(frozen=True, slots=True)
class ListedServer:
    """A server in a client's file."""

    file: ClientFile
    name: str
    entry: ServerEntry

    @property
    def place(self) -> ConfigPlace:
        return self.file.place

    @property
    def named(self) -> tuple[str, str]:
        """The server of a file of servers that the entry starts, and the file; or nothing."""
        name, path = moving.server_named_in(self.entry) or ("", None)
        return name, path or default_file(os.environ) or ""

    @property
    def origin(self) -> str:
        """The client's file as it is called on any machine of its user."""
        file, home = str(self.place.file), f"{Path.home()}/"
        return f"~/{file.removeprefix(home)}" if file.startswith(home) else file

    def moved(self) -> Moved | None:
        """Return the section that the entry was moved into, or None. Raises StartError."""
        name, path = self.named
        if not (name and path):
            return None
        file = ServersFile.read(path)
        original = moving.moved_from(file.text, name, self.origin)
        return Moved(file, name, original) if original is not None else None

    def _moved_safely(self) -> Moved | None:
        try:
            return self.moved()
        except StartError:  # a broken file hides no other server
            return None

    def original(self) -> ServerEntry:
        """Return the entry before ``wrap``. Raises StartError."""
        if entries.is_wrapped(self.entry):
            return entries.unwrap(self.entry)
        there = self.moved()
        return there.original if there else self.entry

    @property
    def is_undoable(self) -> bool:
        """True if ``unwrap`` can remove the filter from this server."""
        return entries.is_wrapped(self.entry) or self._moved_safely() is not None

    @property
    def target(self) -> str:
        there = self._moved_safely()
        return entries.target_of(there.original if there else self.entry)

    @property
    def only_reports(self) -> bool:
        """True if the filter in front of the server enforces nothing."""
        words, variables = entries.start_of(self.entry)
        try:
            return settle(gather(parse_flags(words), variables)).texts["shadow"] == "true"
        except StartError:
            return "--shadow" in words


def run(typed: Given) -> int:
    """Print the list; return the exit status."""
    found = list(find_servers())
    if "json" in typed:
        print(json.dumps([_as_json(one) for one in found], indent=2))
    elif found:
        head = ("CLIENT", "SCOPE", "SERVER", "FILTERED", "COMMAND OR URL", "POLICY")
        print_table(head, list(map(_row, found)))
    else:
        say("No MCP servers found in any client's file")
    return 0


def _warn_of(error: BadFile) -> None:
    say(f"Warning: {': '.join(str(error).removeprefix('Error: ').splitlines())}")


def find_servers(
    client: str = "", tell: Callable[[BadFile], object] = _warn_of
) -> Iterator[ListedServer]:
    """Yield every server that a client lists; ``tell`` gets what is wrong with unreadable files.

    With ``client``, no other client's files are read. If files of one scope list a name twice, the
    nearest file counts, as for the client.
    """
    known = set()
    for place in files.places(files.Whereabouts.of_this_process()):
        if client not in ("", place.client):
            continue
        for one in _listed_in(place, tell):
            if (place.client, place.scope, one.name) not in known:
                known.add((place.client, place.scope, one.name))
                yield one


def _listed_in(
    place: ConfigPlace, tell: Callable[[BadFile], object], *, is_last_try: bool = False
) -> list[ListedServer]:
    try:
        file = files.read(place)
        return [ListedServer(file, *one) for one in file.servers().items()] if file else []
    except BadFile as error:
        if not is_last_try:
            sleep(_PAUSE)  # perhaps a client is writing it
            return _listed_in(place, tell, is_last_try=True)
        tell(error)
        return []


def _row(one: ListedServer) -> tuple[str, ...]:
    filtered = "yes" if entries.is_filtered(one.entry) else "no"
    if filtered == "yes" and one.only_reports:
        filtered = "shadow"
    policy = shown(shlex.join(_policy_in(one.entry)))
    return one.place.client, one.place.scope, shown(one.name), filtered, shown(one.target), policy


def _policy_in(entry: ServerEntry) -> list[str]:
    """Return the flags of a filtered entry that say what is hidden, or where that is said."""
    with suppress(StartError):
        given = parse_flags(entries.flags_of(entry))
        return [word for name in given if name in _POLICY for word in typed_as(name, given[name])]
    return []


def _as_json(one: ListedServer) -> dict[str, object]:
    return {
        "client": one.place.client,
        "scope": one.place.scope,
        "file": str(one.place.file),
        "server": one.name,
        "target": one.target,
        "filtered": entries.is_filtered(one.entry),
        "shadow": entries.is_filtered(one.entry) and one.only_reports,
        "flags": entries.flags_of(one.entry),
    }


def _move(listed: ListedServer, flags: Sequence[str], path: str) -> tuple[ServerEntry, Moved]:
    """Return the new entry of the client, and the section for the old one. Raises StartError."""
    original, before = listed.original(), listed.moved()
    file = ServersFile.read(path)
    text = file.text
    policy, own = _policy_of(flags)
    name = moving.free_name(text, listed.name)
    if before and before.file.path == file.path:
        name, text = before.name, moving.without_section(text, before.name)
    words = [*_program(listed), "--server", name, *_naming(file, path)]
    text = moving.with_section(text, name, original, policy, listed.origin)
    return moving.entry_for(original, [*words, *own]), Moved(file, name, original, text)


def _naming(file: ServersFile, path: str) -> list[str]:
    """Return the flag that names a file of servers, unless it is the default one."""
    default = default_file(os.environ, may_be_missing=True)
    if default is not None and os.path.realpath(default) == str(file.path):
        return []
    return ["--config", os.path.abspath(os.path.expanduser(path))]


def _policy_of(flags: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Return what flags set in the section of a server, and those that are for the process."""
    policy: dict[str, object] = {}
    own: list[str] = []
    for name, values in parse_flags(flags).items():
        option = OPTIONS[name]
        if name in ("config", "server"):
            raise UsageError(f"--into writes --{name} itself", why=f"Leave out --{name}")
        if name in NOT_OF_A_SERVER:
            own += typed_as(name, values)
        elif option.value:
            policy[name] = values if option.many else values[-1]
        else:
            policy[name] = is_on({name: values[-1]}, name)
    return policy, own


# One entry for all servers


def _wrap_as_one(found: Sequence[ListedServer], flags: Sequence[str], typed: Given) -> int:
    """Move all entries into a file of servers, and leave one that starts all of them."""
    groups: dict[Path, list[ListedServer]] = {}
    for one in found:
        groups.setdefault(one.place.file, []).append(one)
    return max(_wrap_file(place, group, flags, typed) for place, group in groups.items())


def _wrap_file(
    place: Path, found: Sequence[ListedServer], flags: Sequence[str], typed: Given
) -> int:
    group = {one.name: one for one in found if not _starts_all(one)}
    if not group:
        say(f"Nothing to do: {place} starts all servers with one entry")
        return 0
    path, listed = typed["into"][-1], next(iter(group.values()))
    servers = ServersFile.read(path)
    process: list[str] = []

    def move(name: str, entry: ServerEntry, text: str) -> str:
        one = group[name]
        if (before := one.moved()) is not None and before.is_in(path) and not flags:
            return moving.marked(text, before.name, one.origin, name)
        if before is not None or entries.is_filtered(entry):
            raise entries.CannotWrap("It is filtered already", why="Unwrap it first")
        policy, own = _policy_of(flags or entries.flags_of(one.entry))
        section = moving.free_name(text, name)
        text = moving.with_section(text, section, entry, policy, one.origin, name)
        with suppress(UnsetVariable):  # the client may know it
            _settings_in(Moved(servers, section, entry, text))
        process.extend(word for word in own if word not in process)
        return text

    words = [*_program(listed), *one_entry.START, *_naming(servers, path)]
    originals = {name: one.original() for name, one in group.items()}
    change, is_all = one_entry.with_one(listed.file, originals, words, servers, move, process)
    return _save_all(listed, change, typed) or (0 if is_all else 1)


def _starts_all(listed: ListedServer) -> bool:
    return one_entry.file_of(listed.entry, "-") is not None


def _unwrap_one(listed: ListedServer, typed: Given) -> int:
    """Bring all entries back for the one that starts them."""
    default = default_file(os.environ, may_be_missing=True) or ""
    servers = ServersFile.read(one_entry.file_of(listed.entry, default) or default)
    change = one_entry.without_one(listed.file, listed.name, servers, listed.origin)
    return _save_all(listed, change, typed)


def _save_all(listed: ListedServer, change: one_entry.Change, typed: Given) -> int:
    """Show a change of all entries of a file, and save it. The sections are there first."""
    section = Moved(change.servers, "", {}, change.sections)
    print("\n".join(_diff(listed, listed.entry, change.text, [section])), flush=True)
    if "dry-run" in typed:
        return 0
    if "yes" not in typed and not _agrees():
        say("Nothing changed")
        return 1
    mode = stat.S_IMODE(os.stat(listed.place.file).st_mode)
    before = change.servers.text
    is_undone = len(change.sections) < len(before)
    saved = change.servers if is_undone else change.servers.save(change.sections, mode=mode)
    original = None if is_undone else listed.file.text
    try:
        listed.file.save(change.text, original=original)
    except BaseException:
        if not is_undone:
            saved.save(before)
        raise
    if is_undone:
        change.servers.save(change.sections)
    say(f"Saved {change.servers.path}")
    say(f"Saved {listed.place.file}")
    if not is_undone:
        undo = ["mcp-tool-filter", "unwrap", listed.place.client, "--all"]
        say(f"Restart {listed.place.client}. Undo: {shlex.join(undo)}")
    return 0


_POLICY = frozenset({*CHOICE, "lock", "rules", "new-tools", "server"})
_PATIENCE = "15000"  # milliseconds for a server to answer
_SHORTEST_SECRET = 4  # characters
_MOST_TRIES = 20
_PAUSE = 0.05  # seconds between them
_SECRETIVE = ("env", "envs", "environment", "headers", "http_headers")


def run_wrap(typed: Given) -> int:
    """Wrap a server, or all of a client; return the exit status."""
    found, others = _find(typed)
    if "pick" in typed and len(found) > 1:
        raise UsageError("--pick is for one server", why="Leave out --all, or name its --scope")
    flags = [] if "pick" in typed else _filter_flags(typed)
    into = typed.get("into", [""])[-1]
    if into and "all" in typed:
        return _wrap_as_one(found, flags, typed)

    def change(listed: ListedServer) -> int:
        chosen = flags
        if "pick" in typed and not (chosen := _picked_flags(listed, typed)):
            say("Nothing changed")
            return 1
        chosen = chosen or entries.flags_of(listed.entry)
        wrapped, section = entries.wrap(listed.original(), chosen, _program(listed)), None
        _refuse_a_bad_start(wrapped)
        if into:
            if not chosen and (there := listed.moved()) and there.is_in(into):
                return _change(listed, listed.entry, typed)
            wrapped, section = _move(listed, chosen, into)
            with suppress(UnsetVariable):  # the client may know it
                _settings_in(section)
        if "pick" not in typed:
            _say_what_is_hidden(listed, chosen, section, is_named="all" not in typed)
        return _change(listed, wrapped, typed, section)

    status = _for_each(found, change)
    for one in [] if status and len(found) == 1 else others:
        place = one.place
        say(
            f"Warning: {place.client} also lists {one.name} in {place.file}, without the filter."
            f" It may use that one: add --scope {place.scope}, or --scope all for both"
        )
    return status


def run_unwrap(typed: Given) -> int:
    """Restore a server, or all of a client; return the exit status."""
    found, _ = _find(typed, of_several=lambda one: one.is_undoable)
    if "all" in typed:
        found = [one for one in found if one.is_undoable or _starts_all(one)] or found[:1]
    return _for_each(
        found,
        lambda listed: (
            _unwrap_one(listed, typed)
            if _starts_all(listed)
            else _change(listed, listed.original(), typed)
        ),
    )


def _for_each(found: Sequence[ListedServer], change: Callable[[ListedServer], int]) -> int:
    """Change each entry; if there are several, an entry that cannot be changed stops no other."""
    status = 0
    for number, listed in enumerate(found):
        file = files.read(listed.place) if number else None  # the change before is in it
        try:
            status = change(replace(listed, file=file or listed.file)) or status
        except StartError as error:
            if len(found) == 1:
                raise
            say(f"Warning: {listed.name} stays as it is: {error.one_line}")
            status = 1
    return status


def _settings_for(listed: ListedServer, flags: Sequence[str], patience: str = "") -> Settings:
    """Return settings that start the server as the client would, filtered with these flags."""
    return settings_of(entries.wrap(listed.original(), flags, ["mcp-tool-filter"]), patience)


def settings_of(entry: ServerEntry, patience: str = "") -> Settings:
    """Return the settings with which an entry starts the filter. Raises StartError.

    ``patience`` is for how long to wait for it, in milliseconds, unless a flag says so.
    """
    words, variables = entries.start_of(entry)
    given = parse_flags([entries.expanded(word, os.environ) for word in words])
    if patience:
        given.setdefault("connection-timeout", [patience])
    values = {name: entries.expanded(value, os.environ) for name, value in variables.items()}
    if "server" in given:
        return chosen(given, {**os.environ, **values})
    if COMMAND not in given:
        return settle(gather(given, _home() | variables))  # the filter expands its headers itself
    if values:
        given["env"] = [f"{name}={value}" for name, value in values.items()]
    if isinstance(folder := entry.get("cwd"), str):
        given["cwd"] = [folder]
    return settle(gather(given, _home()))


def _home() -> dict[str, str]:
    """Return the variables that say where the default config file is."""
    names = ("HOME", "XDG_CONFIG_HOME", "APPDATA")
    return {name: os.environ[name] for name in names if name in os.environ}


def _say_what_is_hidden(
    listed: ListedServer, flags: Sequence[str], section: Moved | None, *, is_named: bool
) -> None:
    """Ask the server once: a pattern that hides nothing, or everything, is seldom meant.

    A project's file may come from anybody: we start its command only if the user has named it.
    """
    from mcp_tool_filter.cli.commands.look import ask_now, marks_of  # unwrap need not wait for it
    from mcp_tool_filter.core.process.sentences import counted_items, warnings_in

    if not is_named and listed.place.scope == "project":
        why = "it is in a project's file; wrap it by its name"
        say(f"{listed.name} was not asked for its tools: {why}")
        return
    try:
        settings = _settings_in(section) if section else None
        settings = settings or _settings_for(listed, flags, _PATIENCE)
        known, config = ask_now(settings), settings.config()
    except StartError as error:
        say(f"{listed.name} was not asked for its tools, or did not answer: {error.why}")
        return
    if not known.who.is_listed:
        say(f"{listed.name} lists its tools only after a login")
        return
    refuse_start(config, [known.snapshot])
    items = known.snapshot.catalog
    hidden = len(known.snapshot.denied)
    would = "would be " if known.who.is_shadow else ""
    say(f"{count(len(known.tools), 'tool')}: {hidden} {would}hidden")
    if said := marks_of(one.mark for one in known.tools if one.is_exposed):
        say(f"The others: {said}")
    for _, said in counted_items(items, is_shadow=known.who.is_shadow):
        say(said)
    if known.who.is_shadow:
        say("Warning: nothing is enforced: with --shadow, the filter only reports")
    if known.tools and not (hidden or any(one.pattern for one in items)):
        say("Warning: no tool is hidden")
    for warning in warnings_in(known.snapshot):
        say(warning)


def _settings_in(section: Moved) -> Settings:
    """Return the settings of a server in a file that is not saved yet. Raises StartError."""
    file = parse_file(str(section.file.path), section.text.encode())
    sources = Sources(file, {}, {"connection-timeout": [_PATIENCE]}, os.environ)
    return sources.of_server(section.name, is_stdio=True)


def _picked_flags(listed: ListedServer, typed: Given) -> list[str]:
    """Let the user pick tools, those that are hidden now marked; return the flags, or nothing.

    A pattern that is there stays: it may be meant for tools that come later.
    """
    from mcp_tool_filter.cli.commands.look import ask_now, choose
    from mcp_tool_filter.core.policy.choice import NOT_ALLOWED, switched

    before = entries.flags_of(listed.entry)
    settings = _settings_for(listed, before)
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
        flags += typed_as(name, values) if name not in gone else []
    return [*flags, *_typed_flags(typed)]


def _filter_flags(typed: Given) -> list[str]:
    """Return the flags for the filter, checked as at its start."""
    from mcp_tool_filter.cli.parsing import parse_config

    config = parse_config(texts_of(typed, (*CHOICE, "lock")))
    if config.denies_nothing and "into" not in typed:
        why = "Or what to keep: --allow PATTERN, --read-only; or choose in the terminal: --pick"
        raise UsageError("Say what to hide: --deny PATTERN", why=why)
    return _typed_flags(typed)


def _typed_flags(typed: Given) -> list[str]:
    # The client starts the filter in a folder that we do not know.
    locks = [os.path.abspath(os.path.expanduser(file)) for file in typed.get("lock", ())]
    more = typed.get("flag", [])
    parse_flags(more)
    flags = [word for name in (*CHOICE, "shadow") for word in typed_as(name, typed.get(name, ()))]
    return [*flags, *typed_as("lock", locks), *more]


def _refuse_a_bad_start(wrapped: ServerEntry) -> None:
    """Refuse what the filter would not start with: the client would only show a failed server."""
    words, variables = entries.start_of(wrapped)
    known = {name: _with_values(text) for name, text in variables.items()}
    given = gather(parse_flags([_with_values(word) for word in words]), _home() | known)
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
    return re.sub(r"\$\{(?:[^$}]|\$+[^${}])*\$*\}", "1", text)


def _find(
    typed: Given, of_several: Callable[[ListedServer], bool] = lambda _one: False
) -> tuple[list[ListedServer], list[ListedServer]]:
    """Return the entries that are meant: one, or with --all or --scope all several.

    If several have the name, the only one that is ``of_several`` is meant.
    Return also other entries with their names that are not filtered: the client may use those.
    """
    client, *named = typed[WORDS]
    scope = typed.get("scope", [""])[-1]
    unreadable: list[BadFile] = []
    in_client = list(find_servers(client, unreadable.append))
    if unreadable and not in_client:
        raise unreadable[0]
    for error in unreadable:
        _warn_of(error)
    in_scope = [one for one in in_client if scope in ("", "all", one.place.scope)]
    if bool(named) == ("all" in typed):
        why = "mcp-tool-filter clients lists them; --all means all of a client"
        raise UsageError("Name the client and the server: CLIENT SERVER", why=why)
    if not in_client:
        raise UsageError(f"{client} has no MCP servers", why="mcp-tool-filter clients shows all")
    server = named[0] if named else ""
    found = [one for one in in_scope if not server or one.name == server]
    listed = [one for one in in_client if not server or one.name == server]
    scopes = " or ".join(f"--scope {one.place.scope}" for one in listed)
    if not listed:
        known = sorted({one.name for one in in_client})
        kind = f"server of {client} called"
        raise no_such(kind, server, known, help="mcp-tool-filter clients")
    if not found:
        what = f"{client} does not list {server or 'a server'} in scope {scope}"
        raise UsageError(what, why=f"Try {scopes}")
    is_one = bool(server) and scope != "all"
    if is_one and len(fitting := list(filter(of_several, found))) == 1:
        found = fitting
    if is_one and len(found) > 1:
        why = f"Add {scopes}, or --scope all for all of them"
        raise UsageError(f"{client} lists {server} {len(found)} times", why=why)
    names = [one.name for one in found]
    others = [one for one in in_client if one not in found and one.name in names]
    return found, [one for one in others if not entries.is_filtered(one.entry)]


def _program(listed: ListedServer) -> list[str]:
    """Return the command that starts the filter: its name in a shared file, else its path.

    Desktop programs do not have the shell's PATH.
    """
    found = shutil.which("mcp-tool-filter")
    if listed.place.scope == "project" and found:
        return ["mcp-tool-filter"]
    beside = Path(sys.executable).parent / "mcp-tool-filter"
    if path := found or shutil.which(beside):
        return [str(Path(path).absolute())]
    return [sys.executable, "-m", "mcp_tool_filter"]


def _change(
    listed: ListedServer, entry: ServerEntry, typed: Given, section: Moved | None = None
) -> int:
    """Change the client's entry, and the files of servers that it is or will be in."""
    place, name = listed.place, listed.name
    after = replace(listed, entry=entry)
    if entry == listed.entry and (section is None or section.text == section.file.text):
        say(f"Nothing to do: {name} in {place.file} is {_state_of(after)}")
        return 0
    text = _text_with(listed.file, name, entry)
    gone = _section_to_remove(listed.moved(), section)
    print("\n".join(_diff(listed, entry, text, filter(None, (section, gone)))), flush=True)
    program = next(iter(entries.words_of(entry)), "")
    if place.scope == "project" and after.is_undoable and os.path.isabs(program):
        say(f"Warning: {place.file} may be shared, and {program} is only on this machine")
    if "dry-run" in typed:
        return 0
    if "yes" not in typed and not _agrees():
        say("Nothing changed")
        return 1
    mode = stat.S_IMODE(os.stat(place.file).st_mode)
    # The new section is there before a client names it, and the old one after.
    if section:
        is_secret = any(_secrets_in(section.original))
        saved = section.file.save(section.text, mode=mode if is_secret else 0o777)
    try:
        _save(listed, entry, text)
    except BaseException:
        if section:
            saved.save(section.file.text)
        raise
    if section:
        say(f"Saved {section.file.path}")
    if gone:
        gone.file.save(gone.text)
        say(f"Saved {gone.file.path}")
    kept = files.backup_of(place.file)
    say(f"Saved {place.file}")
    if kept.exists():
        say(f"The file without the filter is kept at {kept}")
    if after.is_undoable:
        undo = ["mcp-tool-filter", "unwrap", place.client, name]
        if "scope" in typed or "all" in typed:  # others may have the name
            undo += ["--scope", place.scope]
        say(f"Restart {place.client}. Undo: {shlex.join(undo)}")
        if entries.logs_in(after.original()):
            say("The client logged in to this server by itself. Now the filter needs a login:")
            say(f"mcp-tool-filter login {shlex.quote(after.target)}")
    return 0


def _section_to_remove(old: Moved | None, new: Moved | None) -> Moved | None:
    """Return the section that nobody needs after the change, with the file's text without it."""
    if not old or (new and (new.file.path, new.name) == (old.file.path, old.name)):
        return None
    users = {  # two clients may read the same file
        (one.place.file, one.place.keys, one.name)
        for one in find_servers()
        if one.named[0] == old.name and old.is_in(one.named[1])
    }
    if len(users) > 1:
        say(f"{old.file.path} keeps the section {old.name}, which another entry starts")
        return None
    return replace(old, text=moving.without_section(old.file.text, old.name))


def _state_of(listed: ListedServer) -> str:
    if listed.is_undoable:
        only = ", and only reports (--shadow)" if listed.only_reports else ""
        return f"already wrapped like this{only}"
    return "filtered, but not by wrap" if entries.is_filtered(listed.entry) else "not wrapped"


def _save(listed: ListedServer, entry: ServerEntry, text: str) -> None:
    """Save the change; make it again if a client saves its file at the same time."""
    file = listed.file
    for _ in range(_MOST_TRIES):
        try:
            return file.save(
                text, original=_without_filter(replace(listed, file=file, entry=entry))
            )
        except EditedFile:
            sleep(_PAUSE)
            newer = files.read(file.place)
            try:
                found = newer.servers().get(listed.name) if newer else None
            except BadFile:  # half of it is written
                continue
            if newer is None or found != listed.entry:
                raise  # the entry itself is another one
            file = newer
            text = _text_with(file, listed.name, entry)
    raise EditedFile(
        f"{file.place.file} is saved again and again", why="Close the client, and try again"
    )


def _text_with(file: ClientFile, name: str, entry: ServerEntry) -> str:
    """Return the file's text with another entry; if the backup has that, as it is spelt there."""
    backup, old = _backup_of(file), file.servers()[name]
    if backup is None:
        return file.with_entry(name, entry)
    try:
        if spelt := file.restored(name, backup, entry):
            return spelt
        # With one filter after another, comments would be lost.
        original = ListedServer(file, name, old).original()
        bare = file.restored(name, backup, original) if original != old else None
    except StartError:  # a broken backup
        bare = None
    return (ClientFile(file.place, b"", bare) if bare else file).with_entry(name, entry)


def _backup_of(file: ClientFile) -> ClientFile | None:
    try:
        raw = files.backup_of(file.place.file).read_bytes()
        return ClientFile(file.place, raw, raw.decode())
    except (OSError, UnicodeDecodeError):
        return None


def _without_filter(changed: ListedServer) -> str | None:
    """Return the file as it would be without the filter; None if the change makes it that."""
    is_needed, text = changed.is_undoable, changed.file.text
    for place in files.places(files.Whereabouts.of_this_process()):
        # for example, of the user and of one project
        file = ClientFile(place, b"", text)
        for name, entry in file.servers().items() if place.file == changed.place.file else ():
            one = ListedServer(file, name, entry)
            if one.is_undoable:
                is_changed = (place.keys, name) == (changed.place.keys, changed.name)
                is_needed = is_needed or not is_changed
                text = _text_with(ClientFile(place, b"", text), name, one.original())
    return text if is_needed else None


def _agrees() -> bool:
    if not is_terminal(sys.stdin):
        raise UsageError("Cannot ask you: there is no terminal", why="Add --yes to make the change")
    print("Make this change? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _diff(
    listed: ListedServer, entry: ServerEntry, text: str, sections: Iterable[Moved]
) -> list[str]:
    """Return the changes as diffs with masked secrets, because they may be shown to others."""
    edits = [(one.file.text, one.text, str(one.file.path)) for one in sections]
    lines = [
        line
        for old, new, name in [(listed.file.text, text, str(listed.place.file)), *edits]
        for line in difflib.unified_diff(
            old.splitlines(), new.splitlines(), name, "with the change", lineterm="", n=2
        )
    ]
    # The lines around the change, or the same line, may be about other servers.
    secrets = {*_secrets_in(listed.file.whole()), *_secrets_in(entry)}
    for old, new, _ in edits:
        secrets.update(_secrets_in({"old": moving.servers_in(old), "new": moving.servers_in(new)}))
    from mcp_tool_filter.rooms.secrets.finder import SecretFinder, redact

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
        elif key == "header" and isinstance(member, list):
            yield from _spellings_of(dict(str(one).partition(": ")[::2] for one in member))
        else:
            yield from _secrets_in(member)


def _spellings_of(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET and name != entries.WAS:
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
