"""Each condition of a rule, with messages for which it holds and for which it does not."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rules.fields import Number
from mcp_tool_filter.rules.subject import Circumstances
from tests.rules.judging import call, error, is_unclear, judged, matches, request, result, rule

LOG = 'log: {message: "seen"}'

REQUESTS = [
    ("method_equals: tools/call", call(), True),
    ("method_equals: tools/call", request("tools/list"), False),
    ("method_equals: tools/call", json.dumps({"jsonrpc": "2.0", "method": "a"}), False),
    ("method_starts_with: expensive/", request("expensive/one"), True),
    ("method_starts_with: expensive/", request("inexpensive/one"), False),
    ("method_ends_with: /list", request("tools/list"), True),
    ("method_ends_with: /list", request("tools/lists"), False),
    ('method_matches: "^res.*s/"', request("resources/read"), True),
    ('method_matches: "^res.*s/"', request("xresources/read"), False),
    ("method_in: [a, b]", request("b"), True),
    ("method_in: [a, b]", request("c"), False),
    ("tool_equals: read", call("read"), True),
    ("tool_equals: read", call("Read"), False),
    ("tool_equals: read", request("prompts/get", {"name": "read"}), False),
    ("tool_in: [read, write]", call("write"), True),
    ('tool_matches: "^wr"', call("write"), True),
    ('tool_matches: "^wr"', call("rewrite"), False),
    ('tool_matches: {pattern: "^wr", ignore_case: true}', call("WRITE"), True),
    ('tool_matches: {pattern: "^wr", ignore_case: false}', call("WRITE"), False),
    ('method_matches: {pattern: "LIST$", ignore_case: true}', request("tools/list"), True),
    ("param_exists: arguments.a", call(a=None), True),
    ("param_exists: arguments.a", call(b=1), False),
    ("param_exists: a", request("x"), False),
    ("param_exists: a", request("x", [1]), False),
    ("param_exists: /arguments/a~1b", call(**{"a/b": 1}), True),
    (r'param_exists: "arguments.a\\.b"', call(**{"a.b": 1}), True),
    (r'param_exists: "arguments.a\\.b"', call(a={"b": 1}), False),
    ("param_equals: {field: arguments.n, value: 1}", call(n=1.0), True),
    ("param_equals: {field: arguments.n, value: 1}", call(n=True), False),
    ("param_equals: {field: arguments.n, value: true}", call(n=1), False),
    ("param_equals: {field: arguments.n, value: null}", call(n=None), True),
    ("param_equals: {field: arguments.n, value: null}", call(n=0), False),
    ('param_equals: {field: arguments.n, value: "1"}', call(n=1), False),
    ("param_equals: {field: arguments, value: {a: [1, {b: c}], d: 2}}",
     call(d=2, a=[1, {"b": "c"}]), True),
    ("param_equals: {field: arguments, value: {a: 1}}", call(a=1, b=2), False),
    ("param_equals: {field: arguments.l, value: [1, 2]}", call(l=[2, 1]), False),
    ("param_in: {field: arguments.n, values: [1, two]}", call(n="two"), True),
    ("param_in: {field: arguments.n, values: [1, two]}", call(n="three"), False),
    ("param_matches: {field: arguments.p, pattern: '^/etc'}", call(p="/etc/x"), True),
    ("param_matches: {field: arguments.p, pattern: '^/etc'}", call(p="/x/etc"), False),
    ("param_matches: {field: arguments.p, pattern: '1'}", call(p=1), False),
    ("param_matches: {field: arguments.p, pattern: drop, ignore_case: true}",
     call(p="x" * 300 + "DROP"), True),
    ("param_matches: {field: arguments.p, pattern: {pattern: drop, ignore_case: true}}",
     call(p="DROP"), True),
    ("all: [param_matches: {field: arguments.p, pattern: drop, ignore_case: true}, "
     "not: {param_matches: {field: arguments.p, pattern: drop}}]",
     call(p="x" * 300 + "DROP"), True),
    ("param_greater_than: {field: arguments.n, value: 10}", call(n=10.5), True),
    ("param_greater_than: {field: arguments.n, value: 10}", call(n=10), False),
    ("param_greater_than: {field: arguments.n, value: 10}", call(n="11"), False),
    ("param_less_than: {field: arguments.n, value: -1.5}", call(n=-2), True),
    ("param_less_than: {field: arguments.n, value: -1.5}", call(n=-1.5), False),
    ("param_is_null: arguments.n", call(n=None), True),
    ("param_is_null: arguments.n", call(), False),
    ("param_is_array: arguments.n", call(n=[]), True),
    ("param_is_array: arguments.n", call(n={}), False),
    ("param_equals: {field: 'arguments.l[1].x', value: 2}", call(l=[{"x": 1}, {"x": 2}]), True),
    ("param_equals: {field: 'arguments.l[0].x', value: 2}", call(l=[{"x": 1}, {"x": 2}]), False),
    ("param_equals: {field: 'arguments.l[*].x', value: 2}", call(l=[{"x": 1}, {"x": 2}]), True),
    ("param_equals: {field: '/arguments/l/1/x', value: 2}", call(l=[{"x": 1}, {"x": 2}]), True),
    ("param_exists: 'arguments.l[2]'", call(l=[1, 2]), False),
    ("session_id_equals: s1", call(), True),
    ("session_id_equals: s2", call(), False),
    ("session_age_greater_than: 5m", call(), True),
    ("session_age_greater_than: 20m", call(), False),
    ("from: client", call(), True),
    ("from: server", call(), False),
    ("all: [method_equals: tools/call, tool_equals: read]", call(), True),
    ("all: [method_equals: tools/call, tool_equals: write]", call(), False),
    ("any: [method_equals: x, tool_equals: read]", call(), True),
    ("any: [method_equals: x, tool_equals: write]", call(), False),
    ("not: {param_exists: arguments.a}", call(), True),
    ("not: {param_exists: arguments.a}", call(a=1), False),
    ("not: {any: [{not: {tool_equals: read}}, method_equals: x]}", call(), True),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "text", "holds"), REQUESTS)
def test_conditions_on_requests(condition: str, text: str, holds: bool) -> None:
    about = Circumstances(session_id="s1", session_started=400.0)
    found = judged(rule(_flow(condition), LOG), text, about=about)
    assert (found.matched == ["r"]) == holds


RESPONSES = [
    ("result_exists: content", result({"content": None}), True),
    ("result_exists: content", result({}), False),
    ("result_equals: {field: 'content[0].text', value: a}", result({"content": [{"text": "a"}]}),
     True),
    ("result_matches: {field: 'content[*].text', pattern: 'sk-'}",
     result({"content": [{"text": "a"}, {"text": "my sk-1"}]}), True),
    ("result_matches: {field: 'content[*].text', pattern: 'sk-'}", result({"content": []}), False),
    ("result_exists: a", error(-1, "a"), False),
    ("error_code_equals: -32000", error(-32000, "x"), True),
    ("error_code_equals: -32000", error(-32001, "x"), False),
    ("error_code_equals: -32000", result({"error": {"code": -32000}}), False),
    ("error_message_contains: denied", error(-1, "access denied!"), True),
    ("error_message_contains: denied", error(-1, "Denied"), False),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "text", "holds"), RESPONSES)
def test_conditions_on_responses(condition: str, text: str, holds: bool) -> None:
    assert matches(rule(_flow(condition), LOG), text, asked=call()) == holds


def _flow(condition: str) -> str:
    """Write a condition as an item of a flow list."""
    return "{" + condition + "}"


@pytest.mark.parametrize("condition", ["error_code_equals: 5", "error_message_contains: b"])
def test_an_error_that_can_be_read_in_two_ways_is_refused(condition: str) -> None:
    members = '"code":6,"Code":5,"message":"a","MESSAGE":"b"'
    text = f'{{"jsonrpc":"2.0","id":1,"error":{{{members}}}}}'
    assert is_unclear(rule(condition, "block: x"), text, call())


def test_a_response_rule_sees_the_request_it_answers() -> None:
    policy = rule("{result_exists: x}, {tool_equals: read}, {param_exists: arguments.a}", LOG)
    assert matches(policy, result({"x": 1}), asked=call("read", a=1))
    assert not matches(policy, result({"x": 1}), asked=call("write", a=1))
    assert not matches(policy, result({"x": 1}))


def test_a_long_s_counts_as_an_s_in_keys() -> None:
    text = request("x", {"\u017fecret": 1})
    assert is_unclear(rule("{param_exists: secret}", LOG), text)


def test_escapes_are_decoded_before_comparing() -> None:
    text = call().replace('"read"', '"r\\u0065ad"').replace("arguments", "\\u0061rguments")
    assert matches(rule("{tool_equals: read}, {param_exists: arguments}", LOG), text)


def test_only_a_path_that_was_read_can_cause_a_refusal() -> None:
    """The method and tool conditions come first, whatever their order in the file."""
    text = request("other", {"a": 1, "A": 2})
    policy = rule("{param_exists: a}, {method_equals: tools/call}", LOG)
    assert not is_unclear(policy, text)
    assert is_unclear(rule("{param_exists: a}", LOG), text)


def test_every_element_is_judged_in_any_order() -> None:
    policy = rule("{param_equals: {field: 'l[*].x', value: 1}}", LOG)
    assert is_unclear(policy, request("m", {"l": [{"x": 1}, {"X": 2}]}))
    assert is_unclear(policy, request("m", {"l": [{"X": 2}, {"x": 1}]}))


NUMBERS = [
    ("9007199254740993", "9007199254740992", False),
    ("0.1", "0.10000000000000000000000001", False),
    ("1e400", "1e401", False),
    ("1E+2", "100.00", True),
    ("-0.0", "0", True),
    ("1" + "0" * 5000, "1e5000", True),
    ("1e-7", "0.0000001", True),
]


@pytest.mark.parametrize(("wanted", "given_", "equal"), NUMBERS)
def test_numbers_are_compared_by_value_and_never_rounded(
    wanted: str, given_: str, equal: bool
) -> None:
    text = request("m", {"n": 5}).replace("5", given_)
    policy = rule(f"{{param_equals: {{field: n, value: {wanted}}}}}", LOG)
    assert matches(policy, text) == equal


@given(st.decimals(allow_nan=False, allow_infinity=False), st.floats(-1e300, 1e300))
def test_comparing_numbers_agrees_with_python(one: object, two: float) -> None:
    left, right = Decimal(str(one)), Decimal(str(two))
    assert (Number(str(left).replace("E", "e")) < Number(str(two))) == (left < right)
    assert (Number(str(left).replace("E", "e")) == Number(str(two))) == (left == right)


def test_an_exponent_without_end_cannot_be_judged() -> None:
    text = request("m", {"n": 5}).replace("5", "1e" + "9" * 2000)
    assert is_unclear(rule("{param_greater_than: {field: n, value: 1}}", LOG), text)
