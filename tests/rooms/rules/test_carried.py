"""What revision 2026-07-28 carries inside other messages: rules see it as what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from mcp_tool_filter.core.policy.effects import begin
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Session, Situation
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import VERDICTS, Drop, Forward, Reply, Verdict
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.policy import Policy
from tests.make import replied, rewritten
from tests.rooms.rules.judging import Host, call, error, request, result, rule, rules, single
from tests.rows import each_row

type Decide = Callable[[str], Verdict]
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "my secret"}}]}


def wanting(**requests: object) -> str:
    return result({"resultType": "input_required", "inputRequests": requests, "n": 1.0})


def asking(method: str = "sampling/createMessage", params: object = SAMPLING) -> dict[str, object]:
    return {"method": method, "params": params} if params else {"method": method}


def answering(**answers: object) -> str:
    params = {"name": "read", "arguments": {}, "inputResponses": answers}
    return request("tools/call", params)


def listening(*uris: object) -> str:
    params = {"notifications": {"resourceSubscriptions": list(uris)}}
    return request("subscriptions/listen", params)


def link(policy: Policy) -> tuple[Decide, Decide]:
    """Return what decides on the messages of the client, and of the upstream."""
    host = Host()
    rules_link = RulesLink(policy, host.at_once, clock=host.clock)
    client = Client(session=Session(id="s"))

    def decide(direction: Direction, text: str) -> Verdict:
        asked = RpcExchange("tools/call", "1")
        situation = Situation(take_snapshot([]), direction, client, asked)
        decision = begin(rules_link.decide(single(text), situation))
        assert isinstance(decision, VERDICTS)
        return decision

    return partial(decide, Direction.FROM_CLIENT), partial(decide, Direction.FROM_UPSTREAM)


@each_row(("conditions", "text", "is_refused"), [
    ("method_equals: sampling/createMessage", wanting(a=asking()), True),
    ("{from: server}, {method_starts_with: sampl}", wanting(a=asking()), True),
    ("{from: client}, {method_starts_with: sampl}", wanting(a=asking()), False),
    ("method_equals: roots/list", wanting(a=asking(), b=asking("roots/list", None)), True),
    ("method_equals: elicitation/create", wanting(a=asking()), False),
    ("param_matches: {field: 'messages[*].content.text', pattern: secret}", wanting(a=asking()),
     True),
    ("method_equals: sampling/createMessage",
     wanting(a=asking()).replace("inputRequests", "input\\u0052equests"), True),
    ("method_equals: sampling/createMessage", wanting(a=asking()).replace("1.0", '"é"'), True),
    ("method_equals: sampling/createMessage", result({"inputRequests": None}), False),
    ("method_equals: sampling/createMessage", result({"content": []}), False),
])  # fmt: skip
def test_requests_in_a_result_are_judged(conditions: str, text: str, is_refused: bool) -> None:
    _, from_upstream = link(rule(conditions, "block: no"))
    verdict = from_upstream(text)
    if not is_refused:
        assert verdict == Forward()
        return
    refused = {"code": -32001, "message": "no", "data": {"rule": "r", "action": "block"}}
    assert json.loads(rewritten(verdict)) == {"jsonrpc": "2.0", "id": 1, "error": refused}


@each_row("text", [
    wanting(a="x"), result({"inputRequests": [asking()]}),
    result({"InputRequests": {"a": asking()}}), wanting(a={"method": 1}),
    wanting(a={"method": "x", "Method": "sampling/createMessage"}),
    '{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{},"inputRequests":{}}}',
])  # fmt: skip
def test_requests_in_a_result_that_cannot_be_judged_are_refused(text: str) -> None:
    _, from_upstream = link(rule("method_equals: sampling/createMessage", "block: no"))
    refused = json.loads(rewritten(from_upstream(text)))
    assert refused == json.loads(error(-32600, "Invalid Request"))


def test_a_change_of_a_carried_request_keeps_all_other_bytes() -> None:
    policy = rule(
        "method_equals: sampling/createMessage",
        "set_param: {field: maxTokens, value: 5}, redact: {pattern: secret}",
    )
    _, from_upstream = link(policy)
    text = wanting(a=asking(), b=asking("roots/list", None), c=asking(params=None))
    bare = '"c": {"method": "sampling/createMessage"'
    expected = text.replace('my secret"}}]}', 'my ***"}}],"maxTokens":5}')
    expected = expected.replace(bare, bare + ',"params":{"maxTokens":5}')
    assert rewritten(from_upstream(text)).decode() == expected


def test_the_clients_answers_in_a_request_are_judged_with_their_requests(host: Host) -> None:
    text = """
