"""What patterns may cost on one message: the client chooses its texts, and everybody waits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsregex.cost import FOR_A_MESSAGE, Budget
from mcp_tool_filter.core.messages.messages import Batch, parse_message
from mcp_tool_filter.core.policy.effects import Delay
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Verdict
from mcp_tool_filter.rooms.rules import fields
from mcp_tool_filter.rooms.rules.fields import parse_rule_pattern
from mcp_tool_filter.rooms.rules.judge import RulesLink
from mcp_tool_filter.rooms.rules.policy import Policy
from mcp_tool_filter.rooms.rules.rule_effects import EffectFailed, TooLarge, Warn
from tests.rooms.rules.judging import (
    Host,
    call,
    changed,
    is_unclear,
    judged,
    refusal,
    request,
    result,
    rule,
    rules,
    settled,
)

HALF_A_SECOND = 10_000_000  # steps
COSTLY = r"(a+)\1c"
LONG = "a" * 20_000 + "b c"
A = "param_matches: {field: 'arguments.a[*]', pattern: '%s'}"


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Each number of steps that a matcher was about to make, and could afford."""
    steps: list[int] = []
    spend = Budget.spend

    def spend_and_tell(budget: Budget, count: int) -> None:
        spend(budget, count)
        steps.append(count)

    monkeypatch.setattr(Budget, "spend", spend_and_tell)
    yield steps
    assert sum(steps) <= HALF_A_SECOND


def is_given_up(policy: Policy, text: str, asked: str | None = None) -> bool:
    found = judged(policy, text, asked=asked).refusal
    return found is not None and "takes too long" in found.detail


def searching(count: int, action: str = "block: no") -> list[str]:
    """Write rules that each search an argument with another pattern."""
    return [
        f"- {{id: r{i}, conditions: [{A % f'[xy]{{{i + 1}}}.[^z]'}], actions: [{action}]}}\n"
        for i in range(count)
    ]


@pytest.mark.parametrize(("pattern", "texts"), [
    (COSTLY, [LONG]), (COSTLY, [LONG[i:] for i in range(20)]), ("(?=.*x)a", ["ab" * 3_000_000]),
    ("(?=.*x)a|y", ["b" * 5_000_000 + "é"]),
    (r"(\w*)\1!", ["a" * 250] * 20_000),  # short, but many
    ("(?=.*x)[ab].", [f"{i:05}" + "a1234" * 200 for i in range(6_000)]),
])  # fmt: skip
def test_a_message_that_patterns_take_too_long_on_is_refused(
    host: Host, pattern: str, texts: list[str], spent: list[int]
) -> None:
    refused = refusal(rule(A % pattern, "block: no"), call(a=texts), host)
    assert (refused.message, refused.rule) == ("A rule could not be applied", "r")
    assert (refused.code, refused.action) == (-32001, "error")
    what = f"the pattern {pattern} takes too long on this message"
    assert host.effects == [Warn(f"Rule 'r': a condition failed: {what}")]
    assert spent


def test_all_rules_share_the_steps_of_a_message(spent: list[int]) -> None:
    """Else a client would wait for each rule, and so would everybody else."""
    text = call(a=["a" * 500_000])
    assert not is_given_up(rules("".join(searching(10))), text)
    del spent[:]
    assert is_given_up(rules("".join(searching(30))), text)


def test_a_changed_message_does_not_get_new_steps(spent: list[int]) -> None:
    change = "- {{id: c{0}, actions: [set_param: {{field: n, value: '{0}'}}]}}\n"
    each = [one + change.format(number) for number, one in enumerate(searching(30))]
    assert is_given_up(rules("".join(each)), call(a=["a" * 500_000]))


def test_a_text_that_takes_too_long_to_match_is_refused() -> None:
    """``on_error: allow`` is for what the client does not choose."""
    allowing = rule(A % COSTLY, "block: no", top="chain: {on_error: allow}")
    assert is_given_up(allowing, call(a=[LONG]))


