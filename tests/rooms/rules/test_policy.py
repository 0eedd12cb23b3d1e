"""What a rules file may say, and how its mistakes are reported."""

from __future__ import annotations

import json

import pytest

from mcp_tool_filter.rooms.rules.policy import InvalidRules, Policy, load_policy
from tests.rooms.rules.judging import Host, rules
from tests.rows import each_row


def mistakes(text: str | bytes, host: Host | None = None) -> list[str]:
    raw = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(InvalidRules) as caught:
        load_policy(raw, "p.yaml", host)
    return caught.value.why.splitlines()


def in_rule(line: str) -> list[str]:
    """Return the mistakes of a rule with this line, without their positions."""
    actions = "" if "actions:" in line else "      actions: [allow]\n"
    text = f"interceptor:\n  rules:\n    - id: a\n      {line}\n{actions}"
    return [one.split(": ", 1)[1] for one in mistakes(text)]


def test_all_mistakes_are_reported_together_in_their_order() -> None:
    assert mistakes("""interceptor:
  chian: {}
  rules:
    - id: a
      condition: []
      actions: [blok: x]
    - id: a
      actions: [block: x]
      actions: [block: y]
""") == [
        "p.yaml:2:3: interceptor: unknown key 'chian'; did you mean 'chain'?",
        "p.yaml:5:7: interceptor.rules[0]: unknown key 'condition'; did you mean 'conditions'?",
        "p.yaml:6:17: interceptor.rules[0].actions[0]: there is no action 'blok'; "
        "did you mean 'block'?",
        "p.yaml:7:11: interceptor.rules[1].id: the id 'a' is taken by interceptor.rules[0]",
        "p.yaml:9:7: interceptor.rules[1]: the key 'actions' appears twice; first at 8:7",
    ]


@each_row(("raw", "line"), [
    (b"", "p.yaml:1:1: the file is empty; it begins with interceptor:"),
    (b"# nothing\n", "p.yaml:1:1: the file is empty; it begins with interceptor:"),
    (b"\xff\xfe", "p.yaml:1:1: the file is not UTF-8"),
    (b"x" * 1024 * 1024 + b"x", "p.yaml:1:1: the file is larger than 1 MB (1,048,577 bytes)"),
    (b"a: !!python/object:os.system x",
     "p.yaml:1:4: a: tags such as tag:yaml.org,2002:python/object:os.system are not allowed"),
    (b"a: !!int 1", "p.yaml:1:4: a: tags such as tag:yaml.org,2002:int are not allowed"),
    (b"a: &x [*x]", "p.yaml:1:8: a[0]: *x contains itself"),
    (b"a: *x", "p.yaml:1:4: a: *x is not defined"),
    (b"---\n# nothing\n", "p.yaml:1:1: the file is empty; it begins with interceptor:"),
    (b"!!str a: 1", "p.yaml:1:1: tags such as tag:yaml.org,2002:str are not allowed"),
    (b"interceptor:\n  rules:\n  chain: {}\n",
     "p.yaml:2:3: interceptor.rules: expected a list of rules, not nothing"),
    (b"a: 1\n---\nb: 2\n", "p.yaml:2:1: a second document"),
])  # fmt: skip
def test_an_invalid_text_is_no_policy(raw: bytes, line: str) -> None:
    assert line in mistakes(raw)


def test_anchors_may_save_typing_but_not_explode() -> None:
    text = "- {id: a, conditions: &c [method_equals: x], actions: &n [allow]}\n"
    assert len(rules(text + "- {id: b, conditions: *c, actions: *n}\n").rules) == 2
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 200,000 values" in mistakes("\n".join(lines))[-1]


def test_json_is_yaml() -> None:
    policy = {"interceptor": {"rules": [{"id": "\U0001f600", "actions": ["allow"]}]}}
    for text in (json.dumps(policy), json.dumps(policy, indent="\t")):
        assert load_policy(text.encode()).rules[0].id == "\U0001f600"


def test_mistakes_in_json_have_positions() -> None:
    text = '{"interceptor":\n  {"rules": [\n\t{"id": 1, "actions": [], "id": 2}]}}'
    assert mistakes(text) == [
        "p.yaml:3:9: interceptor.rules[0].id: expected a text, such as no-deletes, not a number",
        "p.yaml:3:23: interceptor.rules[0].actions: expected at least one action",
        "p.yaml:3:27: interceptor.rules[0]: the key 'id' appears twice; first at 3:3",
    ]


def test_yaml_1_2_has_few_special_words() -> None:
    """``no``, ``on`` and ``off`` are texts; 0x10 is a number."""
    first, second = rules("""
- {id: off, actions: [block: yes]}
- {id: no, on: request, priority: 0x10, actions: [block: off]}
""").rules
    assert (first.id, second.id) == ("no", "off")


