"""Which tools a client refuses, cuts or loses, and the edit that heals each.

>>> long = Definition("x" * 60, None, b'{"name":"x","inputSchema":{"type":"object"}}')
>>> [problem] = problems_for("cursor", "files", [long])
>>> problem.what
'Cursor leaves it out: files and its name have more than 60 characters'
>>> print(problem.edit.replace("x" * 55, "…"))
[servers.files.tools.…xxxxx]
name = "…"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mcp_tool_filter.core.messages.tools import Definition

_NOT_OBJECT: Final = "its schema is not of type object"
_ROOT: Final = ("allOf", "oneOf", "anyOf", "if", "then", "else")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client accepts. Each row has been reported by its users; ``source`` says where."""

    called: str
    prefix: str
    """What the client writes before a tool's name."""
    longest: int
    """Characters of both."""
    loses: str
    """What happens to a tool whose name is longer."""
    name: re.Pattern[str]
    keywords: tuple[str, ...]
    """Keywords at the root of a schema that it does not accept."""
    source: str


_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_LETTER_FIRST = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
CLIENTS: Final = {
    "claude-code": ClientLimits(
        "Claude Code", "mcp__{server}__", 64, "leaves it out", _PLAIN, _ROOT,
        "github.com/anthropics/claude-code/issues/95504",
    ),
    "claude-desktop": ClientLimits(
        "Claude Desktop", "", 64, "refuses the server", _PLAIN, _ROOT,
        "github.com/makenotion/notion-mcp-server/issues/341",
    ),
    "cursor": ClientLimits(
        "Cursor", "{server}", 60, "leaves it out", _PLAIN, ("allOf", "oneOf", "anyOf"),
        "github.com/ComposioHQ/composio/issues/2788",
    ),
    "codex": ClientLimits(
        "Codex", "{server}__", 64, "cuts it", _PLAIN, (),
        "github.com/openai/codex/issues/1289",
    ),
    "gemini": ClientLimits(
        "Gemini", "{server}__", 63, "cuts it", _LETTER_FIRST, (),
        "github.com/google-gemini/gemini-cli/pull/20987",
    ),
    "vscode": ClientLimits(
        "VS Code", "", 64, "refuses it", _PLAIN, (),
        "github.com/microsoft/foundry-dev-tools/issues/723",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientProblem:
    tool: str
    what: str
    edit: str
    """As it belongs into the config file."""


def problems_for(client: str, server: str, tools: Iterable[Definition]) -> Iterator[ClientProblem]:
    """Yield what a client does not accept of these tools of a server."""
    limits = CLIENTS.get(client)
    listed = [one for one in tools if one.name is not None]
    taken = {one.name for one in listed}
    for one in listed if limits else ():
        if limits is None or one.name is None:
            continue
        what, settings = [], []
        room = limits.longest - len(limits.prefix.format(server=server))
        is_long = len(one.name) > room
        if is_long or not limits.name.fullmatch(one.name):
            said = f"{server} and its name have more than {limits.longest} characters"
            does = limits.loses if is_long else "refuses it"
            what.append(f"{does}: {said if is_long else 'its name has other characters'}")
            settings.append(f'name = "{_other_name(one.name, limits, room, taken)}"')
        if found := _refused_in(one.raw, limits):
            what.append(f"{'leaves it out' if limits.keywords else 'refuses it'}: {found}")
            settings.append('schema = "flat"')
        if what:
            table = f"[servers.{_key(server)}.tools.{_key(one.name)}]"
            said = f"{limits.called} {' and '.join(what)}"
            yield ClientProblem(one.name, said, "\n".join([table, *settings]))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _other_name(name: str, limits: ClientLimits, room: int, taken: set[str | None]) -> str:
    """Return a name that fits and that no tool has."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not limits.name.fullmatch(plain):
        plain = f"t_{plain}"
    wanted, number = plain[: max(1, room)], 1
    while wanted in taken:
        number += 1
        wanted = plain[: max(1, room - len(str(number)) - 1)] + f"_{number}"
    taken.add(wanted)
    return wanted


def _refused_in(definition: bytes, limits: ClientLimits) -> str:
    try:
        schema = json.loads(definition, parse_int=str)["inputSchema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(schema, dict):
        return ""
    found = [key for key in limits.keywords if key in schema]
    if found:
        return f"its schema has {', '.join(found)} at its root"
    return "" if schema.get("type") == "object" else _NOT_OBJECT
