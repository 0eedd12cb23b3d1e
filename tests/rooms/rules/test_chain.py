"""The order of interceptors and rules, and what ends a chain."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import Batch, Request, Single, parse_message
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.rooms.rules.chain import is_request
from mcp_tool_filter.rooms.rules.policy import load_policy
from mcp_tool_filter.rooms.rules.rule_effects import RunScript, ScriptResult, WriteLog
from mcp_tool_filter.rooms.rules.subject import Circumstances, Evaluated, Subject
from tests.rooms.rules.judging import (
    Host,
    call,
    fails,
    judged,
    logged,
    message_of,
    request,
    result,
    rule,
    rules,
    single,
    verdict,
)
from tests.rows import each_row

BLOCKS = """
- {id: low, priority: 1, actions: [block: low, log: {message: low}]}
- {id: high, priority: 5, actions: [block: high, log: {message: high}]}
- {id: also-high, priority: 5, actions: [block: also, log: {message: also}]}
- {id: off, priority: 9, enabled: false, actions: [block: off]}
"""


def test_the_first_block_by_priority_ends_the_chain(host: Host) -> None:
    found = judged(rules(BLOCKS), call(), host=host)
    assert (message_of(found), logged(host)) == ("high", ["high"])


def test_without_fail_fast_all_rules_run_their_side_effects(host: Host) -> None:
    found = judged(rules(BLOCKS, top="chain: {fail_fast: false}"), call(), host=host)
    assert (message_of(found), logged(host)) == ("high", ["high", "also", "low"])


def test_without_fail_fast_a_blocked_message_no_longer_waits_or_counts(host: Host) -> None:
    text = """
- {id: a, actions: [block: a]}
- {id: b, actions: [delay: 1s, rate_limit: {key: k, limit: 1, window: 1m}, fork: {},
    cache: {key: k, ttl: 1m}, run_script: {path: ./s, decides: true}, run_script: {path: ./s},
    log: {message: b}]}
"""
    judged(rules(text, host, top="chain: {fail_fast: false}"), call(), host=host)
    assert [type(one) for one in host.effects] == [RunScript, WriteLog]


def test_allow_ends_the_chain() -> None:
    policy = rules("- {id: a, actions: [allow]}\n- {id: b, actions: [block: b]}")
    assert judged(policy, call()).refusal is None


def test_a_block_of_the_same_rule_wins_over_its_allow() -> None:
    assert message_of(judged(rules("- {id: a, actions: [allow, block: a]}"), call())) == "a"


DEFAULT_BLOCK = "chain: {default_action: block}"


@each_row(("text", "refused"), [
    (call(), True), (call("ok"), False), (request("initialize"), False), (request("ping"), False),
    (request("server/discover"), False), (request("tools/list"), True),
    ('{"jsonrpc":"2.0","method":"notifications/initialized"}', False),
    ('{"jsonrpc":"2.0","method":"vendor/event"}', False),
    ('{"jsonrpc":"2.0","method":"tools/call","params":{"name":"bad"}}', True),
    ('{"jsonrpc":"2.0","method":"tools/call","params":{"name":"ok"}}', False),
    ('{"jsonrpc":"2.0","method":"ping"}', False), (result({}), False),
])  # fmt: skip
def test_the_default_action_blocks_requests_that_no_rule_allows(text: str, refused: bool) -> None:
    found = judged(rule("{tool_equals: ok}", "allow", top=DEFAULT_BLOCK), text).refusal
    said = ("default_action", "block") if refused else None
    assert (found and (found.rule, found.action)) == said


def test_the_default_action_does_not_concern_requests_from_the_upstream() -> None:
    about = Circumstances(from_client=False)
    assert judged(rules("", top=DEFAULT_BLOCK), request("roots/list"), about=about).refusal is None


def test_disabled_rules_do_nothing() -> None:
    for top in ("enabled: false", "mode: transport"):
        policy = rules(BLOCKS, top=top)
        assert len(policy.warnings) == 1
        assert verdict(policy, call()) == Forward()


def test_two_rules_that_undo_each_other_come_to_an_end() -> None:
    rename = (
        "- {{id: {0}, conditions: [tool_equals: {1}],"
        " actions: [set_param: {{field: name, value: {2}}}]}}\n"
    )
    ways = ("there", "read", "write"), ("back", "write", "read"), ("there-again", "read", "write")
    found = judged(rules("".join(rename.format(*way) for way in ways)), call("read"))
    assert found.matched == ["there", "back", "there-again"]
    assert b'"write"' in found.message.place.raw


def test_a_changed_message_is_judged_again() -> None:
    seen: list[bytes] = []

    class Changing(Host):
        def at_once(self, effect: object) -> object:
            if not isinstance(effect, RunScript):
                return super().at_once(effect)  # type: ignore[arg-type]  # any effect
            seen.append(effect.input)
            return ScriptResult(0, call("c").encode() if len(seen) == 1 else b"")

    text = """
