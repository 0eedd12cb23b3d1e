"""A long list does not keep others waiting while it is rewritten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation import conversation as from_upstream
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.core.messages import large
from mcp_tool_filter.core.messages.messages import Batch, Message
from mcp_tool_filter.core.policy.effects import (
    LET_OTHERS_GO_ON,
    Deciding,
    Decision,
    FetchTools,
    waits,
)
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from tests import make
from tests.core.conversation.asking_kinds import Http, asked, finished, open_session
from tests.make import answering, asking, calling, judge_from_upstream, listing, rewritten, text_of
from tests.rows import each_row

ALL_NAMES = [f"{'rm' if number % 10 == 1 else 'tool'}_{number}" for number in range(10_000)]
NAMES = ALL_NAMES[:250]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 250 tools as many for us as 10,000."""
    monkeypatch.setattr(from_upstream, "_LONG", 256 * 1024 // 40)
    monkeypatch.setattr(large, "_STEP", 32 * 1024 // 40)


def policy_of(*names: str) -> PolicyInForce:
    return make.policy(*names, deny="^rm")


def asking_for_a_list(policy: PolicyInForce) -> Conversation:
    opened = Conversation(policy)
    opened.from_client(asking("tools/list"))
    return opened


def last_of(decision: Decision[Judged]) -> tuple[Judged, int]:
    """Carry out what a decision waits for; return what was decided, and after how many steps."""
    assert waits(decision)
    steps = 0
    while True:
        try:
            assert next(decision) == LET_OTHERS_GO_ON
        except StopIteration as made:
            judged: Judged = made.value
            return judged, steps
        steps += 1


def test_ten_thousand_tools_are_rewritten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    policy = policy_of(*ALL_NAMES)
    raw = listing(*ALL_NAMES) + b"\n"
    opened = asking_for_a_list(policy)
    judged, steps = last_of(opened.from_upstream(raw))
    allowed = [name for name in ALL_NAMES if name.startswith("tool")]
    assert isinstance(judged.verdict, Rewrite)
    assert judged.verdict.text == listing(*allowed) + b"\n"
    assert len(judged.verdict.reason.tools) == 1000
    assert steps > len(raw) // (40 * 1024)
    assert opened.waiting == []


def changing(message: Message, _situation: Situation) -> Verdict:
    """A rule that changes what it sees."""
    assert not isinstance(message, Batch)
    raw = message.place.raw
    return Rewrite(raw.replace(b":5", b":6"), Reason(Why.CHANGED)) if b":5" in raw else Forward()


def changing_later(message: Message, situation: Situation) -> Decision[Verdict]:
    def wait() -> Deciding[Verdict]:
        yield LET_OTHERS_GO_ON
        return changed

    changed = changing(message, situation)
    return changed if isinstance(changed, Forward) else wait()


@pytest.mark.parametrize("form", [b"%b", b"[%b]"], ids=["alone", "in a batch"])
@pytest.mark.parametrize("rule", [None, changing, changing_later])
@pytest.mark.parametrize("known", [["other"], NAMES], ids=["first list", "known list"])
def test_reading_in_steps_gives_the_same_result(
    monkeypatch: pytest.MonkeyPatch, form: bytes, rule: Any, known: list[str]
) -> None:
    raw = form % listing(*NAMES, more=',"ttlMs":5')
    verdicts: list[tuple[Verdict, Verdict]] = []
    for longest in (from_upstream._LONG, 1 << 40):
        monkeypatch.setattr(from_upstream, "_LONG", longest)
        policy = policy_of(*known)
        policy.links = (SimpleNamespace(decide=rule),) if rule else ()
        is_first = known is not NAMES
        asks = asking_anew if is_first else asking_for_a_list
        decision = asks(policy).from_upstream(raw)
        if longest == 1 << 40 or (form != b"%b" and rule is changing_later):
            judged = finished(decision)
        else:
            judged, steps = last_of(decision)
            assert steps > len(raw) // 2048
        later = open_session(policy).from_client(asking("tools/list"), None, Http())
        verdicts.append((judged.verdict, finished(later).verdict))
    assert verdicts[0] == verdicts[1]


def test_several_long_lists_in_a_batch_are_read_and_judged_in_turns() -> None:
    lists = [listing(*NAMES, id=str(id)) for id in (1, 2, 3)]
    opened = Conversation(policy_of(*NAMES))
    opened.from_client(b"[%b]" % b",".join([asking("tools/list", id=str(id)) for id in (1, 2, 3)]))
    judged, steps = last_of(opened.from_upstream(b"[%b]" % b",".join(lists)))
    kept = [listing(*(name for name in NAMES if name[0] == "t"), id=str(id)) for id in (1, 2, 3)]
    assert rewritten(judged.verdict) == b"[%b]" % b",".join(kept)
    assert steps > 3 * len(lists[0]) // 2048
    assert opened.waiting == []


def first_list(in_force: PolicyInForce, raw: bytes) -> Decision[Judged]:
    """Let a client of a kind whose list is unknown get that list, because it lists or calls."""
    return asking_anew(in_force).from_upstream(raw)


def asking_anew(in_force: PolicyInForce) -> Conversation:
    between = open_session(in_force)
    asked(between, asking("tools/list"))
    return between


def first_call(in_force: PolicyInForce, name: str) -> Decision[Judged]:
    return open_session(in_force).from_client(calling(name), None, Http())


def test_the_first_list_of_a_kind_is_read_in_steps_and_pinned() -> None:
    in_force, raw = policy_of("other"), listing(*NAMES)
    judged, steps = last_of(first_list(in_force, raw))
    allowed = [name for name in NAMES if name.startswith("tool")]
    assert text_of(judged.verdict) == listing(*allowed)
    assert steps > len(raw) // 1024
    again = open_session(in_force)
    assert text_of(asked(again, asking("tools/list"))) == listing(*allowed)
    assert isinstance(asked(again, calling("tool_new", id="2")), Reply)


def test_a_call_that_waits_for_a_long_list_lets_others_go_on() -> None:
    """Of the calls that share a fetch, one reads the list."""
    in_force, raw = policy_of("other"), listing(*NAMES)
    calls = [first_call(in_force, name) for name in ("tool_2", "rm_1", "tool_3", "tool_new")]
    verdicts: list[Verdict] = []
    came: object = None
    steps = 0
    for one in calls:
        assert waits(one)
        assert isinstance(next(one), FetchTools)
    came = (raw,)
    while calls:
        for one in list(calls):
            assert waits(one)
            try:
                assert one.send(came) == LET_OTHERS_GO_ON
            except StopIteration as made:
                verdicts.append(made.value.verdict)
                calls.remove(one)
        came = None
        steps += 1
    assert steps > 2 * len(raw) // 1024
    assert [isinstance(one, Forward) for one in verdicts] == [True, False, True, False]


def after(steps: int, waiting: Decision[Judged], raw: bytes, in_force: PolicyInForce) -> Verdict:
    """Change the patterns after so many steps of a decision; return what it comes to."""
    came: object = None
    for _ in range(steps):
        assert waits(waiting)
        effect = waiting.send(came)
        came = (raw,) if isinstance(effect, FetchTools) else None
    in_force.adopt(parse_config(deny=["^rm", "_42$"]))
    verdict: Verdict = finished(waiting, came).verdict
    return verdict


@each_row("steps", [1, 4, 8, 12, 14])
def test_patterns_changed_at_any_step_of_a_list_or_a_call_apply(steps: int) -> None:
    raw = listing(*NAMES)
    for known in (["other"], NAMES):
        in_force = policy_of(*known)
        shown = text_of(after(steps, first_list(in_force, raw), raw, in_force))
        assert b'"tool_42"' not in shown
        assert b'"tool_43"' in shown
    in_force = policy_of("other")
    assert isinstance(after(steps, first_call(in_force, "tool_42"), raw, in_force), Reply)


CHANGED = listing(*NAMES).replace(b'"name"', b'"title":"new","name"')


@each_row(("steps", "is_call_first"), [
    (1, True), (15, True), (30, True), (1, False), (5, False), (10, False), (14, False),
])  # fmt: skip
def test_a_seen_list_stays_when_two_read_the_first_one(steps: int, is_call_first: bool) -> None:
    """The upstream gives another list to the call that needs one."""
    in_force = policy_of("other")
    waiting_list, waiting_call = first_list(in_force, CHANGED), first_call(in_force, "tool_2")
    assert waits(waiting_call)
    assert isinstance(next(waiting_call), FetchTools)
    came: tuple[bytes, ...] | None = (listing(*NAMES),)
    if is_call_first:
        for _ in range(steps):
            waiting_call.send(came)
            came = None
        verdict = finished(waiting_list).verdict
        assert finished(waiting_call, came).verdict == Forward()
    else:
        assert waits(waiting_list)
        for _ in range(steps):
            next(waiting_list)
        assert finished(waiting_call, came).verdict == Forward()
        verdict = finished(waiting_list).verdict
    again = open_session(in_force)
    assert text_of(asked(again, asking("tools/list"))) == text_of(verdict)


def test_a_long_list_that_cannot_be_judged_is_answered_with_an_error() -> None:
    policy = policy_of(*NAMES)
    for wrong in (b'"tools":[],"tools":', b'"x":NaN,"tools":', b'"Tools":[],"tools":'):
        opened = asking_for_a_list(policy)
        raw = listing(*NAMES).replace(b'"tools":', wrong, 1)
        judged = finished(judge_from_upstream(opened, raw))
        assert b"-32603" in rewritten(judged.verdict)
        assert opened.waiting == []
    opened = Conversation(policy)
    opened.from_client(asking("tools/list", id="7"))
    judged = finished(judge_from_upstream(opened, listing(*NAMES, more=',"y":') + b"}}"))
    assert isinstance(judged.verdict, Rewrite | Drop)


def test_other_long_messages_are_read_at_once() -> None:
    policy = policy_of(*NAMES)
    opened = asking_for_a_list(policy)
    text = "x" * from_upstream._LONG
    said = f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{text}"}}}}'
    judged, _ = last_of(opened.from_upstream(said.encode()))
    assert judged.message is not None
    assert opened.waiting == ["1"]


@pytest.mark.parametrize(
    "tools", ['{"a":[%s]}', '"%s"', "null", '[],"Tools":[%s]', '[%s],"Tools":[]']
)
def test_a_long_answer_to_something_else_may_say_tools_and_mean_others(tools: str) -> None:
    """It was judged as an answer to tools/list if one was being waited for."""
    opened = asking_for_a_list(policy_of("tool_0"))
    opened.from_client(asking("vendor/x", id="2"))
    numbers = ",".join(["1"] * from_upstream._LONG)
    said = tools % numbers if "%" in tools else f'{tools},"x":[{numbers}]'
    judged, _ = last_of(opened.from_upstream(answering(f'{{"tools":{said}}}', id="2")))
    assert judged.verdict == Forward()
    assert opened.waiting == ["1"]


@pytest.mark.parametrize("id", ["9", '"1"', "2"])
def test_a_long_list_that_answers_no_list_request_is_filtered_too(id: str) -> None:
    """It was read in parts, and its result passed as if it held no list."""
    opened = asking_for_a_list(policy_of("tool_0"))
    opened.from_client(asking("vendor/x", id="2"))
    judged, _ = last_of(judge_from_upstream(opened, listing(*NAMES[:1], "new", *NAMES, id=id)))
    assert text_of(judged.verdict) == listing("tool_0", id=id)
