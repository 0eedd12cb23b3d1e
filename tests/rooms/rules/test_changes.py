"""What the actions that change a message leave: set, remove, patch, redact, transform."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rooms.rules.rule_effects import Warn
from tests.rooms.rules.judging import Host, call, changed, error, fails, refusal, request, rule
from tests.rows import each_row

CHANGES = {
    "set_param: %s": [
        ("{field: arguments.a, value: 2}", '{"arguments":  {"a" : 1.0 }}',
         '{"arguments":  {"a" : 2 }}'),
        ("{field: arguments.b, value: x}", '{"arguments":  {"a" : 1.0 }}',
         '{"arguments":  {"a" : 1.0,"b":"x" }}'),
        ("{field: a.b.c, value: [1]}", "{ }", '{"a":{"b":{"c":[1]}} }'),
        ("{field: 'l[1]', value: 9}", '{"l":[1, 2 ,3]}', '{"l":[1, 9 ,3]}'),
        ("{field: 'l[*].x', value: 9}", '{"l":[{"x":1}, {}]}', '{"l":[{"x":9}, {"x":9}]}'),
        ("{field: 'l[*].x', value: 9}", '{"l":[]}', '{"l":[]}'),
        ("{field: /l/0, value: 9}", '{"l":[1]}', '{"l":[9]}'),
        ("{field: 'x', value: '${params.y} of ${id}'}", '{"y":1.50}', '{"y":1.50,"x":"1.50 of 1"}'),
        ("{field: x, value: {k: '$$'}}", "{}", '{"x":{"k":"$"}}'),
    ],
    "remove_param: %s": [
        ("a", '{"a":1, "b":2}', '{"b":2}'), ("b", '{"a":1, "b":2}', '{"a":1}'),
        ("b", '{"a":1, "b":2 , "c":3}', '{"a":1 , "c":3}'),
        ("a", '{ "a" : 1 }', "{  }"), ("x", '{"a":1}', '{"a":1}'),
        ("'l[0]'", '{"l":[1, 2]}', '{"l":[2]}'), ("'l[*]'", '{"l":[1, 2]}', '{"l":[]}'),
        ("'l[*].a'", '{"l":[{"a":1}, {"a":2,"b":3}]}', '{"l":[{}, {"b":3}]}'),
    ],
    "transform: {merge_patch: %s}": [
        ("{a: 2, b: null, c: {d: null, e: 1}}", '{"a": 1,"b":2, "z":1.0}',
         '{"a": 2, "z":1.0,"c":{"e":1}}'),
        ("{a: {b: null}}", '{"a": {"b":1 }}', '{"a": { }}'),
        ("{a: [1, null]}", '{"a": {"b":1 }}', '{"a": [1,null]}'),
        ("{a: {b: 1}}", '{"a": 5}', '{"a": {"b":1}}'),
    ],
    "transform: {json_patch: [%s]}": [
        ("{op: add, path: /b, value: 2}", '{"a":1}', '{"a":1,"b":2}'),
        ("{op: add, path: /l/0, value: 0}", '{"l":[1, 2]}', '{"l":[0,1, 2]}'),
        ("{op: add, path: /l/-, value: 3}", '{"l":[1, 2]}', '{"l":[1, 2,3]}'),
        ("{op: add, path: /l/2, value: 3}", '{"l":[1, 2]}', '{"l":[1, 2,3]}'),
        ("{op: remove, path: /a}", '{"a":1, "b":1.0}', '{"b":1.0}'),
        ("{op: replace, path: /a, value: x}", '{"a" : 1}', '{"a" : "x"}'),
        ("{op: move, from: /a, path: /b}", '{"a":1.0, "c":2}', '{"c":2,"b":1.0}'),
        ("{op: copy, from: /a, path: /b}", '{"a":1.0}', '{"a":1.0,"b":1.0}'),
        ("{op: test, path: /a, value: 1}", '{"a":1.0}', '{"a":1.0}'),
        ("{op: replace, path: '', value: {x: 1}}", '{"a":1.0}', '{"x":1}'),
    ],
}  # fmt: skip


@each_row(
    ("change", "params", "expected"),
    [(form % row[0], *row[1:]) for form, listed in CHANGES.items() for row in listed],
)
def test_a_change_of_params_keeps_all_other_bytes(change: str, params: str, expected: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1 ,"method":"m","params": {params} , "x":1.0}}'
    assert changed(rule("", change), text) == text.replace(params, expected)


def test_set_param_creates_missing_params() -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"m" }'
    outcome = changed(rule("", "set_param: {field: a.b, value: true}"), text)
    assert outcome == '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":true}} }'
    null = '{"jsonrpc":"2.0","id":1,"params":null,"method":"m" }'
    outcome = changed(rule("", "set_param: {field: a, value: 1}"), null)
    assert outcome == '{"jsonrpc":"2.0","id":1,"params":{"a":1},"method":"m" }'


@pytest.mark.parametrize("field", ["s.x", "'l[1]'", "/l/1", "/l/-", "'l[0].x'", "'s[0]'"])
def test_an_impossible_change_is_a_failing_action(host: Host, field: str) -> None:
    text, change = request("m", {"s": "text", "l": [1]}), f"set_param: {{field: {field}, value: 1}}"
    found = refusal(rule("", change), text, host)
    assert (found.code, found.action) == (-32001, "error")
    assert [type(one) for one in host.effects] == [Warn]
    allowing = rule("", change, top="chain: {on_error: allow}")
    assert fails(allowing, text)  # the sender chose the types


def test_set_result_changes_a_result_and_leaves_errors_alone() -> None:
    policy = rule("", "set_result: {field: 'content[0].text', value: hidden}")
    text = '{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"secret"}],"n":1.0}}'
    assert changed(policy, text, asked=call()) == text.replace("secret", "hidden")
    assert changed(policy, error(-1, "x"), asked=call()) == error(-1, "x")


def merged(target: object, patch: object) -> object:
    """RFC 7396, section 2, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


