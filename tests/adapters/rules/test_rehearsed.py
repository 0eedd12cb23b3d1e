"""The outcome of a rehearsed message, in the words that the commands print."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.adapters.rules.rehearsal import (
    Rehearsal,
    Rehearsed,
    lines_of,
    rehearse,
    shown_outcome,
)
from mcp_tool_filter.protocol.messages import Request, Response, parse_message
from mcp_tool_filter.rules.subject import Evaluated
from tests.rules.judging import call, request, result, rules, single

POLICY = """
- {id: tell, conditions: [tool_equals: told], actions: [log: {message: hello}]}
- {id: mask, conditions: [tool_equals: secret],
   actions: [set_param: {field: arguments.key, value: "***"}]}
- {id: stop, conditions: [tool_equals: wipe], actions: [inject_error: {code: -32010, message: No}]}
- {id: quiet, conditions: [method_equals: notifications/noise], actions: [block: "no"]}
"""
NOISE = '{"jsonrpc":"2.0","method":"notifications/noise"}'


def outcome(text: str, *, trace: list[Evaluated] | None = None) -> Rehearsed:
    return rehearse(Rehearsal(rules(POLICY)), parse_message(text.encode()), trace=trace)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (call("read"), "pass"),
        (call("told"), "pass"),
        (call("wipe"), 'block by stop: -32010 "No"'),
        (NOISE, "drop by quiet"),
        (call("secret", key="k"), f"modify by mask: {call('secret', key='***')}"),
    ],
    ids=["no rule", "a rule that changes nothing", "block", "drop", "modify"],
)
def test_each_outcome_is_a_word_with_the_rule_that_decided(text: str, shown: str) -> None:
    assert shown_outcome(outcome(text)) == shown


def test_a_changed_message_is_the_one_that_goes_on() -> None:
    found = outcome(call("secret", key="k"))
    assert found.message
    assert found.message.place.raw.decode() == found.text == call("secret", key="***")
    passed = outcome(call("read"))
    assert passed.message
    assert passed.message.place.raw.decode() == call("read")


def test_a_batch_has_the_gravest_outcome_of_its_members() -> None:
    batch = f"[{call('read')},{call('wipe', 2)},{call('secret', 3, key='k')},{NOISE}]"
    assert outcome(batch).word == "block"
    batch = f"[{call('secret', 3, key='k')},{NOISE}]"
    assert outcome(batch).word == "drop"


def test_a_response_is_judged_with_the_request_that_it_answers() -> None:
    policy = rules(
        "- {id: r, conditions: [tool_equals: told, result_exists: content], actions: [block: 'no']}"
    )
    said = single(result({"content": []}))
    asked = single(call("told"))
    assert isinstance(said, Response)
    assert isinstance(asked, Request)
    told = rehearse(Rehearsal(policy), said, asked=asked, from_client=False)
    assert (told.word, told.rule) == ("block", "r")
    assert rehearse(Rehearsal(policy), said, from_client=False).word == "pass"


def test_a_message_is_from_the_client_by_default() -> None:
    rehearsal = Rehearsal(rules("- {id: r, conditions: [from: server], actions: [block: 'no']}"))
    ping = single(request("ping"))
    assert rehearse(rehearsal, ping).word == "pass"
    assert rehearse(rehearsal, ping, from_client=False).word == "block"


def test_a_reason_that_clients_are_not_told_is_shown() -> None:
    hidden = Rehearsed("block", "r", -32600, "Invalid Request", detail="a key stands twice")
    assert shown_outcome(hidden) == (
        f"block by r: -32600 {json.dumps('Invalid Request')}"
        " (clients do not see this: a key stands twice)"
    )


def test_the_trace_tells_conditions_and_actions() -> None:
    policy = rules(
        "- {id: a, conditions: [param_exists: arguments.x], actions: [log: {message: a}]}\n"
        "- {id: b, conditions: [param_exists: name], actions: [log: {message: b}]}"
    )
    trace: list[Evaluated] = []
    rehearse(Rehearsal(policy), single(call()), trace=trace)
    assert list(lines_of(trace)) == [
        "a: did not match",
        "  no  param_exists: arguments.x",
        "b: matched",
        "  yes param_exists: name",
        "  did log",
    ]
