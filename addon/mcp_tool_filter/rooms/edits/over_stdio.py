"""The report of edits for a session over stdio, once its tools are known."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_tool_filter.cli.line_session import LineSession
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor, names_in


def plug_in(session: LineSession) -> None:
    editor = session.config.editor
    if not isinstance(editor, DefinitionEditor):
        return

    def lines(snapshot: Snapshot) -> Iterator[str]:
        yield from map(str.strip, editor.report(snapshot))
        for name in editor.unmatched(names_in(snapshot)):
            yield f"Warning: the edit of {shown(name)} matches no tool"
        yield from editor.warnings(snapshot)

    session.reports.append(lines)
