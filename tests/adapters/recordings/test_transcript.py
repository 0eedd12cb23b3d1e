"""What a transcript says of a session, turn by turn."""

from __future__ import annotations

from dataclasses import replace

from mcp_tool_filter.adapters.recordings.transcript import Judgement, Transcript, Turn
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Why
from tests.make import calling, listing, message, snapshot

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
