"""With ``shadow``, the original bytes pass, and observers learn what would have happened.

What is usual is tested in ``end_to_end/test_shadow``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.policy.situation import Client, Session
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.rule_effects import Locally, Measure, WriteLog
from tests.make import answering, asking, calling, definition, judge_from_upstream, listing, policy
from tests.rooms.rules.judging import Host, rules
from tests.rows import each_row

RULES = """
- {id: slow, conditions: [tool_equals: slow], actions: [delay: 9m, run_script: {path: ./s}]}
- {id: once, conditions: [tool_equals: once], actions: [rate_limit: {key: k, limit: 0, window: 1m}]}
- {id: kept, conditions: [tool_equals: kept], actions: [cache: {key: k, ttl: 1m}]}
- {id: asked, conditions: [tool_equals: asked], actions: [run_script: {path: ./s, decides: true}]}
- {id: hooked, conditions: [tool_equals: hooked], actions: [webhook: {url: "http://localhost/"}]}
- {id: twice, conditions: [tool_equals: twice], actions: [fork: {}]}
- {id: sampled, conditions: [method_equals: sampling/createMessage], actions: [block: no]}
"""
TOOLS = ("read", "set", "slow", "mock", "once", "kept", "asked", "hooked", "twice", "rm")
SAMPLING = asking("sampling/createMessage", id="5")
SHOWN = b'{"jsonrpc":"2.0","method":"x","params":{"one":' + definition("rm") + b"}}"
CHANGED = listing("read", id="7").replace(b'"object"', b'"object","a":1')
BATCH = b"[" + calling("read", id="2") + b" , " + calling("rm", id="3") + b"]"

# The message, whether the client sends it, and what happens without ``shadow``.
CASES: dict[str, tuple[bytes, bool, type[Verdict], str]] = {
    "a denied notification": (calling("rm").replace(b'"id":1,', b""), True, Drop, "denied"),
    "a batch": (BATCH, True, Rewrite, "denied"),
    "a new tool": (listing("read", "new", id="7"), False, Rewrite, "hidden"),
    "a changed tool": (CHANGED, False, Rewrite, "hidden"),
    "a broken tool": (answering('{"tools":[7]}', id="7"), False, Rewrite, "hidden"),
    "a hidden tool elsewhere": (SHOWN, False, Drop, "invalid"),
    "a limited call": (calling("once"), True, Reply, "blocked"),
    "a blocked request of the upstream": (SAMPLING, False, Reply, "blocked"),
}  # fmt: skip
# These would be forwarded, but not at once, or with effects.
EFFECTS = ("slow", "kept", "asked", "hooked", "twice")


def conversation(told: list[Judged], *, shadow: bool, host: Host | None = None) -> Conversation:
    host = host or Host()
    link = RulesLink(rules(RULES, host), host.at_once, clock=float)
    in_force = policy(*TOOLS, deny="^rm", links=(link,))
    in_force.config = replace(in_force.config, shadow=shadow)
    in_force.observe = told.append
    between = Conversation(in_force, Client(session=Session()))
    between.from_client(asking("tools/list", id="7"))
    between.from_client(calling("read", id="8"))
    return between


@each_row("name", CASES)
@each_row("shadow", [False, True])
def test_what_would_be_refused_or_changed_passes_and_is_reported(name: str, shadow: bool) -> None:
    raw, is_of_client, kind, why = CASES[name]
    told: list[Judged] = []
    between = conversation(told, shadow=shadow)
    judged = between.from_client(raw) if is_of_client else judge_from_upstream(between, raw)
    if not shadow and isinstance(judged, Judged):
        if why != "invalid":
            assert (type(judged.verdict), judged.would) == (kind, None)
        return
    assert judged is told[-1]
    assert judged.verdict == Forward()
    assert type(judged.would) is kind
    assert not isinstance(judged.would, Forward)
    assert judged.would.reason.why == why


@pytest.mark.parametrize("tool", EFFECTS)
def test_an_effect_of_a_rule_is_left_out_and_reported(tool: str) -> None:
    told: list[Judged] = []
    host = Host()
    between = conversation(told, shadow=True, host=host)
    judged = between.from_client(calling(tool))
    assert judged is told[-1], "nothing waits"
    assert judged.verdict == Forward()
    assert isinstance(judged.would, Rewrite)
    assert judged.would.reason.rule
    assert [one for one in host.effects if not isinstance(one, Locally)] == []


def test_the_answer_to_a_call_that_would_be_refused_is_not_judged() -> None:
    told: list[Judged] = []
    between = conversation(told, shadow=True)
    between.from_client(calling("rm", id="9"))
    answer = answering('{"content":["sk-1"]}', id="9")
    between.from_upstream(answer)
    assert (told[-1].verdict, told[-1].would) == (Forward(), None)
    assert "9" not in between.waiting


def test_what_cannot_be_judged_is_still_refused() -> None:
    between = conversation([], shadow=True)
    for raw in (b'{"a":', asking("tools/call", params='{"name":"a","name":"b"}')):
        judged = between.from_client(raw)
        assert isinstance(judged, Judged)
        assert isinstance(judged.verdict, Reply)
    judged = judge_from_upstream(between, answering('{"tools":1,"tools":[]}', id="7"))
    assert isinstance(judged, Judged)
    assert isinstance(judged.verdict, Rewrite)


# Actions of a rule on calls, and what a rule with ``mode: audit`` reports of each.
ACTIONS = {
    "allow": "", "block: no": "blocked", "inject_error: {code: 7, message: m}": "blocked",
    "rate_limit: {key: k, limit: 0, window: 1m}": "blocked",
    **dict.fromkeys([
        "delay: 9m", "set_param: {field: arguments.p, value: 1}", "remove_param: arguments",
        "transform: {merge_patch: {arguments: {p: 1}}}", "transform: {python: 'm:f'}",
        "redact: {pattern: sk-1}", "webhook: {url: 'http://localhost/'}", "fork: {}",
        "run_script: {path: ./s}", "run_script: {path: ./s, decides: true}",
        "cache: {key: k, ttl: 1m}",
    ], "changed"),
}  # fmt: skip
AUDITED = """
- {id: tried, mode: audit, actions: [%s, log: {message: seen}, metric: {name: n}]}
- {id: later, conditions: [tool_equals: rm], actions: [block: no]}
"""
CALL = calling("read", arguments='{"p": "sk-1"}')


@each_row("action", ACTIONS)
def test_a_rule_with_mode_audit_only_reports(action: str) -> None:
    told: list[Judged] = []
    host = Host(objects={"m:f": dict})
    link = RulesLink(rules(AUDITED % action, host), host.at_once, clock=float)
    in_force = policy("read", "rm", links=(link,))
    in_force.observe = told.append
    between = Conversation(in_force, Client(session=Session()))
    judged = between.from_client(CALL)
    assert judged is told[-1], "nothing waits"
    assert judged.verdict == Forward()
    if ACTIONS[action]:
        assert judged.would is not None
        assert not isinstance(judged.would, Forward)
        assert (judged.would.reason.why, judged.would.reason.rule) == (ACTIONS[action], "tried")
    else:
        assert judged.would is None
    assert link.hits["tried"] == 1
    done = [one for one in host.effects if not isinstance(one, Locally)]
    assert [type(one) for one in done] == [WriteLog, Measure]
    assert isinstance(done[0], WriteLog)
    assert done[0].shadow

    blocked = between.from_client(CALL.replace(b'"read"', b'"rm"'))  # other rules decide as ever
    assert isinstance(blocked, Judged)
    assert isinstance(blocked.verdict, Reply)
    assert (blocked.would is None) == (not ACTIONS[action])
