"""What people read about conditions and actions: a page, and the end of ``rules --help``.

Both derive from the two tables. Write the page anew after a change of one of them:

    python -m mcp_tool_filter.rooms.rules.reference
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from mcp_tool_filter.rooms.rules import actions
from mcp_tool_filter.rooms.rules.conditions import CONDITIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules-reference.md"
_TOP = """\
# Conditions and actions

Every condition and action of a [rules file](rules.md), with an example. All conditions of a rule
must hold; its actions run in their order. (The tables that read the file also make this page.)

## Conditions

{conditions}
## Actions

{actions}"""
_WIDTH = 80
_COLUMN = 28


def described_conditions() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the meaning and an example of each condition."""
    for name, term in CONDITIONS.items():
        yield name, term.means, term.example


def render_page() -> str:
    return _TOP.format(
        conditions=_table("condition", "holds if", described_conditions()),
        actions=_table("action", "what it does", actions.described()),
    )


def _table(first: str, second: str, entries: Iterator[tuple[str, str, str]]) -> str:
    rows = [f"| {first} | {second} | example |", "| --- | --- | --- |"]
    for name, means, example in entries:
        written = f"{name}: {example}".replace("|", "\\|")
        rows.append(f"| `{name}` | {means} | `{written}` |")
    return "\n".join(rows) + "\n"


def render_help() -> str:
    """Render the lines at the end of ``rules --help``."""
    lines = ["Conditions:", *_lines(described_conditions()), "", "Actions:"]
    lines += _lines(actions.described())
    return "\n".join([*lines, "", "With examples: mcp-tool-filter help rules-reference", ""])


def _lines(entries: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    for name, means, _ in entries:
        left = f"  {name}"
        for line in textwrap.wrap(means, _WIDTH - _COLUMN):
            yield left.ljust(_COLUMN) + line
            left = ""


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
