"""Going through a session again. (With all recordings and policies: tests/recorded.)"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import Chunk, Recording, Said, read_recording
from mcp_tool_filter.adapters.recordings.recorded_upstream import ToolsUnknown
from mcp_tool_filter.adapters.recordings.replay import replay
from mcp_tool_filter.errors import InvalidPattern, StartError
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.verdict import Why
from tests.proxy import REPOSITORY


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(REPOSITORY / "recordings" / "mcp1-streamable-json.flow")


def test_patterns_may_be_one_text_or_several(recording: Recording) -> None:
    one = replay(recording, deny="^read_,^echo$")
    several = replay(recording, deny=["^read_", "^echo$"])
    assert one.listed_after == several.listed_after
    assert {"read_file", "echo"}.isdisjoint(one.listed_after)
    assert replay(recording, allow="^echo$").listed_after == ["echo"]


@pytest.mark.parametrize(("tools_list", "is_asked"), [("upstream", True), ("cache", False)])
def test_other_options_apply_to_a_replay(
    recording: Recording, tools_list: str, is_asked: bool
) -> None:
    transcript = replay(recording, tools_list=tools_list)
    [turn] = [one for one in transcript.turns if b"tools/list" in one.asked]
    assert (turn.reached is not None) == is_asked


@pytest.mark.parametrize(
    ("options", "error"),
    [({"deny": "["}, InvalidPattern), ({"message_limit": "many"}, StartError)],
)
def test_wrong_options_are_refused(
    recording: Recording, options: dict[str, str], error: type[StartError]
) -> None:
    with pytest.raises(error):
        replay(recording, **options)


def test_a_recording_without_tools_is_refused(recording: Recording) -> None:
    with pytest.raises(ToolsUnknown):
        replay(replace(recording, flows=recording.flows[-1:]))


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304)])
def test_an_answer_that_can_have_no_body_has_none(
    recording: Recording, method: str, status: int
) -> None:
    flow = recording.flows[-1]
    at, kind = flow.at + 1, (b"content-type", b"text/plain")
    said = Said(status=status, headers=(kind,), at=at, chunks=(Chunk(at, b"left"),), ended=at)
    asked = replace(flow, head=Head(method, "/readme", ()), body=b"", said=said)
    turn = replay(replace(recording, flows=(*recording.flows, asked))).turns[-1]
    assert (turn.reached, turn.status, turn.heard) == (b"", status, b"")


def test_a_client_of_an_unknown_host_is_refused(recording: Recording) -> None:
    """And the transcript says why."""
    flows = [replace(flow, host="evil.example") for flow in recording.flows]
    turns = replay(replace(recording, flows=tuple(flows))).turns
    assert {(turn.status, turn.reached) for turn in turns} == {(403, None)}
    assert {one.why for turn in turns for one in turn.judgements} == {Why.FORBIDDEN}
