"""Real sessions, gone through again without a network: each client gets what it got."""

from __future__ import annotations

import json
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mcp_tool_filter.rooms.recordings import flow_dump
from mcp_tool_filter.rooms.recordings.flow_dump import KEY, read_recording
from mcp_tool_filter.rooms.recordings.recorded_upstream import RecordedUpstream, running_upstream
from mcp_tool_filter.rooms.recordings.replay import replay
from mcp_tool_filter.rooms.recordings.transcript import find_changes, find_leaks
from tests.end_to_end.filtering import mitmdump
from tests.end_to_end.peer import Document, need, play
from tests.proxy import REPOSITORY
from tests.recorded.make import DENY, SESSIONS
from tests.rows import each_row

RECORDINGS = sorted((REPOSITORY / "recordings").glob("*.flow"))
LEGACY = REPOSITORY / "recordings" / "mcp1-sse.flow"
POLICIES = ["", ".", DENY, "^read_", "file|echo", "^(?!read)"]


def options_of(recording: Path) -> dict[str, str]:
    return SESSIONS[recording.stem].options


def test_there_is_a_recording_of_every_session() -> None:
    assert [recording.stem for recording in RECORDINGS] == sorted(SESSIONS)


@each_row("recording", RECORDINGS)
def test_with_the_same_policy_every_client_gets_the_same_answers(recording: Path) -> None:
    """The transcript was written by: python -m tests.recorded.make."""
    recorded = read_recording(recording)
    transcript = replay(recorded, deny=DENY, **options_of(recording))
    assert [turn.heard for turn in transcript.turns] == [flow.heard for flow in recorded.flows]
    assert transcript.render() == recording.with_suffix(".transcript.txt").read_text("utf-8")


@each_row("recording", RECORDINGS)
def test_a_denied_tool_leaves_no_trace(recording: Path) -> None:
    transcript = replay(read_recording(recording), deny="^write_")
    assert "write_file" in transcript.before
    assert "write_file" not in transcript.after


@each_row("deny", POLICIES)
@each_row("recording", RECORDINGS)
def test_other_messages_pass_byte_for_byte_whatever_is_denied(recording: Path, deny: str) -> None:
    transcript = replay(read_recording(recording), deny=deny or (), **options_of(recording))
    assert list(find_leaks(transcript)) == []
    assert list(find_changes(transcript)) == []


def test_a_call_that_was_refused_and_now_passes_has_no_known_answer_and_conversely() -> None:
    recording = read_recording(LEGACY)
    [deleted] = [call for call in replay(recording).calls if call.tool == "delete_file"]
    assert deleted.passes
    assert not deleted.is_known
    transcript = replay(recording, deny="^read_")
    assert "contents of" not in transcript.after
    assert "Tool not found: read_file" in transcript.after


def test_a_replay_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers late would make a replay differ from the last one."""
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_options: asked.append(args))
    replay(read_recording(LEGACY), deny=DENY)
    assert asked == []


def test_messages_keep_their_order_behind_a_long_one(tmp_path: Path) -> None:
    """mitmproxy reads 64 KiB at a time; the recorded upstream must not answer half a request."""
    flows = flow_dump.read_flows(REPOSITORY / "recordings" / "mcp1-streamable-json.flow")
    for flow in flows:
        asked, said = flow.metadata[KEY]["asked"], flow.metadata[KEY].get("said")
        asked["body"] = asked["body"].replace(b"/b.txt", b"x" * 3_000_000)
        for chunk in said["chunks"] if said else ():
            chunk[1] = chunk[1].replace(b"/b.txt", b"x" * 3_000_000)
    flow_dump.write_flows(tmp_path / "long.flow", flows)
    transcript = replay(read_recording(tmp_path / "long.flow"), deny=DENY)
    assert list(find_changes(transcript)) == []
    assert max(len(turn.heard) for turn in transcript.turns) > 3_000_000
    assert max(len(turn.reached or b"") for turn in transcript.turns) > 3_000_000


@each_row("recording", RECORDINGS)
def test_no_secret_is_in_a_recording(recording: Path) -> None:
    raw = recording.read_bytes()
    assert b"not-really-a-secret" not in raw
    fields = [field for flow in read_recording(recording).flows for field in flow.head.headers]
    named = [field for field in fields if field[0].lower() in (b"mcp-session-id", b"authorization")]
    assert all(b"scrubbed-" in value for _, value in named)


# A recording answers real clients, with the filter between them and without
WITH_AN_SDK = [name for name, session in SESSIONS.items() if not session.play]


def played(name: str, url: str) -> Document:
    """Let the recorded client do again what it did."""
    session = SESSIONS[name]
    need(session.client)
    document = play(session.client, url, session.steps, *session.client_flags)
    assert document.error is None
    return document


def running(name: str) -> AbstractContextManager[RecordedUpstream]:
    return running_upstream(read_recording(REPOSITORY / "recordings" / f"{name}.flow"))


@each_row("name", WITH_AN_SDK)
def test_the_recorded_client_can_repeat_its_session(name: str) -> None:
    steps = SESSIONS[name].steps
    with running(name) as upstream:
        document = played(name, upstream.url)
    assert len(document.outcomes) == len(steps)
    said = json.dumps(document.outcomes, ensure_ascii=False)
    assert "timeout" not in said
    if {"call": "read_file"}.items() <= {**steps[1]}.items():
        assert "contents of /ä/b.txt" in said


@pytest.mark.parametrize("name", ["mcp1-sse", "mcp1-streamable-sse", "mcp2-stateless"])
def test_the_filter_can_run_in_front_of_a_recording(name: str) -> None:
    with (
        running(name) as upstream,
        mitmdump(upstream.origin, deny=DENY, endpoint=upstream.path) as between,
    ):
        document = played(name, between.url(upstream.path))
    listed = document.outcomes[0]["result"]["tools"]
    assert "delete_file" not in [tool["name"] for tool in listed]
    said = json.dumps(document.outcomes, ensure_ascii=False)
    assert "Tool not found: delete_file" in said
    assert "contents of /ä/b.txt" in said
    assert "timeout" not in said


def test_two_clients_do_not_disturb_each_other() -> None:
    with running("mcp1-sse") as upstream:
        one, other = (played("mcp1-sse", upstream.url) for _ in range(2))
    assert one.outcomes == other.outcomes
