"""What rules remember of sessions and of requests: bounded in number, bytes and time."""

from __future__ import annotations

import json
from functools import partial
from unittest.mock import patch

import pytest

from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.exchange import Client, Situation
from mcp_tool_filter.policy.verdict import Reply
from mcp_tool_filter.protocol.messages import Request
from mcp_tool_filter.rules.link import AskedBefore, RuleSession, RuleSessions, RulesLink
from mcp_tool_filter.rules.policy import Candidates
from tests.make import policy
from tests.rules.judging import Host, call, finish, request, rules, single


def used(sessions: RuleSessions, key: str, now: float) -> RuleSession:
    return sessions.get(key, partial(str, key), None, now)


def test_a_silent_session_is_cleaned_up_and_a_used_one_is_not() -> None:
    sessions = RuleSessions(ttl=100.0)
    old = used(sessions, "old", 0.0)
    kept = used(sessions, "kept", 0.0)
    used(sessions, "kept", 90.0)
    used(sessions, "new", 170.0)  # which cleans up
    assert [one.id for one in sessions] == ["kept", "new"]
    assert used(sessions, "kept", 180.0) is kept
    assert used(sessions, "old", 180.0) is not old


def test_a_session_that_returns_too_late_is_a_new_one() -> None:
    """Also before the clean-up, which runs once a minute."""
    sessions = RuleSessions(ttl=10.0)
    old = used(sessions, "a", 1000.0)
    old.custom["budget"] = 1
    new = used(sessions, "a", 1011.0)
    assert (new.started, new.messages, new.custom) == (1011.0, 1, {})


def test_a_shorter_time_applies_to_the_sessions_that_are_there() -> None:
    sessions = RuleSessions(ttl=1000.0)
    used(sessions, "a", 0.0)
    sessions.ttl = 10.0
    used(sessions, "b", 100.0)
    assert [one.id for one in sessions] == ["b"]


def test_sessions_are_bounded() -> None:
    sessions = RuleSessions(most=3)
    for number in range(10):
        used(sessions, str(number), float(number))
    assert [one.id for one in sessions] == ["7", "8", "9"]


def test_the_time_to_live_of_a_policy_ends_sessions_behind_a_listener(host: Host) -> None:
    made = rules("- {id: r, actions: [log: {message: x}]}", host, top="session_ttl: 10s")
    link = RulesLink(made, host.at_once, clock=host.clock)
    snapshot = policy("read").snapshot

    def says(address: str) -> list[str]:
        situation = Situation(snapshot=snapshot, client=Client(address=address), links=(link,))
        decision = link.decide(single(call()), situation)
        if waits(decision):
            finish(decision, host)
        return [one[0] for one in link.sessions_at_work()]

    (first,) = says("1.1.1.1")
    host.now += 61.0
    (second,) = says("2.2.2.2")
    assert first != second
    assert link.sessions.ttl == 10.0
    link.adopt(rules("- {id: r, actions: [log: {message: x}]}", host, top="session_ttl: 1h"))
    host.now += 61.0
    assert len(says("1.1.1.1")) == 2


def asked(text: str) -> Request:
    message = single(text)
    assert isinstance(message, Request)
    return message


def test_an_id_used_for_two_requests_matches_none() -> None:
    memory = AskedBefore(is_strict=True)
    one, other = asked(call("read")), asked(request("vendor/do"))
    memory.note("s", "1", one)
    memory.note("s", "1", one)
    assert memory.find("s", "1") is one
    memory.note("s", "1", other)
    assert memory.find("s", "1") is None
    memory.note("s", "1", other)
    assert memory.find("s", "1") is None
    assert memory.find("t", "1") is None


def test_requests_are_bounded_in_number_and_bytes() -> None:
    one = asked(call("read"))
    size = len(one.place.text)
    memory = AskedBefore(most=10, most_bytes=5 * size)
    for number in range(20):
        memory.note("s", str(number), one)
    known = [number for number in range(20) if memory.find("s", str(number))]
    assert known == [15, 16, 17, 18, 19]


WHEN = "conditions: [{param_equals: {field: a, value: v%s}}]"
MANY = "".join(f"- {{id: r{n}, {WHEN % n}, actions: [block: x]}}\n" for n in range(20))
TOLD = """
- {id: told, on: response, conditions: [error_message_contains: x],
   actions: [inject_error: {code: 9, message: "told ${params.a} ${id}"}]}
"""


@pytest.mark.parametrize(("id", "shown"), [(1, "1"), ("i", "i"), (None, "")])
def test_an_error_of_a_rule_is_judged_as_it_is_written(host: Host, id: object, shown: str) -> None:
    """It is our own, so nothing has to parse it; and its rules are looked up once."""
    link = RulesLink(rules(MANY + TOLD, host), host.at_once, clock=host.clock)
    said = {"jsonrpc": "2.0", "id": id, "method": "vendor/do", "params": {"a": "v3"}}
    asked = single(json.dumps(said))
    looked_up = patch.object(Candidates, "possible", autospec=True, side_effect=Candidates.possible)
    unparsed = patch("mcp_tool_filter.rules.link.parse_message", side_effect=AssertionError)
    with looked_up as possible, unparsed:
        decision = link.decide(asked, Situation(snapshot=policy("read").snapshot, links=(link,)))
        verdict = finish(decision, host) if waits(decision) else decision
    assert isinstance(verdict, Reply)
    error = {"code": 9, "message": f"told v3 {shown}"}
    assert json.loads(verdict.text) == {"jsonrpc": "2.0", "id": id, "error": error}
    assert possible.call_count == 2  # for the request and for its answer