def test_the_name_and_metadata_of_a_rule_are_free_form() -> None:
    assert rules("- {id: a, name: {en: [1.0]}, metadata: [x], actions: [allow]}").rules


IN_A_CONDITION = [
    ("param_in: {field: a, values: []}", ".param_in.values: expected a list that is not empty"),
    ("method_equals: 1", ".method_equals: expected a text, not a number"),
    ("{method_equals: a, tool_equals: b}",
     ": expected one condition, such as method_equals: tools/call"),
    ("method_eqals: a", ": there is no condition 'method_eqals'; did you mean 'method_equals'?"),
    ("method_matches: '(a+)+'",
     ".method_matches: an unsafe regex: '(a+)+' could cause catastrophic backtracking"),
    ("method_matches: '(?i)drop'",
     ".method_matches: not a valid JavaScript regex: '(?i)drop': unknown kind of group after (?. "
     "JavaScript has no (?i); write ignore_case: true beside the pattern and: drop"),
    ("method_matches: {pattern: a, ignorecase: true}",
     ".method_matches: unknown key 'ignorecase'; did you mean 'ignore_case'?"),
    ("param_equals: {field: a}", ".param_equals: value is missing"),
    ("any: []", ".any: expected at least one condition"),
    ("session_age_greater_than: soon",
     ".session_age_greater_than: expected a duration, such as 5s, 200ms, 1m, 2h, 1d, or a number "
     "of seconds, not a text"),
    ("from: upstream", ".from: expected client or server, not 'upstream'"),
]  # fmt: skip
IN_AN_ACTION = [
    ("allow: no", ".allow: allow takes no value"),
    ("transform: {merge_patch: 1}", ".transform.merge_patch: expected a mapping, not a number"),
    ("fork: {to: 'http://h:0/'}", ".fork.to: expected a URL such as http://localhost:3001/mcp"),
    ("fork: {to: 'http://h x/'}", ".fork.to: expected a URL such as http://localhost:3001/mcp"),
    ("webhook: {url: 'http://h:99999/'}",
     ".webhook.url: Not a valid URL: Port out of range 0-65535"),
    ("delay: 11m", ".delay: expected a duration from 0s to 600s"),
    ("block: '${toll}'", ".block: there is no variable ${toll}; did you mean ${tool}?"),
    ("rate_limit: {key: k, limit: -1, window: 1s}",
     ".rate_limit.limit: expected a whole number from 0 to 1000000000"),
    ("webhook: {url: 'ftp://x'}",
     ".webhook.url: expected a URL that begins with http:// or https://"),
    ("transform: {json_patch: [{op: ad, path: /a}]}",
     ".transform.json_patch[0].op: expected add, remove, replace, move, copy or test, not 'ad'; "
     "did you mean 'add'?"),
    ("transform: {merge_path: {}}",
     ".transform: there is no transform 'merge_path'; did you mean 'merge_patch'?"),
    ("transform: {python: ''}", ".transform.python: expected module:function"),
    ("run_script: {path: ./x}", ".run_script.path: ./x cannot be run here"),
    ("log: {level: warning, message: x}",
     ".log.level: expected debug, info, warn or error, not 'warning'; did you mean 'warn'?"),
    *[(f"webhook: {{url: '{url}'}}", ".webhook.url: a variable may not choose the host: "
       "expected a URL such as https://host/${tool}")
      for url in ("${params.x}", "http://${params.x}/", "http://h${params.x}", "https://h:${id}/")],
]  # fmt: skip
MISTAKES = [
    ("conditions: {}", "conditions: expected a list of conditions, not a mapping"),
    ("on: reqest", "on: expected request, response or any, not 'reqest'; did you mean 'request'?"),
    ("enabled: yes", "enabled: expected true or false, not a text"),
    ("priority: 1.5", "priority: expected a whole number"),
    ("actions: []", "actions: expected at least one action"),
    *[(f"conditions: [{line}]", f"conditions[0]{said}") for line, said in IN_A_CONDITION],
    *[(f"actions: [{line}]", f"actions[0]{said}") for line, said in IN_AN_ACTION],
]  # fmt: skip


@each_row(("line", "expected"), MISTAKES)
def test_a_mistake_says_what_would_be_right(line: str, expected: str) -> None:
    assert f"interceptor.rules[0].{expected}" in in_rule(line)


@each_row("written", ["0644", "-007", "00", "00.5", "01e5", "+010"])
def test_a_number_that_begins_with_a_zero_is_a_mistake(written: str) -> None:
    """YAML 1.1 reads an octal number, YAML 1.2 a decimal one; JSON has neither."""
    (said,) = in_rule(f"actions: [set_param: {{field: a, value: [{written}]}}]")
    assert said.startswith(f"{written} begins with a zero")
    for accepted in ("0", "-0", "+0", "0.5", "0o644", "0x1F", f"'{written}'", "2026-01-02"):
        assert rules(f"- {{id: a, actions: [set_param: {{field: a, value: {accepted}}}]}}").rules


