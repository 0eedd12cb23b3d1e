"""``mcp-tool-filter pick``: choose in the terminal which tools to hide; ends in a deny pattern."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mcp_tool_filter.cli.commands.asking import KnownTools, ask_now
from mcp_tool_filter.cli.flags import Given, UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, gather, settle
from mcp_tool_filter.cli.terminal import is_terminal, say, shortened
from mcp_tool_filter.observers.report import estimate_tokens
from mcp_tool_filter.policy.patterns import deny_for
from mcp_tool_filter.policy.snapshot import shown


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that can be picked."""

    name: str
    size: int
    """The bytes of its definition."""
    description: str


def run(typed: Given) -> int:
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
