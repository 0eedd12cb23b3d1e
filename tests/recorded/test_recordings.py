"""Real sessions, gone through again without a network: each client gets what it got."""

from __future__ import annotations

import socket
from itertools import product
from operator import attrgetter
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import (
    KEY,
    read_flows,
    read_recording,
    write_flows,
)
from mcp_tool_filter.adapters.recordings.replay import replay
from mcp_tool_filter.adapters.recordings.transcript import find_changes, find_leaks
from tests.proxy import REPOSITORY
from tests.recorded.make import DENY, SESSIONS

RECORDINGS = sorted((REPOSITORY / "recordings").glob("*.flow"))
POLICIES = ["", ".", DENY, "^read_", "file|echo", "^(?!read)"]


def options_of(recording: Path) -> dict[str, str]:
    return SESSIONS[recording.stem].options


def test_there_is_a_recording_of_every_session() -> None:
    assert [recording.stem for recording in RECORDINGS] == sorted(SESSIONS)


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_with_the_same_policy_every_client_gets_the_same_answers(recording: Path) -> None:
    recorded = read_recording(recording)
    transcript = replay(recorded, deny=DENY, **options_of(recording))
    assert [turn.heard for turn in transcript.turns] == [flow.heard for flow in recorded.flows]


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_the_transcript_has_not_changed(recording: Path) -> None:
    """It was written by: python -m tests.recorded.make."""
    kept = recording.with_suffix(".transcript.txt").read_text("utf-8")
    transcript = replay(read_recording(recording), deny=DENY, **options_of(recording))
    assert transcript.render() == kept


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_a_denied_tool_leaves_no_trace(recording: Path) -> None:
    transcript = replay(read_recording(recording), deny="^write_")
    assert "write_file" in transcript.before
    assert "write_file" not in transcript.after


@pytest.mark.parametrize(
    ("recording", "deny"),
    [
        pytest.param(recording, deny, id=f"{recording.stem}-{deny}")
        for recording, deny in product(RECORDINGS, POLICIES)
    ],
)
def test_other_messages_pass_byte_for_byte_whatever_is_denied(recording: Path, deny: str) -> None:
    transcript = replay(read_recording(recording), deny=deny or (), **options_of(recording))
    assert list(find_leaks(transcript)) == []
    assert list(find_changes(transcript)) == []


def test_a_call_that_was_refused_and_now_passes_has_no_known_answer() -> None:
    recording = read_recording(REPOSITORY / "recordings" / "mcp1-sse.flow")
    [deleted] = [call for call in replay(recording).calls if call.tool == "delete_file"]
    assert deleted.passes
    assert not deleted.is_known


def test_a_call_that_passed_and_is_now_refused_is_not_answered_by_the_upstream() -> None:
    recording = read_recording(REPOSITORY / "recordings" / "mcp1-sse.flow")
    transcript = replay(recording, deny="^read_")
    assert "contents of" not in transcript.after
    assert "Tool not found: read_file" in transcript.after


def test_a_replay_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers late would make a replay differ from the last one."""
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_options: asked.append(args))
    recording = read_recording(REPOSITORY / "recordings" / "mcp1-sse.flow")
    replay(recording, deny=DENY)
    assert asked == []


def test_messages_keep_their_order_behind_a_long_one(tmp_path: Path) -> None:
    """mitmproxy reads 64 KiB at a time; the recorded upstream must not answer half a request."""
    flows = read_flows(REPOSITORY / "recordings" / "mcp1-streamable-json.flow")
    for flow in flows:
        asked, said = flow.metadata[KEY]["asked"], flow.metadata[KEY].get("said")
        asked["body"] = asked["body"].replace(b"/b.txt", b"x" * 3_000_000)
        for chunk in said["chunks"] if said else ():
            chunk[1] = chunk[1].replace(b"/b.txt", b"x" * 3_000_000)
    write_flows(tmp_path / "long.flow", flows)
    transcript = replay(read_recording(tmp_path / "long.flow"), deny=DENY)
    assert list(find_changes(transcript)) == []
    assert max(len(turn.heard) for turn in transcript.turns) > 3_000_000
    assert max(len(turn.reached or b"") for turn in transcript.turns) > 3_000_000


@pytest.mark.parametrize("recording", RECORDINGS, ids=attrgetter("stem"))
def test_no_secret_is_in_a_recording(recording: Path) -> None:
    raw = recording.read_bytes()
    assert b"not-really-a-secret" not in raw
    flows = read_recording(recording).flows
    ids = {
        value
        for flow in flows
        for name, value in flow.head.headers
        if name.lower() in (b"mcp-session-id", b"authorization")
    }
    assert all(b"scrubbed-" in value for value in ids)