def test_a_method_that_is_too_long_cannot_be_judged() -> None:
    policy = rule(r"method_matches: '(a*)(a*)\2\1c'", "block: no")
    assert is_given_up(policy, request("a" * 990 + "bc"))
    assert is_given_up(rule(f"tool_matches: '{COSTLY}'", "block: no"), call(LONG))


def test_rules_that_wait_together_pay_once_for_a_pattern(spent: list[int]) -> None:
    """With ``parallel`` the conditions of later rules are asked before their turn, and again."""
    text = "".join(searching(10, "log: {level: info, message: m}"))
    policy = rules(text, top="chain: {parallel: true}")
    assert not is_given_up(policy, call(a=["a" * 500_000]))


REDACT = r"redact: {pattern: '[0-9]{4}', with: '#'}"


def test_redacting_costs_steps_too(spent: list[int]) -> None:
    many = result({"content": ["123 " * 2_000_000 + "é"]})
    assert is_given_up(rule("result_exists: content", REDACT), many, call())
    one_field = rule("", REDACT.replace("redact: {", "redact: {field: content, "))
    assert is_given_up(one_field, request(params={"content": ["\n" * 600_000]}))


@pytest.mark.parametrize("lines", [1, 50_000])
def test_a_long_honest_text_is_redacted_as_before(lines: int) -> None:
    text = 'say "é😀" \t\n' * lines + "1234"
    got = json.loads(changed(rule("", REDACT), request(params={"t": text})))
    assert got["params"]["t"] == text[:-4] + "#"


@pytest.mark.parametrize(
    "pattern", [r"(\w)\1!", r"^(a|b)+x?\1$", "b(?!c)", "^[a-c]{3}$", "(ab|a)c"]
)
def test_counting_steps_does_not_change_a_match(pattern: str) -> None:
    """Only the first of many short texts are matched without counting."""
    found, late = parse_rule_pattern(pattern), Budget()
    texts = ["aa!", "ab!", "aba", "ab", "bc", "abb", "ac", "abc", "", "b"]
    for _ in range(1_000):
        late.may_be_quick(1)
    quickly = [found.is_in(text, Budget()) for text in texts]
    assert [found.is_in(text, late) for text in texts] == quickly
    assert late.steps < HALF_A_SECOND
    assert {*quickly} == {True, False}


def verdicts(link: RulesLink, batch: str) -> list[Verdict]:
    message = parse_message(batch.encode())
    members = message.members if isinstance(message, Batch) else (message,)
    made = [link.decide(member, Situation(take_snapshot(()))) for member in members]
    return [settled(one, Host()) for one in made]


def test_the_members_of_a_batch_share_the_steps_of_a_message(host: Host, spent: list[int]) -> None:
    policy = rule(A % "(?=.*x)[ab].", "block: no")
    link = RulesLink(policy, host.at_once, clock=host.clock)
    each = [call(a=[f"{i:02}" + "a" * 600_000]) for i in range(15)]
    made = verdicts(link, f"[{','.join(each)}]")
    assert made[:7] == [Forward()] * 7
    assert all(isinstance(verdict, Reply) for verdict in made[-5:])
    del spent[:]
    assert verdicts(link, each[0]) == [Forward()]
    assert verdicts(link, f"[{each[0]}]") == [Forward()]


def test_carried_messages_share_the_steps_of_their_carrier(host: Host, spent: list[int]) -> None:
    """Else a client could keep everyone waiting with one subscription to many resources."""
    policy = rule("param_matches: {field: uri, pattern: '(?=.*x)[ab].'}", "block: no")
    link = RulesLink(policy, host.at_once, clock=host.clock)
    uris = [f"{i:02}" + "a" * 600_000 for i in range(15)]
    params = {"notifications": {"resourceSubscriptions": uris}}
    (made,) = verdicts(link, request("subscriptions/listen", params))
    assert isinstance(made, Reply)
    assert "takes too long" in made.reason.detail


KEYS = {f"key{i}": i for i in range(100_000)}
LOGS = ", ".join(f"log: {{level: info, message: '${{params.arguments.x{i}}}'}}" for i in range(100))


class TickingHost(Host):
    """Each look at the clock takes a while, as if the machine was slow."""

    def clock(self) -> float:
        self.now += 0.01
        return self.now


