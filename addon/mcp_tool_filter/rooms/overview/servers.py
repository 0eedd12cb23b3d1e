"""The servers of all clients, each once, and the lines that show them.

What is needed to ask a server is imported by ``command``: the first lines are there before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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


def head_of(servers: Sequence[ListedOnce]) -> str:
    """Return the line about all servers; one that several clients have alike counts once."""
    once = list({repr(one.identity): one for one in servers}.values())
    clients = dict.fromkeys(client for one in servers for client in one.clients)
    names = ", ".join(_NAMES.get(one, one.replace("-", " ").title()) for one in clients)
    tools, tokens = sum(one.tools for one in once), sum(one.tokens for one in once)
    said = f"{count(len(once), 'server')}, {count(tools, 'tool')}, {count(tokens, 'token')}"
    return f"{names}: {said} in every conversation"


def lines_for(servers: Sequence[ListedOnce], width: int) -> list[str]:
    """Return the whole screen, the largest servers first."""
    waits = [one for one in servers if not one.is_known]
    ordered = sorted(servers, key=lambda one: (one in waits, one.row is None or not one.row.known))
    ordered.sort(key=lambda one: -one.tokens)
    widest = min(24, max(len(printable(one.name)) for one in servers))
    lines = [head_of(servers), ""]
    for one in ordered:
        name = shortened(printable(one.name), widest)
        lines.append(f"  {name:{widest}}  {_said_by(one)}")
    lines.append("")
    if waits:
        lines.append(f"  Asking {count(len(waits), 'server')} …    [q] quit")
    else:
        read_only = _read_only(servers)
        is_wide = len(f"  {read_only}    {KEYS}") <= width
        lines += [f"  {read_only}    {KEYS}"] if is_wide else [f"  {read_only}", f"  {KEYS}"]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]


def _read_only(servers: Sequence[ListedOnce]) -> str:
    rows = {repr(one.identity): one.row for one in servers if one.row and one.row.known}.values()
    left = [row.read_only for row in rows if row]
    tools, tokens = sum(one[0] for one in left), sum(one[1] for one in left)
    return f"[r] read-only: {count(tools, 'tool')}, {count(tokens, 'token')}"


def _said_by(server: ListedOnce) -> str:
    row = server.row
    if row is None or not row.is_asked:
        return "…"
    if row.login == "needed":
        return f"login needed: mcp-tool-filter login {row.target}"
    if row.known is None:
        return printable(row.problem.replace("\n", ". "))
    notes = [row.says]
    hidden = len(row.known.snapshot.denied)
    if row.known.who.is_shadow:
        notes.append("only watched")
    elif hidden:
        notes.append(f"{hidden} hidden")
    said = "   ".join(filter(None, notes))
    return f"{count(server.tools, 'tool'):>9} {count(server.tokens, 'token'):>14}   {said}"
