"""``mcp-tool-filter clients``: the MCP servers in your clients' files, and which are filtered."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_tool_filter.adapters.client_files.entries import (
    ServerEntry,
    flags_of,
    is_filtered,
    target_of,
)
from mcp_tool_filter.adapters.client_files.files import BadFile, ClientFile, read
from mcp_tool_filter.adapters.client_files.places import Surroundings, places
from mcp_tool_filter.cli.flags import Given
from mcp_tool_filter.cli.terminal import Colour, columns, is_terminal, paint, say
from mcp_tool_filter.policy.snapshot import shown


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
        print("\n".join(_table(found)))
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


def _table(found: Sequence[ListedServer]) -> Iterator[str]:
    terminal = is_terminal(sys.stdout)
    rows = [_row(one) for one in found]
    head, *lines = columns(
        [("CLIENT", "SCOPE", "SERVER", "FILTERED", "COMMAND OR URL"), *rows], is_terminal=terminal
    )
    if terminal:
        yield paint(head, Colour.BOLD)
    yield from lines


def _row(one: ListedServer) -> tuple[str, ...]:
    place = one.file.place
    filtered = "yes" if is_filtered(one.entry) else "no"
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
        "flags": flags_of(one.entry),
    }
