"""Actions that answer or report: block, inject_error, delay, log, metric, webhook, fork."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from mcp_tool_filter.adapters.rules.host import split_url
from mcp_tool_filter.policy.effects import Delay
from mcp_tool_filter.policy.rule_effects import Measure, SendCopy, SendWebhook, WriteLog
from mcp_tool_filter.policy.verdict import Drop, Reply
from mcp_tool_filter.rules.subject import Circumstances
from tests.make import replied
from tests.rules.judging import Host, call, judged, rule, verdict

NOTE = '{"jsonrpc":"2.0","method":"vendor/note","params":{}}'


def error_of(raw: bytes) -> object:
    return json.loads(raw)["error"]


def test_block_answers_a_request() -> None:
    outcome = verdict(rule("", 'block: "no ${tool}"'), call("rm", id="x"))
    assert json.loads(replied(outcome)) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32001, "message": "no rm", "data": {"rule": "r", "action": "block"}},
    }


def test_block_drops_a_notification() -> None:
    assert isinstance(verdict(rule("", "block: x"), NOTE), Drop)


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


def test_after_a_block_the_same_rule_still_logs(host: Host) -> None:
    policy = rule(
        "", 'block: x, log: {level: warn, message: "a\\nb"}, set_param: {field: a, value: 1}, '
        "metric: {name: m}, delay: 5s, webhook: {url: 'http://h/'}", host
    )  # fmt: skip
    verdict(policy, call(), host)
    assert [type(one) for one in host.effects] == [WriteLog, Measure, SendWebhook]
    assert host.effects[0] == WriteLog("warn", "a\\nb", "r")


def test_a_delay_does_not_count_against_the_time_limit(host: Host) -> None:
    limit = "rate_limit: {key: k, limit: 9, window: 1m}"
    policy = rule("", f"delay: 10s, {limit}, delay: 10s", host, top="chain: {timeout: 5s}")
    assert judged(policy, call(), host=host).refusal is None
    assert [one for one in host.effects if isinstance(one, Delay)] == [Delay(10.0), Delay(10.0)]


def test_log_and_metric_report_without_changing_the_message(host: Host) -> None:
    actions = 'log: {level: error, message: "${rule} ${tool}"}, metric: {name: calls, value: 2.5}'
    verdict(rule("", actions, host), call("read"), host)
    assert host.effects == [WriteLog("error", "r read", "r"), Measure("calls", 2.5)]


def test_a_webhook_sends_the_configured_members(host: Host) -> None:
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


@pytest.mark.parametrize(
    "tool",
    ["a b", "a?x=1&z=2#y", "ä", "@evil.test/", "\ud800", "..", ".", "a/../b", "%2e%2e", "\\..", ""],
)
def test_an_odd_name_does_not_change_where_a_webhook_goes(host: Host, tool: str) -> None:
    """Else a call with an odd name would be reported to another receiver or to none."""
    policy = rule(
        "", "webhook: {url: 'http://h.test:81/a/${params.arguments.x}/b?a=1${tool}'}", host
    )
    judged(policy, call(x=tool), host=host)
    (sent,) = [one for one in host.effects if isinstance(one, SendWebhook)]
    origin, target = split_url(sent.url)
    path, _, query = target.partition("?")
    assert (origin.host, origin.port, origin.tls, query) == ("h.test", 81, False, "a=1read")
    assert (path[:3], path[-2:], path.count("/")) == ("/a/", "/b", 3)
    assert {".", ".."}.isdisjoint(map(unquote, path.split("/")))


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e999", "x", ""])
def test_a_counter_only_grows(host: Host, value: str) -> None:
    policy = rule("", "metric: {name: m, value: '${params.arguments.x}'}", host)
    found = judged(policy, call(x=value), host=host)
    assert found.refusal is not None
    assert found.refusal.action == "error"
    assert not [one for one in host.effects if isinstance(one, Measure)]


def test_fork_sends_copies_without_the_clients_id(host: Host) -> None:
    policy = rule("", "fork: {copies: 2}, fork: {to: 'http://h/mcp'}", host)
    assert judged(policy, call(id="mine"), host=host).refusal is None
    assert [type(one) for one in host.effects] == [SendCopy, SendCopy, SendCopy]
    copies = [one for one in host.effects if isinstance(one, SendCopy)]
    assert [one.to for one in copies] == [None, None, "http://h/mcp"]
    assert json.loads(copies[0].head + "5" + copies[0].tail) == json.loads(call(id=5))
