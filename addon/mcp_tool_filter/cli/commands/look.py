"""Fetch the upstream's tools without mitmproxy, and show what the filter would do with them.

``--list-tools`` and ``--dry-run`` preview which tools would be hidden, and why; ``mcp-tool-filter
pick`` lets the user choose in the terminal which tools to hide, and ends in a deny pattern.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mcp_tool_filter.adapters.upstream.fetch import fetch, fetch_from
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.cli.flags import Given, UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, gather, settle, target_of
from mcp_tool_filter.cli.terminal import (
    Colour,
    columns,
    is_terminal,
    paint,
    progress,
    say,
    shortened,
    width,
)
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.sentences import (
    Introduction,
    estimate_tokens,
    introduce,
    render_report,
    warnings_about,
)
from mcp_tool_filter.options import OPTIONS
from mcp_tool_filter.policy.config import refuse_unmatched
from mcp_tool_filter.policy.patterns import deny_for
from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.protocol.tools import Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTools:
    """The upstream's tools, and what the filter would do with them."""

    fetched: Fetched
    who: Introduction
    snapshot: Snapshot
    definitions: Sequence[Definition]
    """The definitions of all tools, in the upstream's order."""


async def ask(settings: Settings) -> KnownTools:
    """Fetch the tools and apply the patterns. Raises StartError."""
    target = target_of(settings)
    fetched = await (_fetch_from_command(settings, target) if settings.command else fetch(target))
    policy = PolicyInForce(config=settings.config(), fetched=fetched)
    who = introduce(target.url, fetched, settings.listens_at)
    return KnownTools(
        fetched=fetched,
        who=replace(who, listens_at="stdio") if settings.is_stdio else who,
        snapshot=policy.snapshot,
        definitions=[one for listing in policy.listings for one in listing.definitions],
    )


def ask_now(settings: Settings) -> KnownTools:
    """Do so in a new event loop. Raises StartError."""
    with progress(f"Asking {settings.origin or settings.shown_upstream} for its tools …"):
        return asyncio.run(ask(settings))


async def _fetch_from_command(settings: Settings, target: Target) -> Fetched:
    from mcp_tool_filter.adapters.stdio.child import Child
    from mcp_tool_filter.adapters.stdio.client import find

    child = Child(settings.command, env=settings.env, cwd=settings.cwd)
    return await fetch_from(target, lambda opened: find(child, opened, limit=target.limit, say=say))


_DESCRIPTION = 60


def show_tools(settings: Settings, how: str) -> int:
    """Print the tools in one of the formats, or like the report at start."""
    formats = OPTIONS["format"].choices
    if how not in (*formats, "report", "report-json"):
        why = "It must be one of: " + ", ".join(formats)
        raise UsageError(f"There is no format {how}", why=why)
    known = ask_now(settings)
    refuse_unmatched(settings.config(), known.snapshot.unmatched)
    match how:
        case "json":
            print(json.dumps(as_json(known), indent=2))
        case "report-json":
            print(json.dumps(as_json(known) | _as_report(known, settings), indent=2))
        case "names":
            print("\n".join(map(shown, known.snapshot.allowed)))
        case "report":
            print(render_report(known.who, known.snapshot))
            _warn(settings)
        case _:
            print("\n".join(_table(known)))
            _say_the_rest(known)
            _warn(settings)
    return 0


def _warn(settings: Settings) -> None:
    for warning in warnings_about(settings.config()):
        say(warning)


def as_json(known: KnownTools) -> dict[str, object]:
    """Return everything we know. This format is stable: members may be added, none changes."""
    snapshot = known.snapshot
    return {
        "upstream": known.who.shown_upstream,
        "server": known.who.server,
        "transport": known.who.transport,
        "revision": known.who.revision,
        "tools": [_tool(known, one) for one in known.definitions if one.name is not None],
        "savedBytes": snapshot.denied_bytes,
        "unmatchedPatterns": [pattern.text for pattern in snapshot.unmatched],
        "faults": list(snapshot.faults),
    }


def _as_report(known: KnownTools, settings: Settings) -> dict[str, object]:
    """Return the parts that only a start would report."""
    warnings = warnings_about(settings.config())
    return {
        "listensAt": shown_url(known.who.listens_at),
        "warnings": [warning.removeprefix("Warning: ") for warning in warnings],
    }


def _tool(known: KnownTools, definition: Definition) -> dict[str, object]:
    name = definition.name
    assert name is not None
    pattern = known.snapshot.denied.get(name)
    return {
        "name": name,
        "exposed": name in known.snapshot.allowed,
        "why": _why(known, name),
        "pattern": pattern.text if pattern else None,
        "bytes": len(definition.raw),
    }


