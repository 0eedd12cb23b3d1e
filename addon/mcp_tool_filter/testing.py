"""Recorded MCP sessions in tests of your own: the part of this package that is public.

Names in this module stay; everything else in ``mcp_tool_filter`` may change in any release.

**Replay** a recording with other patterns, without a network:

    from mcp_tool_filter.testing import find_leaks, read_recording, replay

    transcript = replay(read_recording("session.flow"), deny="^delete_")
    assert "delete_file" in transcript.listed_before
    assert "delete_file" not in transcript.listed_after
    assert [call.tool for call in transcript.calls if not call.passes] == ["delete_file"]
    assert list(find_leaks(transcript)) == []

**Serve** a recording, so that a client of yours can speak to it:

    from mcp_tool_filter.testing import running_upstream

    with running_upstream(read_recording("session.flow")) as upstream:
        my_client.connect(upstream.url)

(``async with recorded_upstream(…)`` does the same in an event loop of yours.)

With **pytest** both are fixtures. Installing the package is enough; the types are for annotations:

    def test_nobody_can_delete(mcp_replay: McpReplay) -> None:
        assert "delete_file" not in mcp_replay("session.flow", deny="^delete_").listed_after

    def test_my_client(mcp_recorded_upstream: McpRecordedUpstream) -> None:
        my_client.connect(mcp_recorded_upstream("session.flow"))

Make a recording with ``mcp-tool-filter … --record session.flow``, and take its secrets out with
``mcp-tool-filter scrub`` before you share it.
"""

from __future__ import annotations

import os
from pathlib import Path

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.policy.verdict import Why
from mcp_tool_filter.rooms.recordings.flow_dump import (
    Chunk,
    RecordedFlow,
    Recording,
    Said,
    UnreadableRecording,
)
from mcp_tool_filter.rooms.recordings.flow_dump import read_recording as _read_recording
from mcp_tool_filter.rooms.recordings.recorded_upstream import (
    McpRecordedUpstream,
    RecordedUpstream,
    ToolsUnknown,
    recorded_upstream,
    running_upstream,
)
from mcp_tool_filter.rooms.recordings.replay import McpReplay, replay
from mcp_tool_filter.rooms.recordings.transcript import (
    Call,
    Judgement,
    RecordedTurn,
    Transcript,
    find_changes,
    find_leaks,
)

__all__ = [
    "Call",
    "Chunk",
    "Judgement",
    "McpRecordedUpstream",
    "McpReplay",
    "RecordedFlow",
    "RecordedTurn",
    "RecordedUpstream",
    "Recording",
    "Said",
    "StartError",
    "ToolsUnknown",
    "Transcript",
    "UnreadableRecording",
    "Why",
    "find_changes",
    "find_leaks",
    "read_recording",
    "recorded_upstream",
    "replay",
    "running_upstream",
]


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Read a flow dump. Raises UnreadableRecording, a StartError that says why."""
    return _read_recording(Path(path))
