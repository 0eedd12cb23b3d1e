"""The public module: what its docstring shows, run; its names, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from mcp_tool_filter import testing
from tests.make import asking
from tests.proxy import REPOSITORY

RECORDING = REPOSITORY / "recordings" / "mcp1-streamable-json.flow"


def ask(url: str) -> int:
    """Ask an upstream for its tools; return how many there are."""
    with urllib.request.urlopen(url, asking("tools/list")) as response:
        return len(json.load(response)["result"]["tools"])


def test_a_recording_is_replayed_with_other_patterns() -> None:
    transcript = testing.replay(testing.read_recording(str(RECORDING)), deny="^delete_")
    assert "delete_file" in transcript.listed_before
    assert "delete_file" not in transcript.listed_after
    assert "delete_file" in [call.tool for call in transcript.calls if not call.passes]
    assert list(testing.find_leaks(transcript)) == []
    assert list(testing.find_changes(transcript)) == []
    whys = {judgement.why for turn in transcript.turns for judgement in turn.refusals}
    assert testing.Why.DENIED in whys


async def test_a_recording_is_served_in_an_event_loop() -> None:
    import asyncio

    async with testing.recorded_upstream(testing.read_recording(RECORDING)) as upstream:
        assert await asyncio.to_thread(ask, upstream.url) == 17


def test_a_recording_is_served_without_an_event_loop() -> None:
    with testing.running_upstream(testing.read_recording(RECORDING)) as upstream:
        assert ask(upstream.url) == 17


def test_an_unreadable_recording_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(testing.UnreadableRecording, match="Cannot read the recording"):
        testing.read_recording(tmp_path / "no.flow")
    assert issubclass(testing.UnreadableRecording, testing.StartError)


def test_the_docstring_names_the_public_names() -> None:
    assert testing.__doc__
    named = ("find_leaks", "read_recording", "replay", "running_upstream", "recorded_upstream",
             "McpReplay", "McpRecordedUpstream")  # fmt: skip
    assert all(name in testing.__doc__ and name in testing.__all__ for name in named)
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_the_public_module_imports_without_warnings_and_with_types(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "from urllib.request import urlopen\n"
        "from mcp_tool_filter.testing import McpReplay, McpRecordedUpstream, Transcript\n"
        "def test_replay(mcp_replay: McpReplay, mcp_recorded_upstream: McpRecordedUpstream)"
        " -> None:\n"
        f"    transcript: Transcript = mcp_replay({str(RECORDING)!r}, deny='.')\n"
        "    assert transcript.listed_after == []\n"
        f"    url = mcp_recorded_upstream({str(RECORDING)!r})\n"
        f"    assert urlopen(url, {asking('tools/list')!r}).read().count(b'inputSchema') == 17\n"
    )
    own = str(REPOSITORY / "addon")
    env = {"PATH": "/usr/bin:/bin", "MYPYPATH": own, "PYTHONPATH": own}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for words in (
        ["mypy", "--strict", "--cache-dir", str(tmp_path / "cache")],
        ["pytest", "-W", "error", "-p", "mcp_tool_filter.rooms.recordings.pytest_plugin"],
    ):
        subprocess.run(
            [sys.executable, "-m", *words, "test_own.py"], check=True, cwd=tmp_path, env=env
        )
