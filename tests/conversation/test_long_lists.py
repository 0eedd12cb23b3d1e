"""A long list does not keep others waiting while it is rewritten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.conversation import conversation as from_upstream
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import Decision, Delay, waits
from mcp_tool_filter.policy.verdict import Drop, Rewrite
from tests.make import asking, listing

NAMES = [f"{'rm' if number % 10 == 1 else 'tool'}_{number}" for number in range(10_000)]


def policy_of(*names: str) -> PolicyInForce:
    fetched = replace(example(), pages=(listing(*names),))
    return PolicyInForce(config=parse_config(deny=["^rm"]), fetched=fetched)


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
            assert next(decision) == Delay(0.0)
        except StopIteration as made:
            judged: Judged = made.value
            return judged, steps
        steps += 1


def test_a_list_of_ten_thousand_tools_is_rewritten_in_steps() -> None:
    policy = policy_of(*NAMES)
    raw = listing(*NAMES) + b"\n"
    opened = asking_for_a_list(policy)
    judged, steps = last_of(opened.from_upstream(raw))
    allowed = [name for name in NAMES if name.startswith("tool")]
    assert isinstance(judged.verdict, Rewrite)
    assert judged.verdict.text == listing(*allowed) + b"\n"
    assert len(judged.verdict.reason.tools) == 1000
    assert steps > 2 * len(raw) // (40 * 1024)
    assert opened.waiting == []


def test_reading_in_steps_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, raw = policy_of(*NAMES), listing(*NAMES, more=',"ttlMs":5')
    judged, _ = last_of(asking_for_a_list(policy).from_upstream(raw))
    monkeypatch.setattr(from_upstream, "_LONG", 1 << 40)
    at_once = asking_for_a_list(policy_of(*NAMES)).from_upstream(raw)
    assert isinstance(at_once, Judged)
    assert judged.verdict == at_once.verdict


def test_a_known_list_needs_no_steps() -> None:
    policy, raw = policy_of(*NAMES), listing(*NAMES)
    last_of(asking_for_a_list(policy).from_upstream(raw))
    assert isinstance(asking_for_a_list(policy).from_upstream(raw), Judged)


def test_patterns_changed_meanwhile_apply() -> None:
    policy = policy_of(*NAMES)
    decision = asking_for_a_list(policy).from_upstream(listing(*NAMES))
    assert waits(decision)
    next(decision)
    config = parse_config(deny=["^rm", "_42$"])
    policy.adopt(config)
    judged, _ = last_of(decision)
    assert isinstance(judged.verdict, Rewrite)
    assert b'"tool_42"' not in judged.verdict.text
    assert b'"tool_43"' in judged.verdict.text


def test_a_long_list_that_cannot_be_judged_is_answered_with_an_error() -> None:
    policy = policy_of(*NAMES)
    for wrong in (b'"tools":[],"tools":', b'"x":NaN,"tools":', b'"Tools":[],"tools":'):
        opened = asking_for_a_list(policy)
        raw = listing(*NAMES).replace(b'"tools":', wrong, 1)
        judged, _ = last_of(opened.from_upstream(raw))
        assert isinstance(judged.verdict, Rewrite)
        assert b"-32603" in judged.verdict.text
        assert opened.waiting == []
    opened = Conversation(policy)
    opened.from_client(asking("tools/list", id="7"))
    judged, _ = last_of(opened.from_upstream(listing(*NAMES, more=',"y":') + b"}}"))
    assert isinstance(judged.verdict, Rewrite | Drop)


def test_other_long_messages_are_read_at_once() -> None:
    policy = policy_of(*NAMES)
    opened = asking_for_a_list(policy)
    text = "x" * from_upstream._LONG
    said = f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{text}"}}}}'
    judged, _ = last_of(opened.from_upstream(said.encode()))
    assert judged.message is not None
    assert opened.waiting == ["1"]
