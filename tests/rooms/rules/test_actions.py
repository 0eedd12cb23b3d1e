"""Actions that answer or report, the variables in their texts, and what rules remember."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import pytest

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.messages.limits import R2025_06_18
from mcp_tool_filter.core.messages.messages import Response
from mcp_tool_filter.core.policy.effects import Decision, Delay, Together
from mcp_tool_filter.core.policy.situation import Client, Situation
from mcp_tool_filter.core.policy.verdict import Forward, Verdict
from mcp_tool_filter.rooms.rules import rule_effects as orders
from mcp_tool_filter.rooms.rules.actions import may_be_kept
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.memory import AskedBefore, RuleSession, RuleSessions
from mcp_tool_filter.rooms.rules.policy import Candidates
from mcp_tool_filter.rooms.rules.subject import Circumstances
from mcp_tool_filter.rooms.rules.templates import split_url
from tests.make import answering, asking, listing, policy, replied, text_of
from tests.make import request as read_request
from tests.rooms.rules.judging import (
    Host,
    call,
    fails,
    is_unclear,
    judged,
    logged,
    message_of,
    refusal,
    request,
    rule,
    rules,
    settled,
    single,
    verdict,
)
from tests.rows import each_row


def test_block_answers_a_request() -> None:
    outcome = verdict(rule("", 'block: "no ${tool}"'), call("rm", id="x"))
    error = {"code": -32001, "message": "no rm", "data": {"rule": "r", "action": "block"}}
    assert json.loads(replied(outcome)) == {"jsonrpc": "2.0", "id": "x", "error": error}


def test_inject_error_answers_with_this_error() -> None:
    action = 'inject_error: {code: -32050, message: "${method}", data: {a: ["${id}", 1.0]}}'
    raw = replied(verdict(rule("", action), call(id="q")))
    assert b'"data":{"a":["q",1.0]}' in raw
    error = {"code": -32050, "message": "tools/call", "data": {"a": ["q", 1.0]}}
    assert json.loads(raw)["error"] == error


def test_after_a_block_the_same_rule_still_logs(host: Host) -> None:
    policy = rule(
        "", 'block: x, log: {level: warn, message: "a\\nb"}, set_param: {field: a, value: 1}, '
        "metric: {name: m}, delay: 5s, webhook: {url: 'http://h'}", host
    )  # fmt: skip
    verdict(policy, call(), host)
    kinds = [orders.WriteLog, orders.Measure, orders.SendWebhook]
    assert [type(one) for one in host.effects] == kinds
    assert host.effects[0] == orders.WriteLog("warn", "a\\nb", "r")


def test_a_delay_does_not_count_against_the_time_limit(host: Host) -> None:
    limit = "rate_limit: {key: k, limit: 9, window: 1m}"
    policy = rule("", f"delay: 10s, {limit}, delay: 10s", host, top="chain: {timeout: 5s}")
    assert judged(policy, call(), host=host).refusal is None
    assert [one for one in host.effects if isinstance(one, Delay)] == [Delay(10.0), Delay(10.0)]


def test_log_and_metric_report_without_changing_the_message(host: Host) -> None:
    log = 'log: {level: error, message: "${rule} ${tool}"}'
    measure = "metric: {name: calls, value: 2.5}, metric: {name: none, value: 0}"
    verdict(rule("", f"{log}, {measure}", host), call("read"), host)
    told = [orders.WriteLog("error", "r read", "r"), orders.Measure("calls", 2.5)]
    assert host.effects == [*told, orders.Measure("none", 0.0)]


def test_a_webhook_sends_the_configured_members(host: Host) -> None:
    hook = "url: 'https://h/${tool}', include_message: true, headers: {X-A: '${id}'}, timeout: 1s"
    text = call("read", id=3)
    policy = rule("", f"webhook: {{{hook}}}", host)
    judged(policy, text, host=host, about=Circumstances(session_id="s"))
    (sent,) = host.effects
    assert isinstance(sent, orders.SendWebhook)
    assert (sent.url, sent.headers, sent.timeout) == ("https://h/read", (("X-A", "3"),), 1.0)
    assert json.loads("{" + sent.members + "}") == {
        "rule": "r", "action": "webhook", "session": "s", "method": "tools/call", "id": 3,
        "tool": "read", "message": json.loads(text),
    }  # fmt: skip


@pytest.mark.parametrize(
    "tool",
    ["a b", "a?x=1&z=2#y", "ä", "@evil.test/", "\ud800", "..", ".", "a/../b", "%2e%2e", "\\..", ""],
)
def test_an_odd_name_does_not_change_where_a_webhook_goes(host: Host, tool: str) -> None:
    """Else a call with an odd name would be reported to another receiver or to none."""
    hook = "webhook: {url: 'http://h.test:81/a/${params.arguments.x}/b?a=1${tool}'}"
    judged(rule("", hook, host), call(x=tool), host=host)
    (sent,) = [one for one in host.effects if isinstance(one, orders.SendWebhook)]
    origin, target = split_url(sent.url)
    path, _, query = target.partition("?")
    assert (origin.host, origin.port, origin.tls, query) == ("h.test", 81, False, "a=1read")
    assert (path[:3], path[-2:], path.count("/")) == ("/a/", "/b", 3)
    assert {".", ".."}.isdisjoint(map(unquote, path.split("/")))


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999", "x", ""])
def test_a_counter_only_grows(host: Host, value: str) -> None:
    policy = rule("", "metric: {name: m, value: '${params.arguments.x}'}", host)
    assert fails(policy, call(x=value), host)
    assert not [one for one in host.effects if isinstance(one, orders.Measure)]


def test_fork_sends_copies_without_the_clients_id(host: Host) -> None:
    policy = rule("", "fork: {copies: 2}, fork: {to: 'http://h/mcp'}", host)
    assert judged(policy, call(id="mine"), host=host).refusal is None
    copies = [one for one in host.effects if isinstance(one, orders.SendCopy)]
    assert copies == host.effects
    assert [one.to for one in copies] == [None, None, "http://h/mcp"]
    assert json.loads(copies[0].head + "5" + copies[0].tail) == json.loads(call(id=5))


def test_a_copy_has_no_progress_token(host: Host) -> None:
    """Its progress would reach the client as that of its own request."""
    asked = json.loads(call(id=1))
    asked["params"]["_meta"] = {"progressToken": 7, "a": 1}
    assert judged(rule("", "fork: {}", host), json.dumps(asked), host=host).refusal is None
    [copy] = [one for one in host.effects if isinstance(one, orders.SendCopy)]
    assert json.loads(copy.head + "5" + copy.tail)["params"]["_meta"] == {"a": 1}


# Variables in the texts of actions, and the hashes that they give


VARIABLES = [
    ("${session_id}", "s-1"), ("${method}", "tools/call"), ("${id}", "a\u00e9"),
    ("${tool}", "read"), ("${rule}", "r"), ("$$ $x $", "$ $x $"), ("[${params.missing}]", "[]"),
    ("${params.arguments.n}", "1.50"), ("${params.arguments.o}", '{"a": [1, 2.0]}'),
    ("${params.arguments.l[*]}", "[1,2]"), ("${params./arguments/n}", "1.50"),
]  # fmt: skip


@each_row(("template", "expected"), VARIABLES)
def test_templates_insert_fields_of_the_message(template: str, expected: str) -> None:
    text = (
        '{"jsonrpc":"2.0","id":"a\\u00e9","method":"tools/call","params":{"name":"read",'
        '"arguments":{"n":1.50,"o":{"a": [1, 2.0]},"l":[1,2]}}}'
    )
    policy = rule("", f"block: '{template}'")
    assert refusal(policy, text, about=Circumstances(session_id="s-1")).message == expected


def test_a_template_over_an_unclear_field_is_refused() -> None:
    assert is_unclear(rule("", "block: '${params.a}'"), request("m", {"a": 1, "A": 2}))


def test_the_credential_is_a_salted_hash(host: Host) -> None:
    policy = rule("", "block: '${credential}'", host)
    texts = [
        refusal(policy, call(), host, about=Circumstances(credentials=who)).message
        for who in (b"a", b"b", b"a")
    ]
    assert texts[0] == texts[2] != texts[1]
    assert all(len(text) == 16 for text in texts)


def test_the_hash_of_params_forgets_spelling_and_progress_tokens(host: Host) -> None:
    policy = rule("", "block: '${params_hash}'", host)

    def hashed(params: str) -> str:
        return refusal(policy, asking("m", params=params).decode(), host).message

    same = ['{"a":1,"b":"x"}', '{"b":"\\u0078", "a":1.0}',
            '{"_meta":{"progressToken":1},"a":1,"b":"x"}']  # fmt: skip
    other = ['{"a":1,"b":"y"}', '{"a":1}', '{"a":1,"b":"x","c":null}', '{"a":1,"a":1,"b":"x"}',
             '{"a":"1","b":"x"}', '{"_meta":{"x":1},"a":1,"b":"x"}']  # fmt: skip
    assert len({hashed(one) for one in same}) == 1
    assert len({hashed(one) for one in [same[0], *other]}) == 1 + len(other)


# Actions with external effects: scripts, cache, limits; failures and slow ones


SCRIPTS = [
    (orders.ScriptResult(0, b""), None),
    (orders.ScriptResult(1, b"because\n\n"), ("because\n", "block")),
    (orders.ScriptResult(2, b""), ("A rule could not be applied", "error")),
    (orders.ScriptResult(0, b"not json"), ("A rule could not be applied", "error")),
    (orders.EffectFailed("timed out"), ("A rule could not be applied", "error")),
]


@pytest.mark.parametrize(("outcome", "refused"), SCRIPTS)
def test_a_deciding_script_sets_the_outcome(outcome: Any, refused: tuple[str, str] | None) -> None:
    host = Host(scripts={"./s": outcome})
    policy = rule("", "run_script: {path: ./s, args: ['${tool}'], decides: true}", host)
    found = judged(policy, call("read"), host=host).refusal
    assert (found and (found.message, found.action)) == refused
    ran: Any = host.effects[0]
    assert (ran.command, ran.input) == (("./s", "read"), call("read").encode())
    assert dict(ran.environment) == {
        "MCP_RULE": "r", "MCP_METHOD": "tools/call", "MCP_TOOL": "read", "MCP_SESSION_ID": "",
    }  # fmt: skip


def test_a_script_that_does_not_decide_delays_nothing(host: Host) -> None:
    policy = rule("", "run_script: {path: ./s, timeout: 1m}", host)
    assert judged(policy, request("vendor/do"), host=host).refusal is None
    [ran] = host.effects
    assert isinstance(ran, orders.RunScript)
    assert ("MCP_TOOL", "") in ran.environment


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
        made: Judged = settled(decision, host)
        return made.verdict

    for more in (',"nextCursor":"2"', ',"nextCursor":"2"', ""):
        assert becomes(between.from_client(asking("tools/list"))) == Forward()
        page = between.from_upstream(listing("read", "rm", more=more))
        assert text_of(becomes(page)) == listing("read", more=more)
        host.now += 150.0
    assert replied(becomes(between.from_client(asking("tools/list")))) == listing("read")


def test_only_clients_requests_that_the_snapshot_does_not_answer_are_cached() -> None:
    policy = rule("", "cache: {key: k, ttl: 5m}")
    assert len(judged(policy, request("tools/list")).stores) == 1
    for about in (Circumstances(is_answered=True), Circumstances(from_client=False)):
        assert judged(policy, request("tools/list"), about=about).stores == []


def test_a_rate_limit_is_a_sliding_window_that_refused_messages_do_not_fill(host: Host) -> None:
    policy = rule("", "rate_limit: {key: '${tool}', limit: 2, window: 60s}", host)

    def refused(tool: str = "read") -> object:
        found = judged(policy, call(tool), host=host).refusal
        return found and json.loads(found.render("1"))["error"]

    assert refused() is None
    host.now += 30
    assert refused() is None
    data = {"rule": "r", "action": "rate_limit", "retry_after": 30}
    assert refused() == {"code": -32001, "message": "Rate limit exceeded", "data": data}
    assert refused("other") is None
    host.now += 30
    assert refused() is None
    assert refused() is not None
    host.now += 30
    assert refused() is None


@each_row(("result", "expected"), [
    ("{}", True),
    ('{"isError":false,"resultType":"complete"}', True),
    ('{"isError":true}', False), (r'{"\u0069sError" : true }', False),
    ('{"isError":false,"isError":true}', False), ('{"IsError":true}', False),
    ('{"resultType":"input_required","inputRequests":{}}', False),
    ('{"resultType":"some later one"}', False), ('{"resultType":null}', False),
    ('{"content":[{"isError":true}]}', True),
])  # fmt: skip
def test_only_final_results_are_kept(result: str, expected: bool) -> None:
    """A failure, or a question of the upstream, is no answer to the next who asks."""
    message = single(answering(result).decode())
    assert isinstance(message, Response)
    assert message.result is not None
    assert may_be_kept(message.place.text, message.result) is expected


def test_the_time_limit_is_for_the_whole_chain() -> None:
    class Slow(Host):
        def at_once(self, effect: object) -> object:
            self.now += 3
            return super().at_once(effect)  # type: ignore[arg-type]  # any effect

    host = Slow(scripts={"./s": orders.ScriptResult(0, b"")})
    script = "run_script: {path: ./s, decides: true}"
    assert fails(rule("", f"{script}, {script}, {script}", host), call(), host)
    timeouts = [one.timeout for one in host.effects if isinstance(one, orders.RunScript)]
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
    assert message_of(found) == "A rule could not be applied"
    assert 0 < len(found.matched) < 5
    host = Slow()
    top = "chain: {timeout: 2s, on_error: allow}"
    assert judged(rules(text, host, top=top), call(), host=host).refusal is None


def test_parallel_scripts_wait_together_and_decide_in_order() -> None:
    text = """
