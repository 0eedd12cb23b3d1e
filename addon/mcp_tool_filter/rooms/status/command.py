"""``mcp-tool-filter status``: every server of the config file and of your clients, and what runs.

Servers are asked at the same time. A project's file may come from anybody, so nothing in one is
started or asked: its entries are only listed, with what running filters say.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from mcp_tool_filter.cli.commands.look import KnownTools, ask
from mcp_tool_filter.cli.dead import DeadPatterns, PatternHolder
from mcp_tool_filter.cli.flags import COMMAND, Given, with_flags
from mcp_tool_filter.cli.report import tokens_in
from mcp_tool_filter.cli.settings import (
    Settings,
    Sources,
    default_file,
    parse_number,
    read_sources,
    target_of,
)
from mcp_tool_filter.cli.terminal import (
    count,
    is_terminal,
    on_signals,
    progress,
    say,
    width,
)
from mcp_tool_filter.core.errors import ListsAfterLogin, LockError, StartError, printable
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.statistics import JsonObject
from mcp_tool_filter.core.upstream.target import login_to
from mcp_tool_filter.rooms.clients.command import bare_settings_of
from mcp_tool_filter.rooms.clients.entries import is_filtered, key_of, start_of
from mcp_tool_filter.rooms.clients.filtering import (
    NOT_FILTERED,
    Filtered,
    Filtering,
    filtering_by,
    filtering_of,
    settings_of,
)
from mcp_tool_filter.rooms.clients.listed import ListedServer, find_servers
from mcp_tool_filter.rooms.clients.moving import server_named_in
from mcp_tool_filter.rooms.clients.one_entry import file_of
from mcp_tool_filter.rooms.secrets.shown import shown_command
from mcp_tool_filter.rooms.status.running import running_filters

_AT_ONCE = 16  # servers that are asked at the same time
_PATIENCE = "10000"  # milliseconds for a server to answer
_IN_PROJECT = "it is in a project's file"


@dataclass(slots=True)
class StatusRow:
    """A server as one file lists it, and what we find out about it."""

    name: str
    source: str
    file: str
    find_settings: Callable[[], Settings] | None = None
    """Raises StartError. None if the server is not to be asked."""
    shared_by: tuple[object, ...] = ()
    """The file and the name of the section that it is from, and what else decides: such rows share
    one answer."""
    clients: list[str] = field(default_factory=list)
    listed: ListedServer | None = None
    keys: frozenset[str] = frozenset()
    """What the filters report that the entries of clients start."""
    section: tuple[str, str] | None = None
    """The file of servers and the name there, which running filters report, too."""
    filtering: Filtering = NOT_FILTERED
    """What the entry of a client says about the filter."""
    target: str = "?"
    settings: Settings | None = None
    is_reached: bool | None = None
    problem: str = ""
    known: KnownTools | None = None
    login: str | None = None
    members: tuple[str, ...] = ()
    """The servers that it merges."""
    counted: tuple[int, int, int] | None = None
    """Of what merges others: how many tools are exposed and hidden, and the tokens."""
    running: list[JsonObject] = field(default_factory=list)
    """What running filters say about this server, each with its process."""

    @property
    def is_asked(self) -> bool:
        """True once it has answered, or has had its time, or is not to be asked."""
        return self.find_settings is None or bool(self.known or self.problem)

    @property
    def is_watched(self) -> bool:
        """True if a filter is there, and enforces nothing."""
        if self.filtering.answer is Filtered.WATCHED:
            return True
        if self.settings:
            return self.settings.texts["shadow"] == "true"
        return any(one.get("shadow") is True for one in self.running)

    @property
    def tokens(self) -> int | None:
        """What its tools take of every conversation."""
        if self.counted:
            return self.counted[2]
        return sum(tokens_in(one.size) for one in self.known.exposed) if self.known else None

    @property
    def read_only(self) -> tuple[int, int]:
        """How many tools it has that change nothing, and their tokens."""
        found = self.known.exposed if self.known else []
        left = [tool for tool in found if "read-only" in tool.mark.split(", ")]
        return len(left), sum(tokens_in(tool.size) for tool in left)

    @property
    def hints(self) -> dict[str, int]:
        """How many of its tools say what of themselves."""
        found = self.known.exposed if self.known else []
        said = Counter(one for tool in found if tool.mark for one in tool.mark.split(", "))
        return dict(said.most_common())

    @property
    def says(self) -> str:
        said = ", ".join(f"{number} {hint}" for hint, number in self.hints.items())
        return said or ("says nothing about its tools" if self.known and self.known.tools else "")


def run(typed: Given) -> int:
    """Print what is known; return 0 if all servers were reached that were asked, else 1."""
    if "open" in typed:
        asyncio.run(_serve_page(browser="no-browser" not in typed))
        return 0
    sources = read_sources(typed, os.environ)
    rows = list(map(row_of, find_servers()))
    files = [sources, *_other_files(sources, rows)]
    rows = [*chain.from_iterable(map(rows_of_file, files)), *rows]
    patience = typed.get("timeout", [_PATIENCE])[-1]
    parse_number("timeout", patience, least=1)
    with progress(f"Asking {count(len(rows), 'server')} …"):
        asyncio.run(ask_all(rows, patience))
    rows += [one for file in files for one in merged_rows(file, rows)]
    rows += join_running(rows, running_filters())
    dead = dead_patterns(rows, files)
    if "json" in typed:
        print(json.dumps([as_json(row, dead) for row in rows], indent=2))
    elif rows:
        _print(rows, dead)
    else:
        say("There is no server in the config file, none in a client's file, and no filter runs")
    return 1 if any(row.is_reached is False for row in rows) else 0


# Who is there


def _other_files(sources: Sources, rows: Iterable[StatusRow]) -> Iterator[Sources]:
    """Yield the files whose servers one entry of a client starts."""
    known = {os.path.realpath(sources.file.path) if sources.file else ""}
    for row in rows:
        is_own = row.listed and row.listed.place.scope != "project"
        path = file_of(row.listed.entry, "") if row.listed and is_own else None
        if path and os.path.isfile(path) and os.path.realpath(path) not in known:
            known.add(os.path.realpath(path))
            with suppress(StartError):  # a broken file: its row says so
                yield read_sources({"config": [path]}, os.environ)


def rows_of_file(sources: Sources) -> Iterator[StatusRow]:
    if (file := sources.file) is None:
        return
    for name, section in file.servers.items():
        row = StatusRow(name, os.path.basename(file.path), file.path)
        row.find_settings = partial(sources.of_server, name, is_stdio=True)
        row.section = row.shared_by = os.path.realpath(file.path), name
        url, command = section.get("upstream"), section.get(COMMAND, [])
        row.target = shown_url(url[-1]) if url else shown_command(command)
        yield row


def row_of(listed: ListedServer) -> StatusRow:
    place = listed.file.place
    row = StatusRow(listed.name, f"{place.client} ({place.scope})", str(place.file))
    row.clients, row.target, row.listed = [place.client], listed.target, listed
    row.filtering = filtering_of(listed.entry)
    if place.scope == "project":
        row.problem = f"Not asked: {_IN_PROJECT}"
        return row
    if file_of(listed.entry, "-") is not None:
        row.problem = "It starts all servers of its file, which are listed on their own"
        return row
    row.keys = frozenset(filter(None, [key_of(listed.entry)]))
    if is_filtered(listed.entry):
        row.find_settings = lambda: settings_of(listed.entry)
    else:
        row.find_settings = lambda: bare_settings_of(listed)
    if named := server_named_in(listed.entry):
        name, path = named
        words, variables = start_of(listed.entry)
        own = [word for word in words if word not in ("--server", name, "--config", path)]
        file = os.path.realpath(path or default_file(os.environ) or "")
        row.shared_by = (file, name, *own, *variables.items())
    return row


def merged_rows(sources: Sources, rows: Sequence[StatusRow]) -> Iterator[StatusRow]:
    """Yield rows for what the servers of the file are together: at ``/mcp`` and in profiles."""
    if (file := sources.file) is None or not file.servers:
        return
    from mcp_tool_filter.rooms.merged.examine import tools_of

    path = os.path.realpath(file.path)
    known = {row.name: row.known for row in rows if row.section and row.known}
    try:
        merging = file.how_to_merge()
    except StartError as error:
        yield StatusRow("merged", os.path.basename(file.path), file.path, problem=error.one_line)
        return
    for profile in merging.profiles:
        row = StatusRow(profile.name or "merged", os.path.basename(file.path), file.path)
        row.section = path, row.name
        row.target = f"serve, at {profile.path}: {', '.join(profile.servers)}"
        row.members = profile.servers
        if any(one in known for one in profile.servers):
            row.counted = tools_of(merging, profile, known)
        yield row


# What they say


async def ask_all(
    rows: Sequence[StatusRow], patience: str, tell: Callable[[], object] = lambda: None
) -> None:
    """Ask the servers side by side; ``tell`` is called after each answer."""
    gate = asyncio.Semaphore(_AT_ONCE)
    first: dict[object, StatusRow] = {}
    for row in rows:
        first.setdefault(row.shared_by or id(row), row)

    async def ask_one(key: object, row: StatusRow) -> None:
        await _ask(row, patience, gate)
        for one in rows:
            if (one.shared_by or id(one)) == key:
                for name in _ANSWER:
                    setattr(one, name, getattr(row, name))
        tell()

    await asyncio.gather(*(ask_one(*one) for one in first.items()))


_ANSWER = ("target", "settings", "is_reached", "problem", "known", "login")


async def _ask(row: StatusRow, patience: str, gate: asyncio.Semaphore) -> None:
    """Ask a server for its tools, and note the result in its row."""
    if row.find_settings is None:
        return
    row.is_reached = False
    try:
        async with gate:
            settings = row.find_settings()
            row.target = settings.shown_upstream
            settings.config()  # a bad pattern of one server must not hide the others
            row.settings = settings
            if not row.clients:
                row.filtering = filtering_by(settings)
            texts = settings.texts | dict.fromkeys(_TIMEOUTS, patience)
            settings = replace(settings, texts=texts)
            row.login = "stored" if not settings.command and login_to(target_of(settings)) else None
            row.known = await ask(settings, is_quiet=True)
            row.is_reached = True
    except ListsAfterLogin:
        row.is_reached, row.login = True, "needed"
        row.problem = "Its tools are listed after a login"
    except StartError as error:
        is_ours = row.settings is None or isinstance(error, LockError)
        row.problem = with_flags(f"{error.what}: {error.why}" if is_ours else error.why)
    except Exception as error:  # one server must not hide the others
        row.problem = f"Internal error: {error!r}"


_TIMEOUTS = ("connection_timeout", "tool_list_timeout")


def dead_patterns(rows: Sequence[StatusRow], files: Iterable[Sources] = ()) -> DeadPatterns:
    """Return the patterns that match nothing at any server that has them; one whose settings cannot
    be read has at least those at the top of its file."""
    top: dict[str, Sequence[Pattern]] = {}
    for one in files:
        with suppress(StartError):
            top |= {one.file.path: one.for_all_servers().config().patterns} if one.file else {}
    once = {row.shared_by or id(row): row for row in rows if row.settings or row.problem}
    return DeadPatterns(
        PatternHolder(
            _patterns(row.settings) if row.settings else top.get(row.file, ()),
            row.known.snapshot if row.known else None,
            row.shared_by[:2],
        )
        for row in once.values()
    )


def _patterns(settings: Settings | None) -> Sequence[Pattern]:
    try:
        return settings.config().patterns if settings else ()
    except LockError:  # its row says so
        return ()


# What runs


def join_running(rows: Sequence[StatusRow], filters: Iterable[JsonObject]) -> list[StatusRow]:
    """Note in each row what running filters say about it; return rows for the others."""
    others = []
    for filter in filters:
        if "problem" in filter:
            row = StatusRow(f"pid {filter['pid']}", "running", "", problem=str(filter["problem"]))
            others.append(row)
            continue
        process = {key: filter.get(key) for key in _OF_PROCESS}
        for server in filter["servers"]:
            said = process | {key: value for key, value in server.items() if key not in _OF_ROW}
            fitting = [row for row in rows if _is_about(filter, server, row)]
            for row in fitting:
                row.running.append(said)
            if not fitting:
                name = str(server.get("name") or server.get("server") or "unnamed")
                target = str(server.get("target") or "?")
                row = StatusRow(name, "running", "", target=target, running=[said])
                others.append(row)
    return others


_OF_ROW = ("name", "target", "exposed_tools", "hidden_tools")


_OF_PROCESS = ("pid", "started", "dashboard", "audit_log", "entry")


def _is_about(filter: JsonObject, server: JsonObject, row: StatusRow) -> bool:
    """Tell whether a filter was started by the entry of a row, or serves its section."""
    section = filter.get("config_file"), server.get("name")
    return filter.get("entry") in row.keys or section == row.section


# How it is shown


def as_json(row: StatusRow, dead: DeadPatterns, clients: Sequence[str] = ()) -> JsonObject:
    """Return a row as JSON; ``clients`` are those that list it.

    This format is stable: members may be added, none changes.
    """
    said = next((one for one in row.running if one.get("exposed") is not None), {})
    exposed, hidden = row.counted[:2] if row.counted else (said.get("exposed"), said.get("hidden"))
    waiting = next((int(one.get("waiting") or 0) for one in row.running), 0)
    snapshot = row.known.snapshot if row.known else None
    if snapshot:
        exposed, hidden = len(snapshot.allowed), len(snapshot.denied)
        waiting = len(snapshot.locked)
    lock = row.settings.texts.get("lock") if row.settings else None
    return {
        "name": row.name,
        "source": row.source,
        "file": row.file or None,
        "target": row.target,
        "reachable": row.is_reached,
        "problem": row.problem or None,
        "exposed": exposed,
        "hidden": hidden,
        "dead_patterns": [one.pattern.text for one in dead.in_list(snapshot)],
        "lock": str(lock) if lock else None,
        "waiting": waiting,
        "login": row.login,
        "shadow": row.is_watched,
        "filtered": row.filtering.answer if row.clients or row.settings else None,
        "by": list(row.filtering.by),
        "running": row.running,
        "clients": list(clients) or row.clients,
        "tools": exposed,
        "tokens": row.tokens,
        "hints": row.hints,
    }


def _print(rows: Sequence[StatusRow], dead: DeadPatterns) -> None:
    """Print the screen of all servers; to stderr, what does not fit into it."""
    from mcp_tool_filter.rooms.overview.servers import grouped, lines_for

    servers = grouped(sorted(rows, key=lambda row: not row.clients))
    columns = width() - 1 if is_terminal(sys.stdout) else 1000
    print("\n".join(lines_for(servers, columns, dead)), flush=True)
    for row in rows:
        for line in _lines_about(row, dead):
            say(f"{shown(row.name)}: {line}")
    for one in dead.shared:
        say(f"Warning: {one.says}")


def _lines_about(row: StatusRow, dead: DeadPatterns) -> Iterator[str]:
    if row.problem and row.find_settings:
        yield f"not reached: {row.problem}" if row.is_reached is False else row.problem
    if row.login == "needed":
        yield f"mcp-tool-filter login {row.target}"
    if waiting := len(row.known.snapshot.locked) if row.known else 0:
        are = "waits" if waiting == 1 else "wait"
        yield f"{count(waiting, 'tool')} {are} for approval: mcp-tool-filter help lock"
    for one in dead.in_list(row.known.snapshot if row.known else None):
        if not one.is_shared:
            yield one.says
    for said in row.running:
        calls = f"runs as {said['pid']}: {count(said.get('calls') or 0, 'call')}"
        calls += f", {said.get('refused') or 0} refused"
        for label, key in (("audit log", "audit_log"), ("page", "dashboard")):
            calls += f", {label} {printable(str(said[key]))}" if said.get(key) else ""
        yield calls


# The page


async def _serve_page(*, browser: bool) -> None:
    """Serve a page with all running filters until Ctrl+C or SIGTERM."""
    import webbrowser

    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.rooms.page.dashboard import Dashboard, Switches, dashboard_server

    state: dict[str, object] = {"listeners": [], "refused_edit": "", "only_running": True}
    nothing = Switches(Config, list, lambda _deny, _except: "There is nothing to edit")
    page = Dashboard(lambda: state, nothing)
    said: list[str] = []
    async with dashboard_server(page, 0, said.append):
        over = asyncio.Event()
        on_signals(asyncio.get_running_loop(), over.set, hangup=True)
        say(f"{said[0]}\nCtrl+C ends the page, not the filters")
        if browser and not await asyncio.to_thread(webbrowser.open, said[0].partition(" ")[2]):
            say("Cannot open a browser: open the page yourself")
        await over.wait()
