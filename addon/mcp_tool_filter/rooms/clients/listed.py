"""The servers in the clients' files, each with what is known of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import sleep

from mcp_tool_filter.cli.settings import default_file
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.clients import entries, files, moving
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import BadFile, ClientFile, ConfigPlace
from mcp_tool_filter.rooms.clients.moving import ServersFile


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
    def key(self) -> tuple[object, ...]:
        """What tells the entry from all others; two clients may read the same file."""
        return self.place.file, self.place.keys, self.name

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

    @property
    def mark(self) -> str:
        """The key that ``wrap`` writes into the entry."""
        named = "\n".join([self.origin, *self.place.keys, self.name])
        return sha256(named.encode()).hexdigest()[:16]

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


def warn_of(error: BadFile) -> None:
    say(f"Warning: {': '.join(str(error).removeprefix('Error: ').splitlines())}")


def find_servers(
    client: str = "", tell: Callable[[BadFile], object] = warn_of
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


_PAUSE = 0.05  # seconds until a client has written its file