def test_a_hundred_fields_of_a_hundred_thousand_keys_are_found_soon() -> None:
    """Only the first field costs a look at each key."""
    each = [
        f"{{param_exists: arguments.{name}}}" for name in (*(f"x{i}" for i in range(100)), "key7")
    ]
    policy = rule(f"any: [{', '.join(each)}]", "block: no")
    with patch.object(fields, "find_member", side_effect=fields.find_member) as find:
        assert judged(policy, call(**KEYS)).matched == ["r"]
    assert sum(len(one.args[0]) for one in find.call_args_list) < 1000
    assert is_unclear(policy, call(**KEYS, KEY7=1))


@pytest.mark.parametrize("on_error", ["allow", "block"])
def test_a_message_that_takes_longer_than_the_chain_may_is_refused(on_error: str) -> None:
    """Its sender chose its size, so ``on_error: allow`` does not apply."""
    top = f"chain: {{timeout: 1s, on_error: {on_error}}}"
    policy = rule("", f"{LOGS}, block: no", TickingHost(), top=top)
    refused = refusal(policy, call(x="y" * 70_000), TickingHost())
    assert refused.detail.endswith("the rules took too long for a message of this size")


def test_others_may_work_while_a_message_takes_long() -> None:
    host = TickingHost()
    judged(rule("", LOGS), call(x=1), host=host)
    assert Delay(0) in host.effects


def test_others_may_work_after_each_slow_condition(host: Host) -> None:
    """It looks at the time itself, but only between conditions can others work."""
    one = "- {{id: r{0}, conditions: [param_exists: a{0}], actions: [log: {{message: x}}]}}\n"
    text = "".join(map(one.format, range(5)))

    def find(document: fields.Document, *_: object) -> list[object]:
        host.now += 0.1
        return []

    with patch.object(fields.Document, "find", find):
        judged(rules(text), request(params={}), host=host)
    assert host.effects.count(Delay(0)) == 4


def test_what_a_sender_can_make_impossible_never_passes() -> None:
    """Neither by arguments that are too large for a script, nor by fields of the wrong type."""
    host = Host(scripts={"./s": TooLarge("too large"), "./t": EffectFailed("it crashed")})
    top = "chain: {on_error: allow}"
    script = "run_script: {path: ./%s, decides: true}"
    assert judged(rule("", script % "s", host, top=top), call(), host=host).refusal
    assert not judged(rule("", script % "t", host, top=top), call(), host=host).refusal
    setting = rule("", "set_param: {field: arguments.a.b, value: 1}", top=top)
    assert judged(setting, call(a="text")).refusal


PATTERNS = [
    "^/etc", "secret$", "a+b", "(sk|ghp)-[a-z]{3,}", r"\bkey\b", "x(?=y)", "(?<!n)o", "[^a-z ]",
    r"\d{3}-\d{2}", "^a(b|c)*$", "é", "[à-ü]x", r"\x41b", ".b.c",
]  # fmt: skip
PIECES = ["/etc", "secret", "aab", "sk-abc", " key ", "xy", "no", "o", "1", "123-45", "abcbc", "é",
          "éx", "Ab", "kbxc", "a", " ", "😀"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=6), before=st.booleans())
def test_long_texts_are_searched_like_short_ones(
    pattern: str, pieces: list[str], before: bool
) -> None:
    """Python reads these patterns as JavaScript does."""
    text = "".join(["z" * 300, *pieces] if before else [*pieces, "z" * 300])
    expected = re.search(pattern, text, re.ASCII) is not None
    assert parse_rule_pattern(pattern).is_in(text, Budget()) is expected


def test_a_text_without_the_required_part_costs_a_fraction() -> None:
    """Else a client could keep everyone waiting with one long argument and many rules."""
    text = "a" * 4_000_000
    spent = []
    for pattern, required in (("^/etc", "/etc"), ("b.c|d.e", "")):
        budget, one = Budget(), parse_rule_pattern(pattern)
        assert (one.required, one.is_in(text, budget)) == (required, False)
        spent.append(FOR_A_MESSAGE - budget.steps)
    assert spent[0] * 10 < spent[1]