- {id: b, priority: 1, actions: [run_script: {path: ./b, decides: true}]}
- {id: a, priority: 2, actions: [log: {message: a}, run_script: {path: ./a, decides: true}]}
"""
    host = Host(scripts={f"./{name}": orders.ScriptResult(1, name.encode()) for name in "ab"})
    found = judged(rules(text, host, top="chain: {parallel: true}"), call(), host=host)
    assert message_of(found) == "a"
    assert isinstance(host.effects[0], Together)
    assert logged(host) == ["a"]
    assert len([one for one in host.effects if isinstance(one, orders.RunScript)]) == 2


@pytest.mark.parametrize("parallel", [True, False])
def test_a_message_that_python_cannot_read_is_refused(parallel: bool) -> None:
    """Its sender chose it, so ``on_error: allow`` does not apply."""
    host = Host(objects={"m:f": lambda message: None})
    text = "- {id: a, actions: [transform: {python: 'm:f'}]}\n"
    top = f"chain: {{parallel: {str(parallel).lower()}, on_error: allow}}"
    policy = rules(text + text.replace("id: a", "id: b"), host, top=top)
    found = refusal(policy, call().replace('"arguments": {}', f'"n": {"9" * 5000}'), host)
    assert (found.rule, found.action) == ("a", "error")


# What rules remember of sessions and of requests: bounded in number, bytes and time


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
        settled(link.decide(single(call()), situation), host)
        return [one[0] for one in link.sessions_at_work()]

    (first,) = says("1.1.1.1")
    host.now += 61.0
    (second,) = says("2.2.2.2")
    assert first != second
    assert link.sessions.ttl == 10.0
    link.adopt(rules("- {id: r, actions: [log: {message: x}]}", host, top="session_ttl: 1h"))
    host.now += 61.0
    assert len(says("1.1.1.1")) == 2


def test_an_id_used_for_two_requests_matches_none() -> None:
    memory = AskedBefore(is_strict=True)
    one, other = (read_request(text.encode()) for text in (call("read"), request("vendor/do")))
    memory.note("s", "1", one)
    memory.note("s", "1", one)
    assert memory.find("s", "1") is one
    memory.note("s", "1", other)
    assert memory.find("s", "1") is None
    memory.note("s", "1", other)
    assert memory.find("s", "1") is None
    assert memory.find("t", "1") is None


def test_requests_are_bounded_in_number_and_bytes() -> None:
    one = read_request(call("read").encode())
    memory = AskedBefore(most=10, most_bytes=5 * len(one.place.text))
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
    unparsed = patch("mcp_tool_filter.rooms.rules.judge.parse_message", side_effect=AssertionError)
    with looked_up as possible, unparsed:
        decision = link.decide(asked, Situation(snapshot=policy("read").snapshot, links=(link,)))
        answered: Verdict = settled(decision, host)
    error = {"code": 9, "message": f"told v3 {shown}"}
    assert json.loads(replied(answered)) == {"jsonrpc": "2.0", "id": id, "error": error}
    assert possible.call_count == 2  # for the request and for its answer
