"""The report of edits for a session over stdio, once its tools are known."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_tool_filter.cli.line_session import LineSession
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor


def plug_in(session: LineSession) -> None:
    editor = session.config.editor
    if not isinstance(editor, DefinitionEditor):
        return

    def lines(snapshot: Snapshot) -> Iterator[str]:
        yield from editor.report(snapshot)
        yield from (f"Warning: {problem}" for problem in editor.warnings(snapshot))

    session.reports.append(lines)
