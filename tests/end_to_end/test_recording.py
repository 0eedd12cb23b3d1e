"""Recordings that a user makes with mitmdump, ended as users end it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import read_recording
from mcp_tool_filter.adapters.recordings.replay import replay
from tests.end_to_end.filtering import mitmdump
from tests.end_to_end.peer import client, need, upstream
from tests.proxy import REPOSITORY
from tests.raw_upstream import TIMEOUT, free_port

BIN = Path(sys.executable).parent
SSE = ("--transport", "sse")


@contextmanager
def running(home: Path, *command: str | Path) -> Iterator[str]:
    """Run a proxy until the end of the block; its origin."""
    port = free_port()
    given = [*command, "--port" if "-m" in command else "--listen-port", str(port)]
    given += [] if "-m" in command else ["--set", f"confdir={home}", "-q"]
    process = subprocess.Popen(
        given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "addon")},
    )
    try:
        wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_until_it_listens(port: int) -> None:
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < end, "it does not start"
            time.sleep(0.05)


def messages(stream: bytes) -> list[object]:
    """Return the messages of an event stream.

    (A replay answers a list from the recorded snapshot, which frames its event otherwise.)
    """
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_that_is_open_when_mitmdump_ends_is_recorded(
    tmp_path: Path, number: signal.Signals
) -> None:
    need("mcp1")
    file = tmp_path / "session.flow"
    with (
        upstream("mcp1", *SSE) as server,
        mitmdump(server.origin, deny="^delete_", save_stream_file=str(file)) as between,
        client("mcp1", between.url(server.path), *SSE) as speaker,
    ):
        speaker.do({"list": "tools"})
        speaker.do({"call": "delete_file"})
        speaker.do({"call": "read_file", "arguments": {"path": "a"}})
        between.process.send_signal(number)
        between.process.wait()
        speaker.kill()
    recording = read_recording(file)
    stream = recording.flows[0]
    assert stream.said
    assert b"contents of a" in stream.said.body
    assert b"Tool not found" not in stream.said.body  # what we say is not what the upstream said
    assert b"Tool not found: delete_file" in stream.heard
    assert b'"delete_file"' not in stream.heard
    assert messages(replay(recording, deny="^delete_").turns[0].heard) == messages(stream.heard)


def test_the_launcher_records_the_same(tmp_path: Path) -> None:
    need("mcp1")
    file = tmp_path / "session.flow"
    launcher: list[str | Path] = [sys.executable, "-m", "mcp_tool_filter", "--deny", "^delete_"]
    with (
        upstream("mcp1", *SSE) as server,
        running(tmp_path, *launcher, "--upstream", server.url, "--record", file) as at,
        client("mcp1", at + server.path, *SSE) as speaker,
    ):
        speaker.do({"list": "tools"})
        speaker.do({"call": "delete_file"})
    recording = read_recording(file)
    assert recording.flows[0].said
    assert b"Tool not found: delete_file" in recording.flows[0].heard
    heard = replay(recording, deny="^delete_").turns[0].heard
    assert messages(heard) == messages(recording.flows[0].heard)


def test_a_recording_made_without_the_filter_can_be_replayed(tmp_path: Path) -> None:
    """A user has a dump already and wants to know what a policy would have done."""
    need("mcp1")
    file = tmp_path / "plain.flow"
    with (
        upstream("mcp1", "--json") as server,
        running(tmp_path, BIN / "mitmdump", "--mode", f"reverse:{server.origin}", "-w", file) as at,
        client("mcp1", at + server.path) as speaker,
    ):
        speaker.do({"list": "tools"})
        speaker.do({"call": "delete_file"})
        speaker.do({"call": "read_file", "arguments": {"path": "a"}})
    transcript = replay(read_recording(file), deny="^delete_")
    assert "delete_file" in transcript.listed_before
    assert "delete_file" not in transcript.listed_after
    assert [(one.tool, one.passes) for one in transcript.calls] == [
        ("delete_file", False),
        ("read_file", True),
    ]
    assert "contents of a" in transcript.after
