"""Each condition of a rule, with messages for which it holds and for which it does not."""

from __future__ import annotations

import json
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.rules.fields import Number
from mcp_tool_filter.rooms.rules.subject import Circumstances
from tests.rooms.rules.judging import (
    call,
    error,
    is_unclear,
    judged,
    matches,
    request,
    result,
    rule,
)
from tests.rows import each_row

LOG = 'log: {message: "seen"}'

REQUESTS = [
    ("method_equals: tools/call", [call()],
     [request("tools/list"), json.dumps({"jsonrpc": "2.0", "method": "a"})]),
    ("method_starts_with: expensive/", [request("expensive/one")], [request("inexpensive/one")]),
    ("method_ends_with: /list", [request("tools/list")], [request("tools/lists")]),
    ('method_matches: "^res.*s/"', [request("resources/read")], [request("xresources/read")]),
    ("method_in: [a, b]", [request("b")], [request("c")]),
    ("tool_equals: read", [call("read")], [call("Read"), request("prompts/get", {"name": "read"})]),
    ("tool_in: [read, write]", [call("write")], []),
    ('tool_matches: "^wr"', [call("write")], [call("rewrite")]),
    ('tool_matches: {pattern: "^wr", ignore_case: true}', [call("WRITE")], []),
    ('tool_matches: {pattern: "^wr", ignore_case: false}', [], [call("WRITE")]),
    ('method_matches: {pattern: "LIST$", ignore_case: true}', [request("tools/list")], []),
    ("param_exists: arguments.a", [call(a=None)], [call(b=1)]),
    ("param_exists: a", [], [request("x"), request("x", [1])]),
    ("param_exists: /arguments/a~1b", [call(**{"a/b": 1})], []),
    (r'param_exists: "arguments.a\\.b"', [call(**{"a.b": 1})], [call(a={"b": 1})]),
    ("param_equals: {field: arguments.n, value: 1}", [call(n=1.0)], [call(n=True)]),
    ("param_equals: {field: arguments.n, value: true}", [], [call(n=1)]),
    ("param_equals: {field: arguments.n, value: null}", [call(n=None)], [call(n=0)]),
    ('param_equals: {field: arguments.n, value: "1"}', [], [call(n=1)]),
    ("param_equals: {field: arguments, value: {a: [1, {b: c}], d: 2}}",
     [call(d=2, a=[1, {"b": "c"}])], []),
    ("param_equals: {field: arguments, value: {a: 1}}", [], [call(a=1, b=2)]),
    ("param_equals: {field: arguments.l, value: [1, 2]}", [], [call(l=[2, 1])]),
    ("param_in: {field: arguments.n, values: [1, two]}", [call(n="two")], [call(n="three")]),
    ("param_matches: {field: arguments.p, pattern: '^/etc'}", [call(p="/etc/x")],
     [call(p="/x/etc")]),
    ("param_matches: {field: arguments.p, pattern: '1'}", [], [call(p=1)]),
    ("param_matches: {field: arguments.p, pattern: drop, ignore_case: true}",
     [call(p="x" * 300 + "DROP")], []),
    ("param_matches: {field: arguments.p, pattern: {pattern: drop, ignore_case: true}}",
     [call(p="DROP")], []),
    ("all: [param_matches: {field: arguments.p, pattern: drop, ignore_case: true}, "
     "not: {param_matches: {field: arguments.p, pattern: drop}}]",
     [call(p="x" * 300 + "DROP")], []),
    ("param_greater_than: {field: arguments.n, value: 10}", [call(n=10.5)],
     [call(n=10), call(n="11")]),
    ("param_less_than: {field: arguments.n, value: -1.5}", [call(n=-2)], [call(n=-1.5)]),
    ("param_is_null: arguments.n", [call(n=None)], [call()]),
    ("param_is_array: arguments.n", [call(n=[])], [call(n={})]),
    ("param_equals: {field: 'arguments.l[1].x', value: 2}", [call(l=[{"x": 1}, {"x": 2}])], []),
    ("param_equals: {field: 'arguments.l[0].x', value: 2}", [], [call(l=[{"x": 1}, {"x": 2}])]),
    ("param_equals: {field: 'arguments.l[*].x', value: 2}", [call(l=[{"x": 1}, {"x": 2}])], []),
    ("param_equals: {field: '/arguments/l/1/x', value: 2}", [call(l=[{"x": 1}, {"x": 2}])], []),
    ("param_exists: 'arguments.l[2]'", [], [call(l=[1, 2])]),
    ("session_id_equals: s1", [call()], []), ("session_id_equals: s2", [], [call()]),
    ("session_age_greater_than: 5m", [call()], []),
    ("session_age_greater_than: 20m", [], [call()]),
    ("from: client", [call()], []), ("from: server", [], [call()]),
    ("all: [method_equals: tools/call, tool_equals: read]", [call()], []),
    ("all: [method_equals: tools/call, tool_equals: write]", [], [call()]),
    ("any: [method_equals: x, tool_equals: read]", [call()], []),
    ("any: [method_equals: x, tool_equals: write]", [], [call()]),
    ("not: {param_exists: arguments.a}", [call()], [call(a=1)]),
    ("not: {any: [{not: {tool_equals: read}}, method_equals: x]}", [call()], []),
]  # fmt: skip


