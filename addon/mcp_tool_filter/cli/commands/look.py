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
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from mcp_tool_filter.cli import report
from mcp_tool_filter.cli.flags import Given, UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, chosen, target_of
from mcp_tool_filter.cli.switching import deny_for
from mcp_tool_filter.cli.terminal import (
    Colour,
    count,
    is_terminal,
    log_to_stderr,
    print_table,
    progress,
    say,
    shortened,
)
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.choice import NOT_ALLOWED, Hider, claims_in
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.process import sentences
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.core.upstream.fetch import fetch, fetch_from
from mcp_tool_filter.core.upstream.target import Target


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the upstream, and what the filter would do with it."""

    name: str
    size: int
    """The bytes of its definition."""
    description: str
    """Its first line."""
    why: str = "exposed"
    """exposed, denied, not allowed, or faulty."""
    by: Hider | None = None
    """What hides it."""
    mark: str = ""
    """What its definition says of it: read-only, destructive, open-world."""

    @property
    def is_exposed(self) -> bool:
        return self.why == "exposed"


def _tool(name: str, raw: bytes, snapshot: Snapshot) -> Tool:
    definition = json.loads(raw)
    said = definition.get("description")
    by = snapshot.denied.get(name)
    why = "faulty" if by is None else "not allowed" if by is NOT_ALLOWED else "denied"
    return Tool(
        name,
        len(raw),
        shown(shortened(said, 200)) if isinstance(said, str) else "",
        "exposed" if name in snapshot.allowed else why,
        by,
        claims_in(raw).marks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTools:
    """The upstream's tools, and what the filter would do with them."""

    fetched: Fetched
    who: sentences.Introduction
    snapshot: Snapshot
    tools: Sequence[Tool]
    """All tools, in the upstream's order."""
    config: Config

    @property
    def exposed(self) -> list[Tool]:
        """The tools that a client gets: with --shadow, all of them."""
        return [one for one in self.tools if one.is_exposed or self.who.is_shadow]

    def by(self, config: Config) -> KnownTools:
        """Return the same tools, judged by another policy."""
        return _judged(self.fetched, config, replace(self.who, is_shadow=config.shadow))


async def ask(
    settings: Settings, *, is_quiet: bool = False, more: Sequence[str] = ()
) -> KnownTools:
    """Fetch the tools and apply the patterns. Raises StartError.

    ``is_quiet`` if nobody shall see what a command prints; ``more`` are other lists to ask for.
    """
    target = target_of(settings)
    if more:
        target = replace(target, other_lists=tuple(dict.fromkeys((*target.other_lists, *more))))
    if settings.command:
        fetched = await _fetch_from_command(settings, target, is_quiet=is_quiet)
    else:
        fetched = await fetch(target)
    config = settings.config()
    address = settings.listens_at
    who = sentences.introduce(target.url, fetched, address, is_shadow=config.shadow)
    return _judged(fetched, config, replace(who, listens_at="stdio") if settings.is_stdio else who)


def _judged(fetched: Fetched, config: Config, who: sentences.Introduction) -> KnownTools:
    policy = PolicyInForce(config=config, fetched=fetched)
    return KnownTools(
        fetched=fetched,
        who=who,
        config=config,
        snapshot=policy.snapshot,
        tools=[
            _tool(one.name, one.raw, policy.snapshot)
            for listing in policy.listings
            for one in listing.definitions
            if one.name is not None
        ],
    )


def marks_of(marks: Iterable[str]) -> str:
    """Count the marks of some tools.

    >>> marks_of(["read-only", "", "read-only, open-world"])
    '2 read-only, 1 open-world'
    """
    found = Counter(one for mark in marks if mark for one in mark.split(", "))
    return ", ".join(f"{number} {mark}" for mark, number in found.most_common())


def ask_now(settings: Settings) -> KnownTools:
    """Do so in a new event loop. Raises StartError."""
    asked = settings.origin or settings.shown_upstream
    with progress(f"Asking {asked} for its tools …", others_write=bool(settings.command)):
        return asyncio.run(ask(settings))


async def _fetch_from_command(settings: Settings, target: Target, *, is_quiet: bool) -> Fetched:
    from mcp_tool_filter.rooms.stdio.child import Child
    from mcp_tool_filter.rooms.stdio.sessions import find

    child = Child(
        settings.command,
        env=settings.env,
        without=settings.without,
        cwd=settings.cwd,
        is_quiet=is_quiet,
        name=settings.name or os.path.basename(settings.command[0]),
    )
    tell = _say_nothing if is_quiet else say
    return await fetch_from(
        target, lambda opened: find(child, opened, limit=target.limit, say=tell)
    )


def rules_of(settings: Settings) -> tuple[str, ...]:
    """Read the rules as a start does, and return their names. Raises StartError."""
    if not (path := settings.config().rules):
        return ()
    from mcp_tool_filter.rooms.rules.file import RulesInForce  # seldom needed

    log_to_stderr(settings.verbosity)  # its warnings
    return RulesInForce(path, is_offline=True).names


def _say_nothing(_text: str) -> None:
    """Keep to ourselves what a command says."""


def show_tools(settings: Settings, how: str) -> int:
    """Print the tools as a table or as JSON, or like the report at start."""
    rules = rules_of(settings) if how.startswith("report") else ()
    known = ask_now(settings)
    refuse_start(settings.config(), [known.snapshot])
    match how:
        case "json":
            print(json.dumps(_as_json(known), indent=2))
        case "report-json":
            found = sentences.warnings_about(settings.config())
            warnings = [one.removeprefix("Warning: ") for one in found]
            listens_at = shown_url(known.who.listens_at)
            more = {"listensAt": listens_at, "warnings": warnings}  # only a start has these
            print(json.dumps(_as_json(known) | more, indent=2))
        case "report":
            lines = report.lines_about_rules(rules)
            print(report.render_report(known.who, known.snapshot, lines))
            _warn(settings)
        case _:
            _print_tools(known)
            _warn(settings)
    return 0


