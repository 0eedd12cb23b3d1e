"""What each action does to a message, and which effects it asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.effects.webhooks import split_url
from mcp_tool_filter.policy.effects import Delay
from mcp_tool_filter.policy.rule_effects import (
    EffectFailed,
    Measure,
    RunScript,
    ScriptResult,
    SendCopy,
    SendWebhook,
    Warn,
    WriteLog,
)
from mcp_tool_filter.policy.rules.subject import Circumstances
from mcp_tool_filter.policy.verdict import Drop, Reply, Rewrite
from tests.policy.rules.judging import (
    Host,
    call,
    changed,
    error,
    judged,
    request,
    result,
    rule,
    rules,
    verdict,
)

NOTE = '{"jsonrpc":"2.0","method":"vendor/note","params":{}}'


def error_of(raw: bytes) -> object:
    return json.loads(raw)["error"]


def test_block_answers_a_request() -> None:
    outcome = verdict(rule("", 'block: "no ${tool}"'), call("rm", id="x"))
    assert isinstance(outcome, Reply)
    assert json.loads(outcome.text) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32001, "message": "no rm", "data": {"rule": "r", "action": "block"}},
    }


def test_block_drops_a_notification() -> None:
    assert isinstance(verdict(rule("", "block: x"), NOTE), Drop)


def test_block_replaces_a_response() -> None:
    policy = rule("{result_exists: secret}", "block: x")
    outcome = judged(policy, result({"secret": 1}, id=7), asked=call()).to_verdict()
    assert isinstance(outcome, Rewrite)
    assert json.loads(outcome.text)["id"] == 7
    assert json.loads(outcome.text)["error"]["code"] == -32001


def test_inject_error_answers_with_this_error() -> None:
    action = 'inject_error: {code: -32050, message: "${method}", data: {a: ["${id}", 1.0]}}'
    outcome = verdict(rule("", action), call(id="q"))
    assert isinstance(outcome, Reply)
    assert b'"data":{"a":["q",1.0]}' in outcome.text
    assert error_of(outcome.text) == {
        "code": -32050,
        "message": "tools/call",
        "data": {"a": ["q", 1.0]},
    }


def test_after_a_block_the_same_rule_still_logs() -> None:
    host = Host()
    policy = rule(
        "", 'block: x, log: {level: warn, message: "a\\nb"}, set_param: {field: a, value: 1}, '
        "metric: {name: m}, delay: 5s, webhook: {url: 'http://h/'}", host
    )  # fmt: skip
    verdict(policy, call(), host)
    assert [type(one) for one in host.effects] == [WriteLog, Measure, SendWebhook]
    assert host.effects[0] == WriteLog("warn", "a\\nb", "r")


def test_a_delay_does_not_count_against_the_time_limit() -> None:
    host = Host()
    limit = "rate_limit: {key: k, limit: 9, window: 1m}"
    policy = rule("", f"delay: 10s, {limit}, delay: 10s", host, top="chain: {timeout: 5s}")
    assert judged(policy, call(), host=host).refusal is None
    assert [one for one in host.effects if isinstance(one, Delay)] == [Delay(10.0), Delay(10.0)]


SETS = [
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
]  # fmt: skip


@pytest.mark.parametrize(("action", "params", "expected"), SETS)
def test_set_param_changes_only_that_field(action: str, params: str, expected: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1 ,"method":"m","params": {params} , "x":1.0}}'
    outcome = changed(rule("", f"set_param: {action}"), text)
    assert outcome == text.replace(params, expected)


def test_set_param_creates_missing_params() -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"m" }'
    outcome = changed(rule("", "set_param: {field: a.b, value: true}"), text)
    assert outcome == '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":true}} }'
    null = '{"jsonrpc":"2.0","id":1,"params":null,"method":"m" }'
    outcome = changed(rule("", "set_param: {field: a, value: 1}"), null)
    assert outcome == '{"jsonrpc":"2.0","id":1,"params":{"a":1},"method":"m" }'


@pytest.mark.parametrize("field", ["s.x", "'l[1]'", "/l/1", "/l/-", "'l[0].x'", "'s[0]'"])
def test_an_impossible_change_is_a_failing_action(field: str) -> None:
    text = request("m", {"s": "text", "l": [1]})
    policy = rule("", f"set_param: {{field: {field}, value: 1}}")
    host = Host()
    found = judged(policy, text, host=host)
    assert found.refusal
    assert (found.refusal.code, found.refusal.action) == (-32001, "error")
    assert [type(one) for one in host.effects] == [Warn]
    allowing = rule("", f"set_param: {{field: {field}, value: 1}}", top="chain: {on_error: allow}")
    assert changed(allowing, text) == text


REMOVALS = [
    ("a", '{"a":1, "b":2}', '{"b":2}'),
    ("b", '{"a":1, "b":2}', '{"a":1}'),
    ("b", '{"a":1, "b":2 , "c":3}', '{"a":1 , "c":3}'),
    ("a", '{ "a" : 1 }', "{  }"),
    ("x", '{"a":1}', '{"a":1}'),
    ("'l[0]'", '{"l":[1, 2]}', '{"l":[2]}'),
    ("'l[*]'", '{"l":[1, 2]}', '{"l":[]}'),
    ("'l[*].a'", '{"l":[{"a":1}, {"a":2,"b":3}]}', '{"l":[{}, {"b":3}]}'),
]


@pytest.mark.parametrize(("field", "params", "expected"), REMOVALS)
def test_remove_param(field: str, params: str, expected: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    assert changed(rule("", f"remove_param: {field}"), text) == text.replace(params, expected)


def test_set_result_changes_a_result_and_leaves_errors_alone() -> None:
    policy = rule("", "set_result: {field: 'content[0].text', value: hidden}")
    text = '{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"secret"}],"n":1.0}}'
    assert changed(policy, text, asked=call()) == text.replace("secret", "hidden")
    assert changed(policy, error(-1, "x"), asked=call()) == error(-1, "x")


MERGES = [
    ("{a: 2, b: null, c: {d: null, e: 1}}", '{"a": 1,"b":2, "z":1.0}',
     '{"a": 2, "z":1.0,"c":{"e":1}}'),
    ("{a: {b: null}}", '{"a": {"b":1 }}', '{"a": { }}'),
    ("{a: [1, null]}", '{"a": {"b":1 }}', '{"a": [1,null]}'),
    ("{a: {b: 1}}", '{"a": 5}', '{"a": {"b":1}}'),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "params", "expected"), MERGES)
def test_a_merge_patch(patch: str, params: str, expected: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    policy = rule("", f"transform: {{merge_patch: {patch}}}")
    assert changed(policy, text) == text.replace(params, expected)


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


@given(OBJECTS, OBJECTS)
def test_every_merge_patch_does_what_the_rfc_says(
    params: dict[str, object], patch: dict[str, object]
) -> None:
    policy = rule("", f"transform: {{merge_patch: {json.dumps(patch)}}}")
    outcome = json.loads(changed(policy, request("m", params)))
    assert outcome.get("params", {}) == merged(params, patch)


PATCHES = [
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
]  # fmt: skip


@pytest.mark.parametrize(("operation", "params", "expected"), PATCHES)
def test_a_json_patch(operation: str, params: str, expected: str) -> None:
    text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
    policy = rule("", f"transform: {{json_patch: [{operation}]}}")
    assert changed(policy, text) == text.replace(params, expected)


@pytest.mark.parametrize(
    "operation",
    [
        "{op: remove, path: /x}",
        "{op: replace, path: /x, value: 1}",
        "{op: test, path: /a, value: 2}",
        "{op: add, path: /x/y, value: 1}",
        "{op: add, path: /l/3, value: 1}",
        "{op: add, path: /l/01, value: 1}",
        "{op: move, from: /a, path: /a/b}",
    ],
)
def test_a_json_patch_that_fails_is_a_failing_action(operation: str) -> None:
    policy = rule("", f"transform: {{json_patch: [{{op: remove, path: /a}}, {operation}]}}")
    found = judged(policy, request("m", {"a": 1, "l": [1, 2]}))
    assert found.refusal
    assert found.refusal.action == "error"


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


def test_redact_may_look_at_one_field_only() -> None:
    policy = rule("", "redact: {field: a, pattern: 'x+', with: '<${id}>\"'}")
    text = request("m", {"a": "axxb", "b": "x"})
    assert json.loads(changed(policy, text))["params"] == {"a": 'a<1>"b', "b": "x"}


def test_a_python_callable_sees_the_message_and_may_change_it() -> None:
    def mask(message: dict[str, object]) -> object:
        assert isinstance(message["params"], dict)
        message["params"]["a"] = 2
        return message

    host = Host(objects={"m:mask": mask, "m:look": lambda message: None})
    policy = rule("", "transform: {python: 'm:look'}, transform: {python: 'm:mask'}", host)
    text = '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a": 1,  "b": 1.00}}'
    assert changed(policy, text, host) == text.replace('"a": 1', '"a": 2')


@pytest.mark.parametrize(
    "function",
    [
        lambda message: 1 / 0,
        lambda message: "text",
        lambda message: {**message, "id": 2},
        lambda message: {"jsonrpc": "2.0", "method": "m"},
        lambda message: {**message, "params": {1, 2}},
        lambda message: {**message, "params": float("nan")},
        lambda message: {},
    ],
    ids=["raises", "text", "other id", "other kind", "a set", "nan", "empty"],
)
def test_a_callable_that_fails_is_a_failing_action(function: object) -> None:
    host = Host(objects={"m:f": function})
    policy = rule("", "transform: {python: 'm:f'}", host)
    found = judged(policy, request("m", {"a": 1}), host=host)
    assert found.refusal
    assert found.refusal.action == "error"


@given(OBJECTS, OBJECTS)
def test_whatever_a_callable_returns_is_what_goes_on(
    params: dict[str, object], returned: dict[str, object]
) -> None:
    def swap(message: dict[str, object]) -> object:
        return {**message, "params": returned}

    host = Host(objects={"m:swap": swap})
    policy = rule("", "transform: {python: 'm:swap'}", host)
    assert json.loads(changed(policy, request("m", params), host))["params"] == returned


def test_log_and_metric() -> None:
    host = Host()
    actions = 'log: {level: error, message: "${rule} ${tool}"}, metric: {name: calls, value: 2.5}'
    verdict(rule("", actions, host), call("read"), host)
    assert host.effects == [WriteLog("error", "r read", "r"), Measure("calls", 2.5)]


def test_webhook() -> None:
    host = Host()
    about = Circumstances(session_id="s")
    policy = rule(
        "", "webhook: {url: 'https://h/${tool}', include_message: true, "
        "headers: {X-A: '${id}'}, timeout: 1s}", host
    )  # fmt: skip
    text = call("read", id=3)
    judged(policy, text, host=host, about=about)
    (sent,) = host.effects
    assert isinstance(sent, SendWebhook)
    assert (sent.url, sent.headers, sent.timeout) == ("https://h/read", (("X-A", "3"),), 1.0)
    assert json.loads("{" + sent.members + "}") == {
        "rule": "r", "action": "webhook", "session": "s", "method": "tools/call", "id": 3,
        "tool": "read", "message": json.loads(text),
    }  # fmt: skip


@pytest.mark.parametrize("tool", ["a b", "a?x=1#y", "ä", "@evil.test/", "\ud800"])
def test_a_name_neither_breaks_nor_bends_the_url_of_a_webhook(tool: str) -> None:
    """Else a call with an odd name would be told to nobody, or to somebody else."""
    host = Host()
    policy = rule("", "webhook: {url: 'http://h.test/${params.arguments.x}?a=1'}", host)
    judged(policy, call(x=tool), host=host)
    (sent,) = [one for one in host.effects if isinstance(one, SendWebhook)]
    origin, target = split_url(sent.url)
    assert (origin.host, target.partition("?")[2]) == ("h.test", "a=1")


def test_a_url_may_be_all_of_a_variable() -> None:
    host = Host()
    policy = rule("", "webhook: {url: '${params.arguments.x}'}", host)
    judged(policy, call(x="http://h.test/a?b=c"), host=host)
    (sent,) = [one for one in host.effects if isinstance(one, SendWebhook)]
    assert sent.url == "http://h.test/a?b=c"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999", "x", ""])
def test_a_counter_only_grows(value: str) -> None:
    host = Host()
    policy = rule("", "metric: {name: m, value: '${params.arguments.x}'}", host)
    found = judged(policy, call(x=value), host=host)
    assert found.refusal is not None
    assert found.refusal.action == "error"
    assert not [one for one in host.effects if isinstance(one, Measure)]


def test_fork_sends_copies_without_the_clients_id() -> None:
    host = Host()
    policy = rule("", "fork: {copies: 2}, fork: {to: 'http://h/mcp'}", host)
    assert judged(policy, call(id="mine"), host=host).refusal is None
    assert [type(one) for one in host.effects] == [SendCopy, SendCopy, SendCopy]
    copies = [one for one in host.effects if isinstance(one, SendCopy)]
    assert [one.to for one in copies] == [None, None, "http://h/mcp"]
    assert json.loads(copies[0].head + "5" + copies[0].tail) == json.loads(call(id=5))


SCRIPTS = [
    (ScriptResult(0, b""), None),
    (ScriptResult(1, b"because\n\n"), ("because\n", "block")),
    (ScriptResult(2, b""), ("A rule could not be applied", "error")),
    (ScriptResult(0, b"not json"), ("A rule could not be applied", "error")),
    (EffectFailed("timed out"), ("A rule could not be applied", "error")),
]


@pytest.mark.parametrize(("outcome", "refusal"), SCRIPTS)
def test_a_script_that_decides(
    outcome: ScriptResult | EffectFailed, refusal: tuple[str, str] | None
) -> None:
    host = Host(scripts={"./s": outcome})
    policy = rule("", "run_script: {path: ./s, args: ['${tool}'], decides: true}", host)
    found = judged(policy, call("read"), host=host)
    assert (found.refusal and (found.refusal.message, found.refusal.action)) == refusal
    ran = host.effects[0]
    assert isinstance(ran, RunScript)
    assert ran.command == ("./s", "read")
    assert ran.input == call("read").encode()
    assert dict(ran.environment) == {
        "MCP_RULE": "r", "MCP_METHOD": "tools/call", "MCP_TOOL": "read", "MCP_SESSION_ID": "",
    }  # fmt: skip


def test_a_script_may_return_another_message() -> None:
    host = Host(scripts={"./s": ScriptResult(0, call("other").encode() + b"\n")})
    policy = rule("", "run_script: {path: ./s, decides: true}", host)
    assert changed(policy, call("read"), host) == call("other")


def test_a_script_that_does_not_decide_delays_nothing() -> None:
    host = Host()
    policy = rule("", "run_script: {path: ./s, timeout: 1m}", host)
    assert judged(policy, call(), host=host).refusal is None
    assert [type(one) for one in host.effects] == [RunScript]


def test_a_cached_result_answers_and_the_first_one_is_to_be_stored() -> None:
    host = Host()
    policy = rule("", "cache: {key: '${method}:${params_hash}', ttl: 5m, max_entries: 7}", host)
    first = judged(policy, request("m", {"a": 1}), host=host)
    assert first.cached is None
    (store,) = first.stores
    assert (store.ttl, store.max_entries) == (300.0, 7)
    host.memory.write_cache(store.key, b'{"x":1}', store.ttl, store.group, 7, host.now)
    assert judged(policy, request("m", {"a": 1.0}, id=2), host=host).cached == b'{"x":1}'
    assert judged(policy, request("m", {"a": 2}), host=host).cached is None
    host.now += 301
    assert judged(policy, request("m", {"a": 1}), host=host).cached is None


@pytest.mark.parametrize(
    "about",
    [
        Circumstances(upstream="http://b/mcp", credentials=b"a"),
        Circumstances(upstream="http://a/mcp", credentials=b"b"),
        Circumstances(upstream="http://a/mcp"),
    ],
)
def test_what_is_cached_for_one_user_or_upstream_is_not_for_another(about: Circumstances) -> None:
    host = Host()
    policy = rule("", "cache: {key: k, ttl: 5m}", host)
    owner = Circumstances(upstream="http://a/mcp", credentials=b"a")
    (store,) = judged(policy, request("m"), host=host, about=owner).stores
    host.memory.write_cache(store.key, b"{}", 300, store.group, 9, host.now)
    assert judged(policy, request("m"), host=host, about=owner).cached == b"{}"
    assert judged(policy, request("m"), host=host, about=about).cached is None


def test_cache_does_nothing_on_what_the_snapshot_will_answer() -> None:
    policy = rule("", "cache: {key: k, ttl: 5m}")
    found = judged(policy, request("tools/list"), about=Circumstances(is_answered=True))
    assert found.stores == []


def test_a_rate_limit_is_a_sliding_window_that_refused_messages_do_not_fill() -> None:
    host = Host()
    policy = rule("", "rate_limit: {key: '${tool}', limit: 2, window: 60s}", host)

    def refused(tool: str = "read") -> object:
        refusal = judged(policy, call(tool), host=host).refusal
        return refusal and json.loads(refusal.render("1"))["error"]

    assert refused() is None
    host.now += 30
    assert refused() is None
    assert refused() == {
        "code": -32001,
        "message": "Rate limit exceeded",
        "data": {"rule": "r", "action": "rate_limit", "retry_after": 30},
    }
    assert refused("other") is None
    host.now += 30
    assert refused() is None
    assert refused() is not None
    host.now += 30
    assert refused() is None


VARIABLES = [
    ("${session_id}", "s-1"),
    ("${method}", "tools/call"),
    ("${id}", "a\u00e9"),
    ("${tool}", "read"),
    ("${rule}", "r"),
    ("$$ $x $", "$ $x $"),
    ("[${params.missing}]", "[]"),
    ("${params.arguments.n}", "1.50"),
    ("${params.arguments.o}", '{"a": [1, 2.0]}'),
    ("${params.arguments.l[*]}", "[1,2]"),
    ("${params./arguments/n}", "1.50"),
]


@pytest.mark.parametrize(("template", "expected"), VARIABLES)
def test_templates(template: str, expected: str) -> None:
    text = (
        '{"jsonrpc":"2.0","id":"a\\u00e9","method":"tools/call","params":{"name":"read",'
        '"arguments":{"n":1.50,"o":{"a": [1, 2.0]},"l":[1,2]}}}'
    )
    policy = rule("", f"block: '{template}'")
    found = judged(policy, text, about=Circumstances(session_id="s-1"))
    assert found.refusal
    assert found.refusal.message == expected


def test_a_template_over_an_unclear_field_is_refused() -> None:
    found = judged(rule("", "block: '${params.a}'"), request("m", {"a": 1, "A": 2}))
    assert found.refusal
    assert found.refusal.code == -32600


def test_the_credential_is_a_salted_hash() -> None:
    host = Host()
    policy = rule("", "block: '${credential}'", host)
    found = [
        judged(policy, call(), host=host, about=Circumstances(credentials=who)).refusal
        for who in (b"a", b"b", b"a")
    ]
    texts = [one.message for one in found if one]
    assert texts[0] == texts[2] != texts[1]
    assert all(len(text) == 16 for text in texts)


def test_the_hash_of_params_forgets_spelling_and_progress_tokens() -> None:
    host = Host()
    policy = rule("", "block: '${params_hash}'", host)

    def hashed(params: str) -> str:
        text = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'
        refusal = judged(policy, text, host=host).refusal
        assert refusal
        return refusal.message

    same = [
        '{"a":1,"b":"x"}',
        '{"b":"\\u0078", "a":1.0}',
        '{"_meta":{"progressToken":1},"a":1,"b":"x"}',
    ]
    other = ['{"a":1,"b":"y"}', '{"a":1}', '{"a":1,"b":"x","c":null}', '{"a":1,"a":1,"b":"x"}',
             '{"a":"1","b":"x"}', '{"_meta":{"x":1},"a":1,"b":"x"}']  # fmt: skip
    assert len({hashed(one) for one in same}) == 1
    assert len({hashed(one) for one in [same[0], *other]}) == 1 + len(other)


def test_actions_run_on_the_message_as_it_is_by_then() -> None:
    policy = rules(
        """
- {id: one, priority: 2, actions: [set_param: {field: a, value: 1}]}
- {id: two, conditions: [param_exists: a], actions: [set_param: {field: b, value: "${params.a}"}]}
"""
    )
    assert json.loads(changed(policy, request("m")))["params"] == {"a": 1, "b": "1"}
