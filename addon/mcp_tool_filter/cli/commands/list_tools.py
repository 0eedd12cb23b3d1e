"""``--list-tools`` and ``--dry-run``: preview which tools would be hidden, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from mcp_tool_filter.cli.commands.asking import KnownTools, ask_now
from mcp_tool_filter.cli.flags import FORMATS, UsageError
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.cli.terminal import (
    Colour,
    columns,
    is_terminal,
    paint,
    say,
    shortened,
    width,
)
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.report import (
    estimate_tokens,
    render_report,
    warnings_about,
)
from mcp_tool_filter.policy.config import refuse_unmatched
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.protocol.tools import Definition

_DESCRIPTION = 60


def run(settings: Settings, how: str) -> int:
    """Print the tools in one of the formats, or like the report at start."""
    if how not in (*FORMATS, "report", "report-json"):
        raise UsageError(
            f"There is no format {how}", why="It must be one of: " + ", ".join(FORMATS)
        )
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
