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
        yield from editor.report(snapshot)
        unmatched = (
            f"the edit of {shown(one)} matches no tool"
            for one in editor.unmatched(names_in(snapshot))
        )
        for problem in (*unmatched, *editor.warnings(snapshot)):
            yield f"Warning: {problem}"

    session.reports.append(lines)
