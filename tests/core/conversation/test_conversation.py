"""The one place that reads, decides, remembers and tells, without any transport."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import Notification, Request, Single
from mcp_tool_filter.core.policy.effects import Deciding, Decision, Delay, Together, waits
from mcp_tool_filter.core.policy.situation import Client, Direction, Session, Situation
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    judge_from_upstream,
    listing,
    policy,
    replied,
    rewritten,
)

LIST = asking("tools/list")


class Linked:
    """A link that decides what the test wants, and remembers what it saw."""

    def __init__(self, **verdicts: Verdict | float) -> None:
        self.verdicts = verdicts
        self.seen: list[tuple[Direction, str]] = []

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        asked = situation.exchange.method if situation.exchange else "?"
        method = message.method if isinstance(message, Request | Notification) else f"to {asked}"
        self.seen.append((situation.direction, method))
        verdict = self.verdicts.get(method.replace("/", "_").replace(" ", "_"), Forward())
        return self._after(verdict) if isinstance(verdict, float) else verdict

    def _after(self, seconds: float) -> Deciding[Verdict]:
        yield Delay(seconds)
        return Forward()


def conversation(*links: Linked, told: list[Judged] | None = None) -> Conversation:
    in_force = policy("read", "rm", deny="^rm", links=links)
    if told is not None:
        in_force.observe = told.append
    return Conversation(in_force, Client(session=Session()))


def said(to: Conversation, raw: bytes) -> Judged:
    judged: Judged = at_once(to.from_client(raw))
    return judged


def heard(by: Conversation, raw: bytes) -> Judged:
    judged: Judged = at_once(judge_from_upstream(by, raw))
    return judged


def test_observers_get_each_message_with_its_exchange_its_direction_and_its_origin() -> None:
    told: list[Judged] = []
    between = conversation(told=told)
    origin = object()
    between.from_client(calling("read", id="7"), origin)
    between.from_upstream(answering("{}", id="7"), origin)
    first, second = told
    assert first.exchange is second.exchange
    assert first.exchange
    assert (first.exchange.method, first.exchange.tool) == ("tools/call", "read")
    assert (first.direction, second.direction) == (Direction.FROM_CLIENT, Direction.FROM_UPSTREAM)
    assert first.origin is second.origin is origin
    assert first.size == len(calling("read", id="7"))
    assert between.waiting == []


def test_observers_get_a_batch_once_with_the_verdict_of_each_member() -> None:
    told: list[Judged] = []
    between = conversation(told=told)
    said(between, b"[" + calling("read") + b"," + calling("rm", id="2") + b"]")
    [batch] = told
    assert isinstance(batch.verdict, Rewrite)
    assert [type(one.verdict) for one in batch.each] == [Forward, Reply]
    assert [one.exchange.tool for one in batch.each if one.exchange] == ["read", "rm"]
    assert between.waiting == ["1"]


def test_waiting_requests_are_known_until_the_answer_or_the_loss() -> None:
    between = conversation()
    said(between, calling("read", id='"a"'))
    said(between, asking("ping", id="2"))
    said(between, calling("rm", id="3"))
    assert between.waiting == ['"a"', "2"]
    heard(between, answering("{}", id="2"))
    assert [json.loads(one)["id"] for one in between.lose()] == ["a"]
    assert between.waiting == []


@pytest.mark.parametrize("raw", [b"\xff", b"{", b'{"jsonrpc":"2.0","id":4,"method":1}', b""])
def test_unreadable_client_messages_are_refused(raw: bytes) -> None:
    told: list[Judged] = []
    judged = said(conversation(told=told), raw)
    assert isinstance(judged.verdict, Reply)
    assert judged.verdict.reason.why is Why.MALFORMED
    assert told == [judged]


def test_too_large_messages_are_refused_with_their_id_in_both_directions() -> None:
    between = conversation()
    between.policy.config = parse_config(deny=["^rm"], message_limit="1KB")
    too_large = said(between, asking("ping", id="5", params='{"x":"' + "x" * 2000 + '"}'))
    assert json.loads(replied(too_large.verdict))["id"] == 5
    cut = between.oversized_from_client(b'{"jsonrpc":"2.0","id":6,"me', "a line of 300 bytes")
    assert json.loads(replied(cut.verdict))["id"] == 6
    said(between, asking("ping", id="7"))
    answer = heard(between, answering('"' + "x" * 2000 + '"', id="7"))
    assert json.loads(rewritten(answer.verdict))["error"]["code"] == -32603


def test_from_upstream_raises_for_unreadable_messages() -> None:
    """A body that is no message may be a page of a login."""
    with pytest.raises(ProtocolError):
        conversation().from_upstream(b"<html>")


def test_a_session_learns_its_revision_from_the_answer_to_initialize() -> None:
    between = conversation()
    said(between, asking("initialize"))
    heard(between, answering('{"protocolVersion":"2025-06-18"}'))
    assert between.client.revision == "2025-06-18"


# Links


def test_links_never_see_what_the_tool_filter_refuses() -> None:
    link = Linked()
    said(conversation(link), calling("rm"))
    assert link.seen == []


def test_links_see_a_message_in_order_until_one_refuses_it() -> None:
    no = Reply(b"no", Reason(Why.MALFORMED))
    first, second, third = Linked(), Linked(ping=no), Linked()
    assert said(conversation(first, second, third), asking("ping")).verdict == no
    assert [len(link.seen) for link in (first, second, third)] == [1, 1, 0]


def test_a_rewritten_message_is_judged_by_the_tool_filter_again() -> None:
    """No link can make a denied tool callable."""
    link = Linked(ping=Rewrite(calling("rm"), Reason(Why.HIDDEN)))
    verdict = said(conversation(link), asking("ping")).verdict
    assert b"Tool not found: rm" in replied(verdict)


def test_a_rewritten_message_reaches_the_next_link_and_the_upstream() -> None:
    changed = calling("read", id="1", arguments='{"x":1}')
    link, after = Linked(ping=Rewrite(changed, Reason(Why.HIDDEN))), Linked()
    between = conversation(link, after)
    assert said(between, asking("ping")).verdict == Rewrite(changed, Reason(Why.HIDDEN))
    assert after.seen == [(Direction.FROM_CLIENT, "tools/call")]
    assert between.waiting == ["1"]


def test_a_denied_tool_added_to_a_list_by_a_link_is_removed() -> None:
    link = Linked(to_tools_list=Rewrite(listing("rm", "read"), Reason(Why.HIDDEN)))
    between = conversation(link)
    said(between, LIST)
    verdict = heard(between, listing("read")).verdict
    assert rewritten(verdict) == listing("read")


def test_a_link_without_effects_does_not_wait() -> None:
    class YieldsNothing:
        def decide(self, message: Single, situation: Situation) -> Deciding[Verdict]:
            yield from ()
            return Drop(Reason(Why.MALFORMED))

    in_force = policy("read", links=(YieldsNothing(),))
    judged = Conversation(in_force).from_client(asking("ping"))
    assert isinstance(judged, Judged)
    assert isinstance(judged.verdict, Drop)


def test_a_waiting_decision_is_remembered_only_after_its_effects() -> None:
    told: list[Judged] = []
    between = conversation(Linked(ping=2.5), told=told)
    waiting = between.from_client(asking("ping"))
    assert waits(waiting)
    assert next(waiting) == Delay(2.5)
    assert (between.waiting, told) == ([], [])
    with pytest.raises(StopIteration) as made:
        next(waiting)
    assert made.value.value.verdict == Forward()
    assert between.waiting == ["1"]


def test_the_members_of_a_batch_wait_together() -> None:
    between = conversation(Linked(ping=1.0))
    waiting = between.from_client(b"[" + asking("ping") + b"," + asking("ping", id="2") + b"]")
    assert waits(waiting)
    effect = next(waiting)
    assert isinstance(effect, Together)
    assert [next(one) for one in effect.decisions] == [Delay(1.0), Delay(1.0)]


def test_a_batch_with_a_member_that_cannot_be_judged_is_refused_as_one_message() -> None:
    told: list[Judged] = []
    between = conversation(Linked(tools_call=1.0), told=told)
    between.client.session = Session()
    unclear = calling("read", id="3").replace(b'"name"', b'"name":"rm","name"')
    assert unclear != calling("read", id="3")
    between.from_client(
        b"[" + calling("read") + b"," + calling("rm", id="2") + b"," + unclear + b"]"
    )
    (batch,) = told
    assert batch.each == (batch,)
    assert isinstance(batch.verdict, Reply)
    assert batch.verdict.reason.why is Why.MALFORMED
    assert not between.policy.held.cancel(between.client, "1")
