"""A recording answers real clients, with the filter between them and without."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import read_recording
from mcp_tool_filter.adapters.recordings.recorded_upstream import RecordedUpstream, running_upstream
from tests.end_to_end.filtering import mitmdump
from tests.end_to_end.peer import need, play
from tests.proxy import REPOSITORY
from tests.recorded.make import DENY, SESSIONS

WITH_AN_SDK = [name for name, session in SESSIONS.items() if not session.play]


def running(name: str) -> AbstractContextManager[RecordedUpstream]:
    return running_upstream(read_recording(REPOSITORY / "recordings" / f"{name}.flow"))


@pytest.mark.parametrize("name", WITH_AN_SDK)
def test_the_recorded_client_can_repeat_its_session(name: str) -> None:
    session = SESSIONS[name]
    need(session.client)
    with running(name) as upstream:
        document = play(session.client, upstream.url, session.steps, *session.client_flags)
    assert document.error is None
    assert len(document.outcomes) == len(session.steps)
    said = json.dumps(document.outcomes, ensure_ascii=False)
    assert "timeout" not in said
    if {"call": "read_file"}.items() <= {**session.steps[1]}.items():
        assert "contents of /ä/b.txt" in said


@pytest.mark.parametrize("name", ["mcp1-sse", "mcp1-streamable-sse", "mcp2-stateless"])
def test_the_filter_can_run_in_front_of_a_recording(name: str) -> None:
    session = SESSIONS[name]
    need(session.client)
    with (
        running(name) as upstream,
        mitmdump(upstream.origin, deny=DENY, endpoint=upstream.path) as between,
    ):
        url = between.url(upstream.path)
        document = play(session.client, url, session.steps, *session.client_flags)
    assert document.error is None
    listed = document.outcomes[0]["result"]["tools"]
    assert "delete_file" not in [tool["name"] for tool in listed]
    said = json.dumps(document.outcomes, ensure_ascii=False)
    assert "Tool not found: delete_file" in said
    assert "contents of /ä/b.txt" in said
    assert "timeout" not in said


def test_two_clients_do_not_disturb_each_other() -> None:
    session = SESSIONS["mcp1-sse"]
    need(session.client)
    with running("mcp1-sse") as upstream:
        documents = [
            play(session.client, upstream.url, session.steps, *session.client_flags)
            for _ in range(2)
        ]
    assert documents[0].outcomes == documents[1].outcomes