@each_row(("condition", "met", "unmet"), REQUESTS)
def test_conditions_on_requests(condition: str, met: list[str], unmet: list[str]) -> None:
    policy = rule(_flow(condition), LOG)
    for text in (*met, *unmet):
        about = Circumstances(session_id="s1", session_started=400.0)
        assert (judged(policy, text, about=about).matched == ["r"]) is (text in met), text


RESPONSES = [
    ("result_exists: content", [result({"content": None})], [result({})]),
    ("result_equals: {field: 'content[0].text', value: a}",
     [result({"content": [{"text": "a"}]})], []),
    ("result_matches: {field: 'content[*].text', pattern: 'sk-'}",
     [result({"content": [{"text": "a"}, {"text": "my sk-1"}]})], [result({"content": []})]),
    ("result_exists: a", [], [error(-1, "a")]),
    ("error_code_equals: -32000",
     [error(-32000, "x")], [error(-32001, "x"), result({"error": {"code": -32000}})]),
    ("error_message_contains: denied", [error(-1, "access denied!")], [error(-1, "Denied")]),
]  # fmt: skip


@each_row(("condition", "met", "unmet"), RESPONSES)
def test_conditions_on_responses(condition: str, met: list[str], unmet: list[str]) -> None:
    for text in (*met, *unmet):
        assert matches(rule(_flow(condition), LOG), text, asked=call()) is (text in met), text


def _flow(condition: str) -> str:
    """Write a condition as an item of a flow list."""
    return "{" + condition + "}"


ERROR = '{"jsonrpc":"2.0","id":1,"error":{"code":6,"Code":5,"message":"a","MESSAGE":"b"}}'
ENDLESS = request("m", {"n": 5}).replace("5", "1e" + "9" * 2000)


@each_row(("condition", "text"), [
    ("error_code_equals: 5", ERROR), ("error_message_contains: b", ERROR),
    ("param_exists: secret", request("x", {"\u017fecret": 1})),  # a long s counts as an s
    ("param_equals: {field: 'l[*].x', value: 1}", request("m", {"l": [{"x": 1}, {"X": 2}]})),
    ("param_equals: {field: 'l[*].x', value: 1}", request("m", {"l": [{"X": 2}, {"x": 1}]})),
    ("param_greater_than: {field: n, value: 1}", ENDLESS),
])  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(condition: str, text: str) -> None:
    assert is_unclear(rule(_flow(condition), LOG), text, call())


def test_a_response_rule_sees_the_request_it_answers() -> None:
    policy = rule("{result_exists: x}, {tool_equals: read}, {param_exists: arguments.a}", LOG)
    assert matches(policy, result({"x": 1}), asked=call("read", a=1))
    assert not matches(policy, result({"x": 1}), asked=call("write", a=1))
    assert not matches(policy, result({"x": 1}))


def test_escapes_are_decoded_before_comparing() -> None:
    text = call().replace('"read"', '"r\\u0065ad"').replace("arguments", "\\u0061rguments")
    assert matches(rule("{tool_equals: read}, {param_exists: arguments}", LOG), text)


def test_only_a_path_that_was_read_can_cause_a_refusal() -> None:
    """The method and tool conditions come first, whatever their order in the file."""
    text = request("other", {"a": 1, "A": 2})
    policy = rule("{param_exists: a}, {method_equals: tools/call}", LOG)
    assert not is_unclear(policy, text)
    assert is_unclear(rule("{param_exists: a}", LOG), text)


NUMBERS = [
    ("9007199254740993", "9007199254740992", False),
    ("0.1", "0.10000000000000000000000001", False),
    ("1e400", "1e401", False), ("1E+2", "100.00", True), ("-0.0", "0", True),
    ("1" + "0" * 5000, "1e5000", True), ("1e-7", "0.0000001", True),
]  # fmt: skip


@each_row(("wanted", "given_", "equal"), NUMBERS)
def test_numbers_are_compared_and_never_rounded(wanted: str, given_: str, equal: bool) -> None:
    policy = rule(f"{{param_equals: {{field: n, value: {wanted}}}}}", LOG)
    assert matches(policy, request("m", {"n": 5}).replace("5", given_)) == equal


@given(st.decimals(allow_nan=False, allow_infinity=False), st.floats(-1e300, 1e300))
def test_comparing_numbers_agrees_with_python(one: object, two: float) -> None:
    left, right = Decimal(str(one)), Decimal(str(two))
    assert (Number(str(left).replace("E", "e")) < Number(str(two))) == (left < right)
    assert (Number(str(left).replace("E", "e")) == Number(str(two))) == (left == right)
