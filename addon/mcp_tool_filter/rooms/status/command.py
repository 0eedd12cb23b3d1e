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

from mcp_tool_filter.cli.commands.look import KnownTools, ask
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
    Colour,
    count,
    is_terminal,
    on_signals,
    print_table,
    progress,
    say,
    shortened,
)
from mcp_tool_filter.core.errors import ListsAfterLogin, LockError, StartError, printable
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.choice import Choice
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.statistics import JsonObject
from mcp_tool_filter.core.upstream.target import login_to
from mcp_tool_filter.rooms.clients.command import bare_settings_of
from mcp_tool_filter.rooms.clients.entries import is_filtered, key_of, start_of
from mcp_tool_filter.rooms.clients.filtering import (
    NOT_FILTERED,
    Filtered,
    Filtering,
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
    key: str | None = None
    """What the filter reports that the entry of a client starts."""
    filtering: Filtering = NOT_FILTERED
    """What the entry of a client says about the filter."""
    target: str = "?"
    settings: Settings | None = None
    is_reached: bool | None = None
    problem: str = ""
    known: KnownTools | None = None
    login: str | None = None
    running: list[JsonObject] = field(default_factory=list)
    """What running filters say about this server, each with its process."""

    @property
    def is_asked(self) -> bool:
        """True once it has answered, or has had its time, or is not to be asked."""
        return self.find_settings is None or bool(self.known or self.problem)

    @property
    def tokens(self) -> int | None:
        """What its tools take of every conversation."""
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
    filtered = [row_of(listed) for listed in find_servers() if is_filtered(listed.entry)]
    rows = [*rows_of_file(sources), *filtered]
    patience = typed.get("timeout", [_PATIENCE])[-1]
    parse_number("timeout", patience, least=1)
    with progress(f"Asking {count(len(rows), 'server')} …"):
        asyncio.run(ask_all(rows, patience))
    rows += _join_running(rows, running_filters())
    dead = _dead_patterns(rows, sources)
    found = [as_json(row, dead(row)) for row in rows]
    if "json" in typed:
        print(json.dumps(found, indent=2))
    elif found:
        _print(found)
    else:
        say("There is no server in the config file, no filter in a client's file, and none runs")
    return 1 if any(one["reachable"] is False for one in found) else 0


# Who is there


def rows_of_file(sources: Sources) -> Iterator[StatusRow]:
    if (file := sources.file) is None:
        return
    for name, section in file.servers.items():
        row = StatusRow(name, os.path.basename(file.path), file.path)
        row.find_settings = partial(sources.of_server, name, is_stdio=True)
        row.shared_by = os.path.realpath(file.path), name
        url, command = section.get("upstream"), section.get(COMMAND, [])
        row.target = shown_url(url[-1]) if url else shown_command(command)
        yield row


def row_of(listed: ListedServer) -> StatusRow:
    place = listed.file.place
    row = StatusRow(listed.name, f"{place.client} ({place.scope})", str(place.file))
    row.clients, row.target, row.key = [place.client], listed.target, key_of(listed.entry)
    row.filtering = filtering_of(listed.entry)
    if place.scope == "project":
        row.problem = f"Not asked: {_IN_PROJECT}"
        return row
    if file_of(listed.entry, "-") is not None:
        row.problem = "It starts all servers of its file, which are listed on their own"
        return row
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


def _dead_patterns(rows: Sequence[StatusRow], sources: Sources) -> Callable[[StatusRow], list[str]]:
    """Return what tells the patterns of a row that match nothing.

    A pattern for all servers of the file counts only if it matches nowhere.
    """
    if sources.file is None:
        return _unmatched
    try:
        for_all = _patterns(sources.for_all_servers())
    except StartError:  # each server of the file says so
        return _unmatched
    known = [row for row in rows if row.known and row.settings]
    alive = {
        text
        for row in known
        for text in for_all & _patterns(row.settings)
        if text not in _unmatched(row)
    }
    return lambda row: [text for text in _unmatched(row) if text not in alive]


def _patterns(settings: Settings | None) -> set[str]:
    try:
        choice = settings.config().choice if settings else Choice()
    except LockError:  # its row says so
        return set()
    return {one.text for one in (*choice.deny, *(choice.allow or ()), *choice.exceptions)}


def _unmatched(row: StatusRow) -> list[str]:
    return [pattern.text for pattern in row.known.snapshot.unmatched] if row.known else []


# What runs


def _join_running(rows: Sequence[StatusRow], filters: Iterable[JsonObject]) -> list[StatusRow]:
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
    if row.clients:
        return row.key is not None and filter.get("entry") == row.key
    section = filter.get("config_file"), server.get("name")
    return section == (os.path.realpath(row.file), row.name)


# How it is shown


def as_json(row: StatusRow, dead: list[str], clients: Sequence[str] = ()) -> JsonObject:
    """Return a row as JSON; ``clients`` are those that list it.

    This format is stable: members may be added, none changes.
    """
    said = next((one for one in row.running if one.get("exposed") is not None), {})
    exposed, hidden = said.get("exposed"), said.get("hidden")
    waiting = next((int(one.get("waiting") or 0) for one in row.running), 0)
    is_shadow = any(one.get("shadow") is True for one in row.running)
    if row.known:
        snapshot = row.known.snapshot
        exposed, hidden = len(snapshot.allowed), len(snapshot.denied)
        waiting = len(snapshot.locked)
    if row.settings:
        with suppress(LockError):
            is_shadow = row.settings.config().shadow
    is_shadow = is_shadow or row.filtering.answer is Filtered.WATCHED
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
        "dead_patterns": dead,
        "lock": str(lock) if lock else None,
        "waiting": waiting,
        "login": row.login,
        "shadow": is_shadow,
        "filtered": row.filtering.answer if row.clients else None,
        "by": list(row.filtering.by),
        "running": row.running,
        "clients": list(clients) or row.clients,
        "tools": exposed,
        "tokens": row.tokens,
        "hints": row.hints,
    }