def _why(known: KnownTools, name: str) -> str:
    if name in known.snapshot.allowed:
        return "exposed"
    if name not in known.snapshot.denied:
        return "faulty"
    return "denied" if known.snapshot.denied[name] else "not allowed"


def _table(known: KnownTools) -> Iterator[str]:
    terminal = is_terminal(sys.stdout)
    rows = [_row(known, one) for one in known.definitions if one.name is not None]
    if not rows:
        return
    head = ("TOOL", "STATUS", "TOKENS", "DESCRIPTION")
    head_line, *lines = columns([head, *rows], is_terminal=terminal)
    if terminal:
        yield paint(head_line, Colour.BOLD)
    for row, line in zip(rows, lines, strict=True):
        cut = line[: width()] if terminal else line
        yield cut if row[1] == "exposed" else paint(cut, Colour.RED)


def _row(known: KnownTools, definition: Definition) -> tuple[str, ...]:
    name = definition.name or ""
    pattern = known.snapshot.denied.get(name)
    why = _why(known, name) + (f' by "{pattern.text}"' if pattern else "")
    description = json.loads(definition.raw).get("description")
    said = shortened(description, _DESCRIPTION) if isinstance(description, str) else ""
    return shown(name), why, estimate_tokens(len(definition.raw)), shown(said)


def _say_the_rest(known: KnownTools) -> None:
    """Print to stderr what does not fit into the table."""
    tokens = estimate_tokens(known.snapshot.denied_bytes)
    exposed, gone = len(known.snapshot.allowed), len(known.snapshot.denied)
    count = f"{exposed + gone} tool" + ("" if exposed + gone == 1 else "s")
    say(f"{count}, {gone} would be hidden: about {tokens} tokens per tools/list")
    for pattern in known.snapshot.unmatched:
        say(f'Warning: the pattern "{pattern.text}" matches no tool')
    for fault in known.snapshot.faults:
        say(f"Warning: {fault}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be picked."""

    name: str
    size: int
    """The bytes of its definition."""
    description: str


def run_pick(typed: Given) -> int:
    """Let the user pick; print the pattern; return the exit status."""
    pattern = pick_pattern(settle(gather(typed, os.environ)), typed.get("names"))
    if pattern is None:
        return 1
    if pattern:
        print(f"--deny {shlex.quote(pattern)}", flush=True)
        if is_terminal(sys.stdout):
            say("To change a client's file at once: mcp-tool-filter wrap CLIENT SERVER --pick")
    return 0


def pick_pattern(settings: Settings, names: Sequence[str] | None = None) -> str | None:
    """Return a pattern that hides the named tools, or those that the user picks.

    Empty if no tool should be hidden, None if the user quits.
    """
    tools = _tools_in(ask_now(settings))
    if not tools:
        raise UsageError("The server has no tools", why="There is nothing to hide")
    hidden = _picked(tools) if names is None else _named(names, tools)
    if not hidden:
        if hidden is not None:
            say("No tool is hidden: no pattern is needed")
        return None if hidden is None else ""
    _say_what_it_saves(hidden, tools)
    return deny_for(hidden, [tool.name for tool in tools])


def _tools_in(known: KnownTools) -> list[Tool]:
    """Return the tools that are exposed now; hidden ones need no pattern."""
    exposed = known.snapshot.allowed
    named = [one for one in known.definitions if one.name is not None and one.name in exposed]
    return [Tool(one.name or "", len(one.raw), _description(one.raw)) for one in named]


def _description(raw: bytes) -> str:
    description = json.loads(raw).get("description")
    return shown(shortened(description, 200)) if isinstance(description, str) else ""


def _named(values: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    known = [tool.name for tool in tools]
    names = [name for value in values for name in value.split(",") if name]
    for name in names:
        if name not in known:
            raise no_such("tool called", shown(name), known)
    return [name for name in known if name in names]


def _picked(tools: Sequence[Tool]) -> list[str] | None:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError("pick needs a terminal", why="In a script, name the tools: --names a,b")
    from mcp_tool_filter.cli.picker import pick  # the screen takes long to import

    return pick(tools)


def _say_what_it_saves(hidden: Collection[str], tools: Sequence[Tool]) -> None:
    saved = sum(tool.size for tool in tools if tool.name in hidden)
    kept = len(tools) - len(hidden)
    what = f"{len(hidden)} tool{'' if len(hidden) == 1 else 's'} hidden, {kept} left"
    say(f"{what}: saves about {estimate_tokens(saved)} tokens per tools/list")