- {id: r, on: response, conditions: [{from: client}, {method_equals: roots/list},
    {result_matches: {field: 'roots[0].uri', pattern: home}}], actions: [block: no]}
- {id: mask, on: response, conditions: [method_equals: elicitation/create],
    actions: [redact: {pattern: '[0-9]{4}'}]}
"""
    from_client, from_upstream = link(rules(text, host))
    roots = {"roots": [{"uri": "file:///home/me"}]}
    assert from_client(answering(a=roots)) == Forward()  # nobody has asked for them
    asked = wanting(a=asking("roots/list", None), b=asking("elicitation/create"))
    assert from_upstream(asked) == Forward()
    refused = from_client(answering(a=roots))
    assert isinstance(refused, Reply)
    assert refused.reason.rule == "r"
    text = answering(b={"action": "accept", "content": {"pin": "1234"}})
    assert rewritten(from_client(text)).decode() == text.replace("1234", "***")


RESOURCES = (
    "method_interceptors:\n  resources/read:\n    class: ResourceAccessInterceptor\n"
    "    config: {allowed_paths: [/w], deny_patterns: ['*.key']}"
)


def test_resources_in_a_subscription_are_judged_like_subscriptions() -> None:
    from_client, _ = link(rules("", top=RESOURCES))
    assert from_client(listening("file:///w/a", "file:///w/b")) == Forward()
    assert from_client(request("subscriptions/listen", {"notifications": {}})) == Forward()
    for uri in ("file:///etc/x", "file:///w/a.key", 5):
        refused = from_client(listening("file:///w/a", uri))
        assert b"Resource not allowed" in replied(refused)
    note = json.loads(listening("file:///etc/x"))
    del note["id"]
    assert isinstance(from_client(json.dumps(note)), Drop)
    twice = listening().replace("[]", '[], "ResourceSubscriptions": ["file:///etc/x"]')
    assert isinstance(from_client(twice), Reply)

    of_x = "{method_equals: resources/subscribe}, {param_matches: {field: uri, pattern: '^x:'}}"
    from_client, _ = link(rule(of_x, "set_param: {field: uri, value: 'y:1'}"))
    changed = from_client(listening("z:2", "x:1"))
    assert rewritten(changed).decode() == listening("z:2", "y:1")


def test_the_default_action_counts_only_for_the_carrier() -> None:
    top = "chain: {default_action: block}"
    from_client, _ = link(rule("method_equals: subscriptions/listen", "allow", top=top))
    assert from_client(listening("file:///w/a")) == Forward()


def test_most_policies_do_not_look_into_results() -> None:
    policy = rule("tool_equals: x", "block: no")
    assert not policy.may_judge("sampling/createMessage", "elicitation/create", "roots/list")
    from_client, from_upstream = link(policy)
    assert from_upstream(wanting(a="x")) == Forward()
    assert from_client(call()) == Forward()


@pytest.mark.parametrize(
    ("uri", "is_file_of_skill"),
    [("skill://a/b.py", True), ("SKILL://a/b", True), ("git://o/SKILL.md", True), ("a:/b", False)],
)
def test_a_rule_refuses_to_change_the_file_of_a_skill(uri: str, is_file_of_skill: bool) -> None:
    """Its digest is in the skill's manifest: clients would take a changed file for a forged one."""
    conditions = "{method_equals: resources/read}, {result_exists: contents}"
    to_upstream, from_upstream = link(rule(conditions, "redact: {pattern: secret}"))

    def read(text: str) -> Verdict:
        assert to_upstream(request("resources/read", {"uri": uri})) == Forward()
        return from_upstream(result({"contents": [{"uri": uri, "text": text}]}))

    assert read("plain") == Forward()
    changed = json.loads(rewritten(read("secret")))
    assert changed.get("error", {}).get("code") == (-32001 if is_file_of_skill else None)