def _warn(settings: Settings) -> None:
    for warning in sentences.warnings_about(settings.config()):
        say(warning)


def _as_json(known: KnownTools) -> dict[str, object]:
    """Return everything we know. This format is stable: members may be added, none changes."""
    things = [
        {
            "kind": one.kind,
            "name": one.name,
            "exposed": not one.pattern,
            "pattern": one.pattern or None,
        }
        for one in known.snapshot.catalog
    ]
    return {
        "upstream": known.who.shown_upstream,
        "server": known.who.server,
        "transport": known.who.transport,
        "revision": known.who.revision,
        "tools": [
            {
                "name": one.name,
                "exposed": one.is_exposed,
                "why": one.why,
                "pattern": one.by.text or None if one.by else None,
                "bytes": one.size,
                **({"marks": one.mark.split(", ")} if one.mark else {}),
            }
            for one in known.tools
        ],
        **({"things": things} if things else {}),
        "savedBytes": known.snapshot.denied_bytes,
        "unmatchedPatterns": [pattern.text for pattern in known.snapshot.unmatched],
        "faults": list(known.snapshot.faults),
    }


def _print_tools(known: KnownTools) -> None:
    """Print the table of the tools; to stderr, what does not fit into it."""
    if known.tools:
        head = ("TOOL", "STATUS", "TOKENS", "DESCRIPTION")
        print_table(
            head,
            list(map(_row, known.tools)),
            lambda row: None if row[1] == "exposed" else Colour.RED,
            is_cut=True,
            always_has_head=True,
        )
    tokens = report.estimate_tokens(known.snapshot.denied_bytes)
    gone = len(known.snapshot.denied)
    tools = count(len(known.snapshot.allowed) + gone, "tool")
    say(f"{tools}, {gone} would be hidden: about {tokens} tokens per tools/list")
    if known.snapshot.catalog:
        print()
        print_table(
            ("KIND", "NAME", "STATUS"),
            [
                (one.kind, one.name, f'denied by "{one.pattern}"' if one.pattern else "exposed")
                for one in known.snapshot.catalog
            ],
            lambda row: None if row[2] == "exposed" else Colour.RED,
            is_cut=True,
            always_has_head=True,
        )
    for _, said in report.counted_items(known.snapshot.catalog, is_shadow=False):
        say(said)
    for warning in report.warnings_in(known.snapshot):
        say(warning)


def _row(tool: Tool) -> tuple[str, ...]:
    by = tool.by and (f'"{tool.by.text}"' if isinstance(tool.by, Pattern) else tool.by.text)
    why = tool.why + (f" by {by}" if by else "")
    tokens = report.estimate_tokens(tool.size)
    said = f"[{tool.mark}] {tool.description}".rstrip() if tool.mark else tool.description
    return shown(tool.name), why, tokens, shortened(said, 60)


def run_pick(typed: Given) -> int:
    """Let the user pick tools; print a pattern that hides them; return the exit status."""
    settings, names = chosen(typed, os.environ), typed.get("names")
    tools = [one for one in ask_now(settings).tools if one.is_exposed]  # hidden ones need none
    if not tools:
        raise UsageError("The server has no tools", why="There is nothing to hide")
    hidden = choose(tools) if names is None else _named(names, tools)
    if hidden is None:
        return 1
    if not hidden:
        say("No tool is hidden: no pattern is needed")
        return 0
    if names is not None:
        _say_what_it_saves(hidden, tools)
    pattern = deny_for(hidden, [tool.name for tool in tools])
    print(f"--deny {shlex.quote(pattern)}", flush=True)
    if is_terminal(sys.stdout):
        say("To change a client's file at once: mcp-tool-filter wrap CLIENT SERVER --pick")
    return 0


def choose(tools: Sequence[Tool]) -> list[str] | None:
    """Let the user choose tools to hide, those that are hidden now marked; None if they quit."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        why = "In a script: pick --names a,b, or wrap --deny PATTERN"
        raise UsageError("pick needs a terminal", why=why)
    if not tools:
        raise UsageError("The server has no tools", why="There is nothing to hide")
    try:
        from mcp_tool_filter.cli.picker import pick  # the screen takes long to import
    except ImportError as error:  # what it needs of the system is missing
        why = f"{error}. Name the tools: pick --names a,b, or wrap --deny PATTERN"
        raise UsageError("The tools cannot be shown in this terminal", why=why) from None
    hidden = pick(tools)
    if hidden:
        _say_what_it_saves(hidden, tools)
    return hidden


def _named(values: Sequence[str], tools: Sequence[Tool]) -> list[str]:
    known = [tool.name for tool in tools]
    names = [name for value in values for name in value.split(",") if name]
    for name in names:
        if name not in known:
            raise no_such("tool called", shown(name), known)
    return [name for name in known if name in names]


def _say_what_it_saves(hidden: Collection[str], tools: Sequence[Tool]) -> None:
    saved = sum(tool.size for tool in tools if tool.name in hidden)
    kept = len(tools) - len(hidden)
    tokens = report.estimate_tokens(saved)
    what = f"{count(len(hidden), 'tool')} hidden, {kept} left"
    say(f"{what}: saves about {tokens} tokens per tools/list")