@each_row(("url", "why"), [
    ("redis://h:x/0", "Port could not be cast"), ("redis://me:hunter2/", "Port could not be cast"),
    ("redis://h?socket_timeout=soon", "Invalid value"), ("redis://[::1/0", "Invalid IPv6"),
    ("http://h/", "expected a URL such as redis://"),
])  # fmt: skip
def test_a_url_that_the_state_cannot_use_is_a_mistake(url: str, why: str) -> None:
    with pytest.raises(InvalidRules, match=r"interceptor\.state\.url") as caught:
        rules("", top=f"state: {{url: '{url}'}}")
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_method_interceptor_has_a_class() -> None:
    """An empty one let everything pass."""
    for name in ("", "ToolCal"):
        with pytest.raises(InvalidRules, match=r"tools/call\.class: "):
            rules("", top=f"method_interceptors: {{tools/call: {{class: '{name}'}}}}")


def test_a_rule_on_requests_cannot_read_the_response() -> None:
    wrong = 'on: a rule on requests cannot refer to the response (not: {"result_exists":"a"})'
    found = in_rule("on: request\n      conditions: [not: {result_exists: a}]")
    assert found == [f"interceptor.rules[0].{wrong}"]
    assert in_rule("on: request\n      actions: [block: '${result.x}']")
    assert in_rule("on: response\n      actions: [set_param: {field: a, value: 1}]")


@each_row(("line", "directions"), [
    ("actions: [allow]", (True, False)),
    ("conditions: [{any: [{not: {error_code_equals: 1}}]}]\n  actions: [allow]", (False, True)),
    ("actions: [set_result: {field: a, value: 1}]", (False, True)),
    ("actions: [log: {message: '${result.a}'}]", (False, True)),
    ("on: any\n  actions: [allow]", (True, True)),
    ("on: response\n  actions: [allow]", (False, True)),
    ("on: any\n  conditions: [result_exists: a]\n  actions: [allow]", (True, True)),
])  # fmt: skip
def test_the_direction_of_a_rule(line: str, directions: tuple[bool, bool]) -> None:
    (rule,) = rules(f"- id: a\n  {line}").rules
    assert (rule.for_requests, rule.for_responses) == directions


def test_a_rule_that_can_never_match_causes_a_warning() -> None:
    policy = rules("""
- {id: a, conditions: [tool_equals: x], actions: [block: a]}
- {id: b, conditions: [tool_equals: x, param_exists: y], actions: [log: {message: b}]}
- {id: c, conditions: [tool_equals: y], actions: [log: {message: c}]}
- {id: d, on: response, conditions: [tool_equals: x], actions: [log: {message: d}]}
""")
    assert [one.split(":")[0] for one in policy.warnings] == ["the rule 'b' can never match"]
    both = "- {id: a, actions: [block: a]}\n- {id: b, actions: [block: b]}"
    assert rules(both, top="chain: {fail_fast: false}").warnings == ()


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> Policy:
        condition = "{not: " * levels + "{param_exists: a}" + "}" * levels
        return rules(f"- {{id: a, conditions: [{condition}], actions: [allow]}}")

    assert nested(31).rules
    with pytest.raises(InvalidRules, match="more than 32 deep"):
        nested(32)


def test_a_missing_script_or_module_is_a_mistake() -> None:
    text = "interceptor:\n  rules: [{id: a, actions: [transform: {python: 'm:f'}]}]\n"
    found = mistakes(text + "  method_interceptors: {x: {class: 'm:C'}}", Host())
    assert [one.split(": ", 2)[2] for one in found] == ["there is no m:f", "there is no m:C"]


def test_a_class_is_created_once_with_its_config() -> None:
    class Made:
        def __init__(self, config: object) -> None:
            self.config = config

        def request(self, exchange: object) -> None: ...

    host = Host(objects={"m:C": Made})
    top = "method_interceptors: {x: {class: 'm:C', config: {a: [1, 2.5, null, true]}}}"
    (made,) = rules("", host, top=top).interceptors.values()
    assert made.instance.config == {"a": [1, 2.5, None, True]}  # type: ignore[union-attr]  # it is ours


@each_row(("text", "seconds"), [
    ("5s", 5), ("200ms", 0.2), ("1m", 60), ("2h", 7200), ("1d", 86400), ("7", 7), ("0.5", 0.5),
    ("1e1", 10),
])  # fmt: skip
def test_durations_have_units(text: str, seconds: float) -> None:
    assert rules("", top=f"chain: {{timeout: {text}}}").chain.timeout == seconds


@pytest.mark.parametrize("top", ["session_ttl: 2h", "state: {session_ttl: 2h}"])
def test_a_policy_sets_how_long_a_session_is_remembered(top: str) -> None:
    assert rules("", top=top).session_ttl == 7200
