"""Effects that fail or take long, and the time limit of a chain."""

from __future__ import annotations

from mcp_tool_filter.policy.effects import Together
from mcp_tool_filter.policy.rule_effects import EffectFailed, RunScript, ScriptResult, Warn
from tests.rules.judging import Host, call, judged, logged, message_of, rule, rules


def test_a_failing_effect_is_decided_by_on_error() -> None:
    scripts = {"./s": EffectFailed("gone")}
    actions = "run_script: {path: ./s, decides: true}"
    host = Host(scripts=scripts)
    blocked = judged(rule("", actions, host), call(), host=host)
    assert blocked.refusal
    assert (blocked.refusal.code, blocked.refusal.action) == (-32001, "error")
    assert [one.text for one in host.effects if isinstance(one, Warn)] == [
        "Rule 'r': run_script failed: gone"
    ]
    allowed = judged(rule("", actions, host, top="chain: {on_error: allow}"), call(), host=host)
    assert allowed.refusal is None


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
