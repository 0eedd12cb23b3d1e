"""The servers of all clients, each once, and the lines that show them.

What is needed to ask a server is imported by ``command``: the first lines are there before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.settings import default_file
from mcp_tool_filter.cli.terminal import count, shortened
from mcp_tool_filter.core.errors import StartError, printable
from mcp_tool_filter.rooms.clients import entries, moving, one_entry
from mcp_tool_filter.rooms.clients.listed import ListedServer, find_servers
from mcp_tool_filter.rooms.clients.moving import ServersFile

if TYPE_CHECKING:
    from mcp_tool_filter.cli.commands.look import KnownTools
    from mcp_tool_filter.cli.dead import DeadPatterns
    from mcp_tool_filter.core.process.statistics import JsonObject
    from mcp_tool_filter.rooms.status.command import StatusRow

_NAMES = {"vscode": "VS Code", "lmstudio": "LM Studio", "opencode": "opencode", "goose": "goose"}
KEYS = "[p] pick tools    [w] only watch    [u] undo    [q] quit"


@dataclass(slots=True)
class ListedOnce:
    """A server as one or several clients list it."""

    name: str
    identity: object
    """What two clients must have alike for it to be one server."""
    listed: list[ListedServer] = field(default_factory=list)
    section: str = ""
    """Its name in a file of servers, if one entry starts all of them."""
    row: StatusRow | None = None
    """What it has said."""
    running: list[JsonObject] = field(default_factory=list)
    """What running filters say about it."""

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(one.place.client for one in self.listed))

    @property
    def is_known(self) -> bool:
        return self.row is not None and self.row.is_asked

    @property
    def known(self) -> KnownTools | None:
        return self.row.known if self.row else None

    @property
    def tools(self) -> int:
        if self.row and self.row.counted:
            return self.row.counted[0]
        return len(self.known.exposed) if self.known else 0

    @property
    def tokens(self) -> int:
        return self.row.tokens or 0 if self.row else 0


def find_all() -> list[ListedOnce]:
    """Return the servers of all clients; what two clients have alike under one name is one."""
    found: dict[object, ListedOnce] = {}
    for listed in find_servers():
        if listed.entry.get("disabled") is True or listed.entry.get("enabled") is False:
            continue
        for one in _servers_of(listed):
            same = found.setdefault((one.name, one.identity), one)
            same.listed.append(listed)
    return list(found.values())


def _servers_of(listed: ListedServer) -> Iterator[ListedOnce]:
    path = one_entry.file_of(listed.entry, default_file(os.environ) or "")
    if path is None:
        yield ListedOnce(listed.name, _identity(listed))
        return
    try:
        sections = moving.servers_in(ServersFile.read(path).text)
    except StartError:
        sections = {}
    for name in sections:
        yield ListedOnce(name, (os.path.realpath(path), name), section=name)


def _identity(listed: ListedServer) -> object:
    try:
        original = listed.original()
    except StartError:
        original = listed.entry
    held = entries.holder_of(original)
    variables = entries.environment_of(original) | entries.environment_of(held)
    words = [entries.url_of(original), *entries.words_of(original), *entries.headers_of(original)]
    flags = entries.words_of_filter(listed.entry) if original != listed.entry else []
    return repr((words, sorted(variables.items(), key=str), original.get("cwd"), flags))


def grouped(rows: Iterable[StatusRow]) -> list[ListedOnce]:
    """Return the servers of these rows; an entry that starts a section of a file is that."""
    found: dict[object, ListedOnce] = {}
    starting: list[tuple[ListedServer, str]] = []
    of_file: dict[str, list[ListedOnce]] = {}
    for row in rows:
        listed = row.listed
        path = one_entry.file_of(listed.entry, default_file(os.environ) or "") if listed else None
        if listed and path is not None:  # the rows of its file are there
            starting.append((listed, os.path.realpath(path)))
            continue
        identity: object = None
        if not row.members and (row.shared_by or listed):
            identity = row.shared_by or (_identity(listed) if listed else None)
        key = row.shared_by or ((row.name, identity) if listed else id(row))
        same = found.setdefault(key, ListedOnce(row.name, identity, row=row))
        if row.section and not row.members:
            same.name = row.name
            of_file.setdefault(row.section[0], []).append(same)
        same.listed += [listed] if listed else []
        same.running += [one for one in row.running if one not in same.running]
    for listed, path in starting:
        for one in of_file.get(path, []):
            one.listed.append(listed)
    return list(found.values())


def head_of(servers: Sequence[ListedOnce]) -> str:
    """Return the line about all servers; one that several clients have alike counts once."""
    once = list({repr(one.identity): one for one in servers if one.identity}.values())
    clients = dict.fromkeys(client for one in servers for client in one.clients)
    names = ", ".join(_NAMES.get(one, one.replace("-", " ").title()) for one in clients)
    files = (one.row.source for one in servers if one.row and one.identity and not one.listed)
    names = names or ", ".join(dict.fromkeys(files)) or "What runs"
    tools, tokens = sum(one.tools for one in once), sum(one.tokens for one in once)
    said = f"{count(len(once), 'server')}, {count(tools, 'tool')}, {count(tokens, 'token')}"
    return f"{names}: {said} in every conversation"


def lines_for(
    servers: Sequence[ListedOnce], width: int, dead: DeadPatterns | None = None
) -> list[str]:
    """Return the whole screen, the largest servers first; with ``dead`` patterns, what runs, too,
    and no keys."""
    waits = [one for one in servers if not one.is_known]
    ordered = sorted(servers, key=lambda one: (one in waits, one.row is None or not one.row.known))
    ordered.sort(key=lambda one: -one.tokens)
    ordered.sort(key=lambda one: one.identity is None)
    widest = min(24, max((len(printable(one.name)) for one in servers), default=0))
    lines = [head_of(servers), ""]
    for one in ordered:
        name = shortened(printable(one.name), widest)
        lines.append(f"  {name:{widest}}  {_said_by(one, dead)}")
    lines.append("")
    if waits:
        lines.append(f"  Asking {count(len(waits), 'server')} …    [q] quit")
    elif dead is not None:
        lines.append(f"  With --read-only: {_read_only(servers)}")
    else:
        read_only = f"[r] read-only: {_read_only(servers)}"
        is_wide = len(f"  {read_only}    {KEYS}") <= width
        lines += [f"  {read_only}    {KEYS}"] if is_wide else [f"  {read_only}", f"  {KEYS}"]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]


def _read_only(servers: Sequence[ListedOnce]) -> str:
    rows = {repr(one.identity): one.row for one in servers if one.row and one.row.known}.values()
    left = [row.read_only for row in rows if row]
    tools, tokens = sum(one[0] for one in left), sum(one[1] for one in left)
    return f"{count(tools, 'tool')}, {count(tokens, 'token')}"


def _said_by(server: ListedOnce, dead: DeadPatterns | None) -> str:
    row = server.row
    if row is None or not row.is_asked:
        return "…"
    notes = [*_notes_about(server, row, dead), row.says]
    if row.known is None and not row.counted:
        problem = printable(row.problem.replace("\n", ". "))
        if row.login == "needed":
            problem = f"login needed: mcp-tool-filter login {row.target}"
        return "   ".join(filter(None, [problem or row.target, *notes]))
    said = "   ".join(filter(None, notes))
    return f"{count(server.tools, 'tool'):>9} {count(server.tokens, 'token'):>14}   {said}"


def _notes_about(server: ListedOnce, row: StatusRow, dead: DeadPatterns | None) -> Iterator[str]:
    """Yield what is in force, and what runs."""
    snapshot = row.known.snapshot if row.known else None
    hidden = len(snapshot.denied) if snapshot else row.counted[1] if row.counted else 0
    if row.is_watched:
        yield "only watched"
    elif hidden:
        yield f"{hidden} hidden"
    if row.members and row.counted:
        yield f"together: {', '.join(row.members)}"
    if dead is None:
        return
    if waiting := len(snapshot.locked) if snapshot else 0:
        yield f"{waiting} waiting"
    if found := [one for one in dead.in_list(snapshot) if not one.is_shared]:
        yield f"{len(found)} dead"
    if server.running:
        yield f"{len(server.running)} running"
