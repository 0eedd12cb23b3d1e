"""``mcp-tool-filter`` without arguments: show all servers, and do what one key says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.flags import Given
from mcp_tool_filter.cli.settings import default_file
from mcp_tool_filter.cli.terminal import is_terminal, say
from mcp_tool_filter.rooms.overview.screen import Screen, read_key, single_keys
from mcp_tool_filter.rooms.overview.servers import ListedOnce, find_all, lines_for

if TYPE_CHECKING:
    from mcp_tool_filter.cli.commands.look import KnownTools
    from mcp_tool_filter.rooms.clients.listed import ListedServer

type Key = tuple[object, ...]

_PATIENCE = "10000"  # milliseconds for a server to answer
_KEYS = "rpwuq"
_ENDS = ("\x04", "\x1b")  # Ctrl+D, Esc


def run(typed: Given) -> int:
    """Show the servers; return the exit status."""
    servers = find_all()
    if "json" in typed:
        _ask(servers)
        status = import_module("mcp_tool_filter.rooms.status.command")
        rows = [one.row for one in servers if one.row]
        status.join_running(rows, status.running_filters())
        dead = status.dead_patterns(rows)
        print(json.dumps([status.as_json(one.row, dead, one.clients) for one in servers], indent=2))
        return 0
    if not servers:
        print("No MCP servers found in any client's file. To see what the filter does: the demo\n")
        print(import_module("mcp_tool_filter.cli.help").render_first_steps(), end="")
        return 0
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or os.name == "nt":
        _ask(servers)
        print("\n".join(lines_for(servers, 1000)))
        return 0
    key = _show(servers)
    return _ACTIONS[key](servers) if key in _ACTIONS else 0


# Asking


def _show(servers: Sequence[ListedOnce]) -> str:
    """Show the servers while they answer; return the key that was pressed."""
    screen = Screen(sys.stdout)

    def draw(*, is_last: bool = False) -> None:
        columns = screen.size()[0]
        lines = lines_for(servers, columns - 1)
        screen.draw(lines, is_last=is_last)

    draw()  # before the imports that asking takes
    with single_keys():
        return asyncio.run(_key(servers, draw))


async def _key(servers: Sequence[ListedOnce], draw: Callable[..., None]) -> str:
    """Draw each answer; return a key as soon as it can be obeyed."""
    loop = asyncio.get_running_loop()
    pressed: asyncio.Future[str] = loop.create_future()
    asking = asyncio.create_task(_ask_all(servers, draw))
    early: list[str] = []

    def note() -> None:
        key = read_key()
        key = "q" if key in _ENDS else key
        if key == "q" or (key in _KEYS and asking.done()):
            if not pressed.done():
                pressed.set_result(key)
        elif key in _KEYS:
            early[:] = [key]

    loop.add_reader(sys.stdin.fileno(), note)
    try:
        both: list[asyncio.Future[None] | asyncio.Future[str]] = [asking, pressed]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not pressed.done():
            asking.result()
            draw(is_last=True)
            if early:
                return early[0]
        return await pressed
    finally:
        loop.remove_reader(sys.stdin.fileno())
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


def _ask(servers: Sequence[ListedOnce]) -> None:
    asyncio.run(_ask_all(servers, lambda: None))


async def _ask_all(servers: Sequence[ListedOnce], draw: Callable[[], None]) -> None:
    """Ask all servers side by side; each answer is drawn at once."""
    await asyncio.sleep(0)
    from mcp_tool_filter.cli.settings import read_sources
    from mcp_tool_filter.rooms.clients import entries, one_entry
    from mcp_tool_filter.rooms.status.command import ask_all, row_of, rows_of_file

    for one in servers:
        listed = one.listed[0]
        if not one.section:
            one.row = row_of(listed)
            keys = (entries.key_of(each.entry) for each in one.listed)
            one.row.keys = frozenset(filter(None, keys))
            continue
        path = one_entry.file_of(listed.entry, default_file(os.environ) or "") or ""
        with suppress(Exception):  # a broken file: the row below says so
            rows = rows_of_file(read_sources({"config": [path]}, os.environ))
            one.row = next(row for row in rows if row.name == one.section)
        one.row = one.row or row_of(listed)
    await ask_all([one.row for one in servers if one.row], _PATIENCE, draw)


# What a key does


def _protect(flags: Sequence[str], servers: Sequence[ListedOnce]) -> int:
    """Put the filter with these flags in front of all servers, with one policy file."""
    from mcp_tool_filter.rooms.clients.command import wrap_all, wrap_as_one

    mine = [one for one in servers if not one.section]
    found = [each for one in mine for each in one.listed if each.place.scope != "project"]
    for one in mine:
        if one.row and one.row.find_settings is None:
            say(f"{one.name} is left out: {one.row.problem}")
        elif one.row and one.row.known is None:
            say(f"{one.name} has not answered; it is filtered all the same")
    if not found:
        return _protect_behind_one(flags, servers)
    entries = input("One entry for [e]ach server, or [o]ne for all of them? [E/o] ")
    asked = {each.key: one.known for one in mine for each in one.listed}
    if entries.strip().lower().startswith("o"):
        return wrap_as_one(found, flags, _typed(), asked=asked)
    return wrap_all(found, flags, _typed(), asked=asked)


def _protect_behind_one(flags: Sequence[str], servers: Sequence[ListedOnce]) -> int:
    """Add the flags to the file of servers that one entry of each client starts."""
    from dataclasses import replace

    from mcp_tool_filter.rooms.clients.command import wrap_as_one

    starting = {each.key: each for one in servers for each in one.listed if one.section}
    found = [one for one in starting.values() if one.place.scope != "project"]
    if not found or "into" not in _typed():
        say("Nothing to do")
        return 0
    asked = {
        replace(each, name=one.section).key: one.known for one in servers for each in one.listed
    }
    return wrap_as_one(found, flags, _typed(), asked=asked)


def _typed() -> Given:
    """Return what wrap gets: all servers move into the file that is read if none is named."""
    into = default_file(os.environ, may_be_missing=True)
    return {"all": ["true"]} | ({"into": [into]} if into else {})


def _pick(servers: Sequence[ListedOnce]) -> int:
    """Let the user pick tools of all servers in one list."""
    from dataclasses import replace

    from mcp_tool_filter.cli.commands.look import choose
    from mcp_tool_filter.rooms.clients.command import How, flags_hiding, wrap_all

    mine = [(one, one.known) for one in servers if one.known and not one.section]
    tools = [
        replace(tool, name=f"{one.name}: {tool.name}")
        for one, known in mine
        for tool in known.tools
    ]
    if (hidden := choose(tools)) is None:
        say("Nothing changed")
        return 1
    found: list[ListedServer] = []
    flags: dict[Key, list[str]] = {}
    asked: dict[Key, KnownTools] = {}
    for one, known in mine:
        gone = [tool.name for tool in known.tools if f"{one.name}: {tool.name}" in hidden]
        if gone == [tool.name for tool in known.tools if not tool.is_exposed]:
            continue
        for each in one.listed:
            if each.place.scope != "project":
                flags[each.key] = flags_hiding(each, known, gone)
                asked[each.key] = known
                found.append(each)
    if not found:
        say("Nothing changed")
        return 0
    return wrap_all(found, flags, _typed(), How.EXACTLY, asked=asked)


def _undo(_servers: Sequence[ListedOnce]) -> int:
    from mcp_tool_filter.rooms.clients.command import run_unwrap

    return run_unwrap({"all": ["true"]})


_ACTIONS: dict[str, Callable[[Sequence[ListedOnce]], int]] = {
    "r": partial(_protect, ["--read-only"]),
    "w": partial(_protect, ["--shadow"]),
    "p": _pick,
    "u": _undo,
}
