"""``wrap CLIENT --all --into FILE``: one entry, ``serve --stdio``, for all servers of a client.

Each entry moves into the servers' file, with the comment that keeps the old one. ``unwrap`` brings
all of them back, and cuts their sections out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.clients import entries, files, moving
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import BadFile, ClientFile
from mcp_tool_filter.rooms.clients.listed import ListedServer
from mcp_tool_filter.rooms.clients.moving import ServersFile

NAME = "mcp-tool-filter"
START = ("serve", "--stdio")


@dataclass(frozen=True, slots=True)
class ClientChange:
    """What a client's file and the servers' file shall say."""

    client: ClientFile
    text: str
    servers: ServersFile
    sections: str
    original: str | None = None
    """The client's file without the filter, to be kept as its backup."""


def file_of(entry: ServerEntry, default: str) -> str | None:
    """Return the servers' file of an entry that starts all its servers; None for another one."""
    words = entries.words_of_filter(entry) or []
    if tuple(words[:2]) != START:
        return None
    named = [after for word, after in pairwise(words) if word == "--config"]
    return named[0] if named else default


def with_one(
    client: ClientFile,
    found: Mapping[str, ServerEntry],
    words: Sequence[str],
    servers: ServersFile,
    text: str,
    move: Callable[[str, ServerEntry, str], str],
    more: Sequence[str],
) -> tuple[ClientChange, bool]:
    """Move all that can be moved; tell whether that is all of them.

    ``found`` are the entries without the filter; ``text`` is what the servers' file says; ``move``
    returns that with one more section. ``more`` are words that the moved entries have for the
    process, too. Raises StartError if none can be moved.
    """
    moved = list[str]()
    for name, entry in found.items():
        try:
            text = move(name, entry, text)
            moved.append(name)
        except StartError as error:
            say(f"Warning: {name} stays as it is: {error.one_line}")
    if not moved:
        raise BadFile("No server can be moved", why="See the warnings")
    kept = {key: one for key, one in client.servers().items() if key not in moved}
    free = NAME if NAME not in kept else f"{NAME}-2"
    model = next((found[one] for one in moved if not entries.url_of(found[one])), found[moved[0]])
    entry = moving.entry_for(_plain(model), [*words, *more])
    entry = entries.with_key(entry, ListedServer(client, free, entry).mark)
    new = client.with_servers(kept | {free: entry})
    change = ClientChange(client, new, servers, text, client.text)
    return change, len(moved) == len(found)


def _plain(entry: ServerEntry) -> ServerEntry:
    """Return what a client needs of an entry besides its words."""
    return {key: one for key, one in entry.items() if key in ("type", "command", "args", "url")}


def without_one(
    client: ClientFile, name: str, servers: ServersFile, text: str, origin: str
) -> ClientChange:
    """Bring all entries back; ``text`` is what the servers' file says. Raises StartError."""
    restored: dict[str, ServerEntry] = {}
    for section in moving.servers_in(text):
        name_there = moving.listed_as(text, section, origin)
        original = moving.moved_from(text, section, origin) if name_there else None
        if original is not None:
            restored[name_there] = original
            text = moving.without_user(text, section, origin)
    if not restored:
        raise BadFile(f"{servers.path} keeps no entry of {client.place.file}", why="Undo by hand")
    kept = {key: one for key, one in client.servers().items() if key != name}
    new = client.with_servers(kept | restored)
    backup = files.backup_of(client.place.file)
    if backup.exists():
        before = replace(client, text=backup.read_text("utf-8"))
        if before.servers() == kept | restored:
            new = before.text
    return ClientChange(client, new, servers, text)