KEYS = st.sampled_from(["a", "b", "c d"])

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("xy", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)

OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)


type Members = dict[str, object]


@given(OBJECTS, OBJECTS)
def test_every_merge_patch_does_what_the_rfc_says(params: Members, patch: Members) -> None:
    policy = rule("", f"transform: {{merge_patch: {json.dumps(patch)}}}")
    outcome = json.loads(changed(policy, request("m", params)))
    assert outcome.get("params", {}) == merged(params, patch)


@each_row("operation", [
    "{op: remove, path: /x}", "{op: replace, path: /x, value: 1}", "{op: test, path: /a, value: 2}",
    "{op: add, path: /x/y, value: 1}", "{op: add, path: /l/3, value: 1}",
    "{op: add, path: /l/01, value: 1}", "{op: move, from: /a, path: /a/b}",
])  # fmt: skip
def test_a_json_patch_that_fails_is_a_failing_action(operation: str) -> None:
    policy = rule("", f"transform: {{json_patch: [{{op: remove, path: /a}}, {operation}]}}")
    assert fails(policy, request("m", {"a": 1, "l": [1, 2]}))


def test_redact_replaces_what_the_pattern_matches_in_every_string() -> None:
    policy = rule("{method_equals: tools/call}", "redact: {pattern: 'sk-[a-z0-9]+'}, "
                  "log: {message: '${result.x}'}")  # fmt: skip
    text = (
        '{"jsonrpc":"2.0","id":1,"result":{"sk-key":"sk-key","content":[ {"text":'
        '"\\u0073k-1 \\ud83d\\ude00 sk-22\\nü"}],"n":1.0}}'
    )
    assert changed(policy, text, asked=call()) == (
        '{"jsonrpc":"2.0","id":1,"result":{"sk-key":"***","content":[ {"text":'
        '"*** \\ud83d\\ude00 ***\\nü"}],"n":1.0}}'
    )


def test_redact_may_ignore_case_and_look_at_one_field_only() -> None:
    """Only capitals were found, so a secret in small letters went on."""
    redact = r"""redact: {field: a, pattern: 'key|(s)\1', ignore_case: true, with: '<${id}>"'}"""
    text = request(params={"a": "KEY key Key é sS ss", "b": "KEY key"})
    hidden = {"a": '<1>" <1>" <1>" é <1>" <1>"', "b": "KEY key"}
    assert json.loads(changed(rule("", redact), text))["params"] == hidden


def test_a_python_callable_sees_the_message_and_may_change_it() -> None:
    def mask(message: dict[str, object]) -> object:
        assert isinstance(message["params"], dict)
        message["params"]["a"] = 2
        return message

    host = Host(objects={"m:mask": mask, "m:look": lambda message: None})
    policy = rule("", "transform: {python: 'm:look'}, transform: {python: 'm:mask'}", host)
    text = '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a": 1,  "b": 1.00}}'
    assert changed(policy, text, host) == text.replace('"a": 1', '"a": 2')


@each_row("function", [
    lambda message: 1 / 0, lambda message: "text", lambda message: {**message, "id": 2},
    lambda message: {"jsonrpc": "2.0", "method": "m"},
    lambda message: {**message, "params": {1, 2}},
    lambda message: {**message, "params": float("nan")},
    lambda message: {},
])  # fmt: skip
def test_a_callable_that_fails_is_a_failing_action(function: object) -> None:
    host = Host(objects={"m:f": function})
    assert fails(rule("", "transform: {python: 'm:f'}", host), request("m", {"a": 1}), host)


@given(OBJECTS, OBJECTS)
def test_the_message_that_a_callable_returns_goes_on(params: Members, returned: Members) -> None:
    host = Host(objects={"m:swap": lambda message: {**message, "params": returned}})
    policy = rule("", "transform: {python: 'm:swap'}", host)
    assert json.loads(changed(policy, request("m", params), host))["params"] == returned
