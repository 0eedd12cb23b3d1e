"""Recordings that a user makes with mitmdump, ended as users end it."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from mcp_tool_filter.rooms.recordings.flow_dump import read_recording
from mcp_tool_filter.rooms.recordings.replay import replay
from tests.end_to_end.filtering import HOSTS
from tests.end_to_end.peer import Step, client, need, play, upstream
from tests.proxy import tool

SSE = ("--transport", "sse")


def messages(stream: bytes) -> list[object]:
    """Return the messages of an event stream.

    (A replay answers a list from the recorded snapshot, which frames its event otherwise.)
    """
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


@pytest.mark.parametrize(
    ("host", "number"),
    [("mitmdump", signal.SIGINT), ("mitmdump", signal.SIGTERM), ("launcher", signal.SIGTERM)],
)
def test_a_stream_that_is_open_when_the_filter_ends_is_recorded(
    host: str, number: signal.Signals, tmp_path: Path
) -> None:
    need("mcp1")
    file = tmp_path / "session.flow"
    option = {"save_stream_file" if host == "mitmdump" else "record": str(file)}
    with (
        upstream("mcp1", *SSE) as server,
        HOSTS[host](server.origin, deny="^delete_", **option) as between,
        client("mcp1", between.url(server.path), *SSE) as speaker,
    ):
        speaker.do({"list": "tools"})
        speaker.do({"call": "delete_file"})
        speaker.do({"call": "read_file", "arguments": {"path": "a"}})
        between.process.send_signal(number)
        between.process.wait()
        speaker.it.process.kill()
    recording = read_recording(file)
    stream = recording.flows[0]
    assert stream.said
    assert b"contents of a" in stream.said.body
    assert b"Tool not found" not in stream.said.body  # what we say is not what the upstream said
    assert b"Tool not found: delete_file" in stream.heard
    assert b'"delete_file"' not in stream.heard
    assert messages(replay(recording, deny="^delete_").turns[0].heard) == messages(stream.heard)


async def test_a_recording_made_without_the_filter_can_be_replayed(tmp_path: Path) -> None:
    """A user has a dump already and wants to know what a policy would have done."""
    need("mcp1")
    file = tmp_path / "plain.flow"
    with upstream("mcp1", "--json") as server:
        words = ("--mode", f"reverse:{server.origin}", "-w", str(file))
        async with tool("mitmdump", *words, home=tmp_path) as it:
            url = f"http://127.0.0.1:{await it.listening()}{server.path}"
            read: Step = {"call": "read_file", "arguments": {"path": "a"}}
            steps: list[Step] = [{"list": "tools"}, {"call": "delete_file"}, read]
            await asyncio.to_thread(play, "mcp1", url, steps)
            it.interrupt()
            await it.exit_code()
    transcript = await asyncio.to_thread(replay, read_recording(file), deny="^delete_")
    assert "delete_file" in transcript.listed_before
    assert "delete_file" not in transcript.listed_after
    assert [(one.tool, one.passes) for one in transcript.calls] == [
        ("delete_file", False),
        ("read_file", True),
    ]
    assert "contents of a" in transcript.after