- {id: a, priority: 2, actions: [run_script: {path: ./a, decides: true}]}
- {id: b, priority: 1, actions: [run_script: {path: ./b, decides: true}]}
"""
    host = Changing()
    found = judged(rules(text, host, top="chain: {parallel: true}"), call(), host=host)
    assert found.message.place.raw.decode() == call("c")
    assert seen == [call().encode(), call().encode(), call("c").encode()]


def only_allowed(message: Single) -> Verdict:
    """A tool filter that knows one tool."""
    if isinstance(message, Request) and message.params:
        name = message.params.get("name")
        if name is None:
            raise ProtocolError("no name")
        if name.text != "read":
            return Reply(b"not found", Reason(Why.UNKNOWN, (name.text or "",)))
    return Forward()


def test_no_rule_makes_a_denied_tool_callable(host: Host) -> None:
    about = Circumstances(filter=only_allowed)
    policy = rule("", "set_param: {field: name, value: rm}, log: {message: x}")
    found = judged(policy, call("read"), host=host, about=about)
    assert found.to_verdict() == Reply(b"not found", Reason(Why.UNKNOWN, ("rm",)))
    assert logged(host) == []


def test_a_changed_list_request_that_the_snapshot_answers_is_judged_to_the_end() -> None:
    """Its answer is no refusal: a later rule may still block it."""
    policy = rules(
        "- {id: change, priority: 2, actions: [set_param: {field: extra, value: 1}]}\n"
        "- {id: stop, priority: 1, actions: [block: stopped]}"
    )
    about = Circumstances(filter=lambda _message: Reply(b"{}", Reason(Why.CACHED)))
    assert message_of(judged(policy, request("tools/list", {}), about=about)) == "stopped"


def test_an_unjudgeable_change_is_a_failing_action() -> None:
    about = Circumstances(filter=only_allowed)
    assert fails(rule("", "remove_param: name"), call("read"), about=about)


def test_after_a_change_later_rules_are_those_of_the_new_tool() -> None:
    policy = rules("""
- {id: rename, priority: 3, actions: [set_param: {field: name, value: b}]}
- {id: first, priority: 5, conditions: [tool_equals: b], actions: [block: too early]}
- {id: old, priority: 1, conditions: [tool_equals: a], actions: [block: old]}
- {id: new, priority: 1, conditions: [tool_equals: b], actions: [block: new]}
""")
    assert message_of(judged(policy, call("a"))) == "new"


def test_the_kinds_of_unclear_messages() -> None:
    policy, asked = rule("{param_exists: a}", "allow"), request("m", {"a": 1, "A": 2})
    assert isinstance(verdict(policy, asked), Reply)
    assert isinstance(verdict(policy, asked.replace('"id": 1, ', "")), Drop)


def test_a_message_that_no_rule_concerns_is_not_read() -> None:
    policy = rule("method_equals: x", "allow")
    for text, is_concerned in ((request("x"), True), (request("y"), False), (result({}), False)):
        assert policy.concerns(Subject(single(text), Circumstances())) is is_concerned


def of_field(**what: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.fixed_dictionaries({"field": FIELDS, **what})


LOGS = {"log": {"message": ""}}

FIELDS = st.sampled_from(["a", "b"])

TEXTS = st.sampled_from(["x", "xy", "yx", "", "z1"])

PATTERNS = st.sampled_from(["^x", "y$", "x|z", "z\\d", ""])

CONDITIONS = st.one_of(
    st.fixed_dictionaries({"param_equals": of_field(value=TEXTS | st.integers(0, 2))}),
    st.fixed_dictionaries({"param_matches": of_field(pattern=PATTERNS)}),
    st.fixed_dictionaries({"param_exists": FIELDS}),
)


@given(
    st.lists(st.lists(CONDITIONS, max_size=2), min_size=9, max_size=14),
    st.dictionaries(st.sampled_from(["a", "b", "A"]), TEXTS | st.integers(0, 2)),
)
def test_the_index_changes_no_outcome(written: list[object], params: dict[str, object]) -> None:
    """With a trace all rules are asked in order; without one, the index chooses."""
    listed = [
        {"id": f"r{n}", "conditions": one, "actions": [LOGS]} for n, one in enumerate(written)
    ]
    policy = load_policy(json.dumps({"interceptor": {"rules": listed}}).encode())
    quick, slow = (
        judged(policy, request("m", params), trace=trace) for trace in (None, list[Evaluated]())
    )
    assert quick.matched == slow.matched
    assert quick.refusal == slow.refusal


@each_row(("text", "expected"), [
    (b'{"jsonrpc":"2.0","id":1,"method":"vendor/do"}', True),
    (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', True),
    (b'{"jsonrpc":"2.0","method":"tools/list"}', True),
    (b'{"jsonrpc":"2.0","method":"resources/read"}', True),
    (b'{"jsonrpc":"2.0","method":"notifications/cancelled"}', False),
    (b'{"jsonrpc":"2.0","method":"vendor/event"}', False),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', False),
])  # fmt: skip
def test_a_request_without_its_id_is_still_one(text: bytes, expected: bool) -> None:
    message = parse_message(text)
    assert not isinstance(message, Batch)
    assert is_request(message) is expected
