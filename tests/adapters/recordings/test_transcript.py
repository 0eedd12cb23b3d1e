"""Transcripts of replayed sessions, and the checks that find leaks and changes in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.adapters.recordings.flow_dump import Chunk, Recording, Said, read_recording
from mcp_tool_filter.adapters.recordings.recorded_upstream import ToolsUnknown
from mcp_tool_filter.adapters.recordings.replay import replay
from mcp_tool_filter.adapters.recordings.transcript import (
    Judgement,
    Transcript,
    Turn,
    find_changes,
    find_leaks,
)
from mcp_tool_filter.errors import InvalidPattern, StartError
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Why
from tests.make import calling, listing, message, snapshot
from tests.proxy import REPOSITORY

DENIED = Judgement(None, Reply(b"no", Reason(Why.DENIED, ("b",))), "denied by ^b\nand more")

PASSED = Judgement(message(calling("a")), Forward(), "passes")


def turn(
    asked: bytes = calling("a"),
    reached: bytes | None = b"",
    said: bytes = b'{"said":1}',
    heard: bytes = b"",
    *judgements: Judgement,
) -> Turn:
    """One turn; what is empty is as it was before."""
    return Turn(
        head=Head("POST", "/mcp", ()),
        asked=asked,
        reached=asked if reached == b"" else reached,
        said=said,
        is_guess=False,
        status=200,
        heard=heard or said,
        content_type="application/json",
        judgements=judgements,
    )


def transcript(*turns: Turn) -> Transcript:
    return Transcript("name", snapshot("a", "b"), (listing("a", "b"),), turns)


def test_an_unchanged_turn_is_shown_in_short() -> None:
    text = transcript(turn(calling("a"), b"", b'{"said":1}', b"", PASSED)).render()
    assert text.splitlines() == [
        "POST /mcp",
        f"client says     {calling('a').decode()}",
        'upstream says   {"said":1}',
        "client gets 200 the same",
        "",
    ]


def test_a_refusal_is_shown_with_its_reason() -> None:
    one = turn(calling("b"), None, b"", b"no", DENIED)
    assert transcript(one).render().splitlines()[2:6] == [
        "upstream gets   nothing",
        "client gets 200 no",
        "because         denied by ^b",
        "                and more",
    ]
    assert one.refusals == [DENIED]
    assert (DENIED.why, PASSED.why) == (Why.DENIED, None)
    assert not one.is_untouched


def test_calls_show_whether_they_pass_and_are_known() -> None:
    turns = [turn(), turn(calling("b"), None), replace(turn(calling("c")), is_guess=True)]
    calls = [(one.tool, one.passes, one.is_known) for one in transcript(*turns).calls]
    assert calls == [("a", True, True), ("b", False, True), ("c", True, False)]


def test_both_sides_can_be_searched() -> None:
    asked, full, short = calling("b"), listing("a", "b"), listing("a")
    both = transcript(turn(asked, None, b""), turn(asked, b"", full, short))
    assert '"b"' in both.before
    assert both.listed_before == ["a", "b"]
    assert both.listed_after == ["a"]
    assert full.decode() not in both.after


# The checks of a replayed session find what they are for, and nothing in an honest one.

CHANGED_REQUEST = "turn 1, POST /mcp: the upstream did not get the request that the client sent"

CHANGED_ANSWER = "turn 1, POST /mcp: the client did not get the answer that the upstream sent"

NOT_FOUND = b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"Tool not found: b"}}'


def replayed(*turns: Turn) -> Transcript:
    return Transcript("name", snapshot("a", "b", deny="b"), (listing("a", "b"),), turns)


def stream(said: bytes, heard: bytes) -> Turn:
    return replace(turn(said=said, heard=heard), content_type="text/event-stream")


def batch(*parts: bytes) -> bytes:
    return b"[" + b",".join(parts) + b"]"


@pytest.mark.parametrize(
    ("one", "leaks"),
    [
        (turn(calling("a")), []),
        (turn(calling("b"), None), []),
        (turn(calling("b")), ["a call of the tool b reached the upstream"]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (turn(calling("a"), b"", listing("a", "b")), ["a client saw the tool b"]),
    ],
)
def test_a_leak_is_found(one: Turn, leaks: list[str]) -> None:
    assert list(find_leaks(replayed(one))) == leaks


@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (turn(), []),
        (turn(calling("a"), calling("a") + b" "), [CHANGED_REQUEST]),
        (turn(batch(calling("a"), calling("b")), batch(calling("a"))), []),
        (turn(batch(calling("a"), calling("b")), batch(calling("c"))), [CHANGED_REQUEST]),
        (turn(calling("a"), b"", b'{"n":1}', b'{"n":2}'), [CHANGED_ANSWER]),
        (turn(calling("a"), b"", listing("a", "b"), listing("a")), []),
        (stream(b"data: 1\n\n", b"data: 1\r\n\r\n"), []),
        (stream(b"data: 1\n\n", b"data: 2\n\n"), [CHANGED_ANSWER]),
        (stream(b"data: 1\n\n", b"data: %s\n\ndata: 1\n\n" % NOT_FOUND), []),
        (replace(turn(calling("a"), None), heard=b"ours"), []),
    ],
)  # fmt: skip
def test_a_change_is_found(one: Turn, changes: list[str]) -> None:
    assert list(find_changes(replayed(one))) == changes


def test_an_invalid_answer_may_be_replaced() -> None:
    invalid = Judgement(None, Drop(Reason(Why.INVALID)), "invalid")
    one = replace(turn(calling("a"), b"", b"{{{", b'{"error":1}'), judgements=(invalid,))
    assert list(find_changes(replayed(one))) == []


# Going through a session again. (With all recordings and policies: tests/recorded.)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(REPOSITORY / "recordings" / "mcp1-streamable-json.flow")


def test_patterns_may_be_one_text_or_several(recording: Recording) -> None:
    for given in ("^read_,^echo$", ["^read_", "^echo$"]):
        listed = replay(recording, deny=given).listed_after
        assert listed
        assert {"read_file", "echo"}.isdisjoint(listed)
    assert replay(recording, allow="^echo$").listed_after == ["echo"]


@pytest.mark.parametrize(("tools_list", "is_asked"), [("upstream", True), ("cache", False)])
def test_other_options_apply_to_a_replay(
    recording: Recording, tools_list: str, is_asked: bool
) -> None:
    transcript = replay(recording, tools_list=tools_list)
    [turn] = [one for one in transcript.turns if b"tools/list" in one.asked]
    assert (turn.reached is not None) == is_asked


@pytest.mark.parametrize(
    ("options", "error"), [({"deny": "["}, InvalidPattern), ({"message_limit": "many"}, StartError)]
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