_HEAD = ("SERVER", "FROM", "REACHED", "TOOLS", "NOTES")
_WIDTHS = (18, 20, 7, 14, 13)  # 80 with two blanks between


def _print(rows: Sequence[JsonObject]) -> None:
    """Print the table; to stderr, what does not fit into it."""
    cells = [_cells(row) for row in rows]
    fitting = [tuple(map(shortened, one, _WIDTHS)) for one in cells]
    print_table(
        _HEAD,
        fitting if is_terminal(sys.stdout) else cells,
        lambda row: Colour.RED if row[2] == "no" else None,
        always_has_head=True,
    )
    sys.stdout.flush()
    for row in rows:
        for line in _lines_about(row):
            say(f"{shown(row['name'])}: {line}")


def _cells(row: JsonObject) -> tuple[str, ...]:
    exposed, hidden, waiting = row["exposed"], row["hidden"], row["waiting"]
    tools = "?" if exposed is None else f"{exposed}, {hidden} hidden" if hidden else f"{exposed}"
    notes = [
        "login needed" if row["login"] == "needed" else "",
        f"{len(row['running'])} running" if row["running"] else "",
        f"{len(row['dead_patterns'])} dead" if row["dead_patterns"] else "",
        f"{waiting} waiting" if waiting else "locked" if row["lock"] else "",
        "only watched" if row["shadow"] else "",
    ]
    reached = {True: "yes", False: "no", None: "?"}[row["reachable"]]
    said = ", ".join(filter(None, notes))
    return shown(row["name"]), shown(row["source"]), reached, tools, said


def _lines_about(row: JsonObject) -> Iterator[str]:
    if problem := row["problem"]:
        yield f"not reached: {problem}" if row["reachable"] is False else problem
    if row["login"] == "needed":
        yield f"mcp-tool-filter login {row['target']}"
    if waiting := row["waiting"]:
        are = "waits" if waiting == 1 else "wait"
        yield f"{count(waiting, 'tool')} {are} for approval: mcp-tool-filter help lock"
    for pattern in row["dead_patterns"]:
        yield f'the pattern "{pattern}" matches no tool'
    for one in row["running"]:
        said = f"runs as {one['pid']}: {count(one.get('calls') or 0, 'call')}"
        said += f", {one.get('refused') or 0} refused"
        for label, key in (("audit log", "audit_log"), ("page", "dashboard")):
            said += f", {label} {printable(str(one[key]))}" if one.get(key) else ""
        yield said


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
