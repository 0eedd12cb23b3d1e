"""Actions with external effects: scripts, cache, limits; failures and slow ones."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.policy_in_force import Judged
from mcp_tool_filter.policy.effects import Decision, Together, waits
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.rule_effects import EffectFailed, RunScript, ScriptResult
from mcp_tool_filter.policy.verdict import Forward, Reply, Verdict
from mcp_tool_filter.protocol.limits import R2025_06_18
from mcp_tool_filter.protocol.messages import Response
from mcp_tool_filter.rules.actions import may_be_kept
from mcp_tool_filter.rules.link import RulesLink
from mcp_tool_filter.rules.subject import Circumstances
from tests.make import asking, listing, policy, text_of
from tests.rules.judging import (
    Host,
    call,
    finish,
    judged,
    logged,
    message_of,
    request,
    rule,
    rules,
    single,
)

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


def test_a_script_that_does_not_decide_delays_nothing(host: Host) -> None:
    policy = rule("", "run_script: {path: ./s, timeout: 1m}", host)
    assert judged(policy, call(), host=host).refusal is None
    assert [type(one) for one in host.effects] == [RunScript]


def test_a_cached_result_answers_and_the_first_result_is_stored(host: Host) -> None:
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


def test_a_stored_list_answers_only_an_asker_whose_tools_are_known(host: Host) -> None:
    """Another one's list comes from the upstream: only then the tools in it are pinned."""
    made = rule("method_equals: tools/list", "cache: {key: all, ttl: 5m}", host)
    link = RulesLink(made, host.at_once, clock=host.clock)
    in_force = policy("read", deny="^rm", links=(link,))
    between = Conversation(in_force, Client(said_revision=R2025_06_18))

    def becomes(decision: Decision[Judged]) -> Verdict:
        return (finish(decision, host) if waits(decision) else decision).verdict

    for more in (',"nextCursor":"2"', ',"nextCursor":"2"', ""):
        assert becomes(between.from_client(asking("tools/list"))) == Forward()
        page = between.from_upstream(listing("read", "rm", more=more))
        assert text_of(becomes(page)) == listing("read", more=more)
        host.now += 150.0
    known = becomes(between.from_client(asking("tools/list")))
    assert isinstance(known, Reply)
    assert text_of(known) == listing("read")


def test_cache_does_nothing_on_what_the_snapshot_will_answer() -> None:
    policy = rule("", "cache: {key: k, ttl: 5m}")
    found = judged(policy, request("tools/list"), about=Circumstances(is_answered=True))
    assert found.stores == []


def test_a_rate_limit_is_a_sliding_window_that_refused_messages_do_not_fill(host: Host) -> None:
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


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("{}", True),
        ('{"isError":false,"resultType":"complete"}', True),
        ('{"isError":true}', False),
        (r'{"\u0069sError" : true }', False),
        ('{"isError":false,"isError":true}', False),
        ('{"IsError":true}', False),
        ('{"resultType":"input_required","inputRequests":{}}', False),
        ('{"resultType":"some later one"}', False),
        ('{"resultType":null}', False),
        ('{"content":[{"isError":true}]}', True),
    ],
)
def test_only_final_results_are_kept(result: str, expected: bool) -> None:
    """A failure, or a question of the upstream, is no answer to the next who asks."""
    message = single(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}')
    assert isinstance(message, Response)
    assert message.result is not None
    assert may_be_kept(message.place.text, message.result) is expected


def test_the_time_limit_is_for_the_whole_chain() -> None:
    class Slow(Host):
        def at_once(self, effect: object) -> object:
            self.now += 3
            return super().at_once(effect)  # type: ignore[arg-type]  # any effect

    host = Slow(scripts={"./s": ScriptResult(0, b"")})
    script = "run_script: {path: ./s, decides: true}"
    found = judged(rule("", f"{script}, {script}, {script}", host), call(), host=host)
    assert found.refusal
    assert found.refusal.action == "error"
    timeouts = [one.timeout for one in host.effects if isinstance(one, RunScript)]
    assert timeouts == [5.0, 2.0]


def test_the_time_limit_counts_the_time_of_conditions() -> None:
    """Long texts and many patterns take time too, even without an effect."""

    class Slow(Host):
        def clock(self) -> float:
            self.now += 0.4
            return self.now

    text = "".join(f"- {{id: r{n}, actions: [log: {{message: x}}]}}\n" for n in range(9))
    host = Slow()
    found = judged(rules(text, host, top="chain: {timeout: 2s}"), call(), host=host)
    assert found.refusal is not None
    assert found.refusal.action == "error"
    assert 0 < len(found.matched) < 5
    host = Slow()
    top = "chain: {timeout: 2s, on_error: allow}"
    assert judged(rules(text, host, top=top), call(), host=host).refusal is None


def test_parallel_scripts_wait_together_and_decide_in_order() -> None:
    scripts = {"./a": ScriptResult(1, b"a"), "./b": ScriptResult(1, b"b")}
    text = """
- {id: b, priority: 1, actions: [run_script: {path: ./b, decides: true}]}
- {id: a, priority: 2, actions: [log: {message: a}, run_script: {path: ./a, decides: true}]}
"""
    host = Host(scripts=scripts)
    found = judged(rules(text, host, top="chain: {parallel: true}"), call(), host=host)
    assert message_of(found) == "a"
    assert isinstance(host.effects[0], Together)
    assert logged(host) == ["a"]
    assert len([one for one in host.effects if isinstance(one, RunScript)]) == 2


@pytest.mark.parametrize("parallel", [True, False])
def test_a_message_that_python_cannot_read_is_refused(parallel: bool) -> None:
    """Its sender chose it, so ``on_error: allow`` does not apply."""
    host = Host(objects={"m:f": lambda message: None})
    text = "- {id: a, actions: [transform: {python: 'm:f'}]}\n"
    top = f"chain: {{parallel: {str(parallel).lower()}, on_error: allow}}"
    policy = rules(text + text.replace("id: a", "id: b"), host, top=top)
    found = judged(policy, call().replace('"arguments": {}', f'"n": {"9" * 5000}'), host=host)
    assert found.refusal
    assert (found.refusal.rule, found.refusal.action) == ("a", "error")
