"""Actions with external effects: scripts, the cache and rate limits."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.policy.rule_effects import EffectFailed, RunScript, ScriptResult
from mcp_tool_filter.rules.subject import Circumstances
from tests.rules.judging import Host, call, changed, judged, request, rule

SCRIPTS = [
    (ScriptResult(0, b""), None),
    (ScriptResult(1, b"because\n\n"), ("because\n", "block")),
    (ScriptResult(2, b""), ("A rule could not be applied", "error")),
    (ScriptResult(0, b"not json"), ("A rule could not be applied", "error")),
    (EffectFailed("timed out"), ("A rule could not be applied", "error")),
]


@pytest.mark.parametrize(("outcome", "refusal"), SCRIPTS)
def test_a_deciding_script_sets_the_outcome(
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


def test_a_cached_result_answers_and_the_first_result_is_stored() -> None:
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
def test_a_result_cached_for_one_user_or_upstream_is_not_given_to_another(
    about: Circumstances,
) -> None:
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
