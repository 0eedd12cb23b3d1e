"""``mcp-tool-filter rules``: check, test, explain, schema."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from mcp_tool_filter.core.messages.messages import parse_message
from mcp_tool_filter.rooms.rules.command import Rehearsal, Rehearsed, lines_of
from mcp_tool_filter.rooms.rules.file import ThisMachine
from mcp_tool_filter.rooms.rules.interceptors import to_plain
from mcp_tool_filter.rooms.rules.policy import InvalidRules, Policy, json_schema, load_policy
from mcp_tool_filter.rooms.rules.source import YamlNode, read_source
from mcp_tool_filter.rooms.rules.subject import Evaluated
from tests.cli.launched import Typed
from tests.rooms.rules.judging import call, request, rules, single
from tests.rows import each_row

SEED = "tests/rooms/rules/seed.yaml"
CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'


def test_check_accepts_the_example_of_the_specification(typed: Typed) -> None:
    assert typed("rules", "check", SEED).out == f"{SEED}: 3 rules, no mistakes\n"


def test_check_warns_of_rules_that_can_never_match(tmp_path: Path, typed: Typed) -> None:
    rules = "{id: a, actions: [allow]}, {id: b, actions: [block: x]}"
    (file := tmp_path / "p.yaml").write_text(f"interceptor: {{rules: [{rules}]}}")
    assert "'b' can never match" in typed("rules", "check", file).err


SCHEMA = json_schema()
README = Path(__file__).parents[3] / "README.md"
DOCS = README.parent / "addon" / "mcp_tool_filter" / "docs"
COOKBOOK = sorted(
    path for path in (DOCS / "rules").glob("*.yaml") if not path.name.endswith(".cases.yaml")
)


def plain(node: YamlNode) -> object:
    return to_plain(node.to_json())


def test_the_schema_is_printed(typed: Typed) -> None:
    assert json.loads(typed("rules", "schema").out) == json.loads(json.dumps(SCHEMA))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@each_row("file", [Path(SEED), *COOKBOOK])
def test_the_schema_accepts_what_the_reader_accepts(file: Path) -> None:
    root, mistakes = read_source(file.read_bytes())
    assert not mistakes
    jsonschema.validate(plain(root), SCHEMA)


@each_row("said", [
    "rules: [{id: a, actions: [{blok: x}]}]",
    "rules: [{id: a, actions: [{redact: {pattern: a, feld: b}}]}]",
    "rules: [{id: a, actions: [{cache: {key: a}}]}]",
    "rules: [{id: a, actions: [{fork: {copies: 101}}]}]",
    "rules: [{id: a, actions: [{transform: {json_patch: [{op: ad, path: /a}]}}]}]",
    "rules: [{id: a, actions: [{delay: 5y}]}]", "rules: [{id: a, actions: []}]",
    "rules: [{actions: [allow]}]",
    "rules: [{id: a, actions: [allow], conditions: [{param_equals: {field: a}}]}]",
    "rules: [{id: a, actions: [allow], conditions: [{all: []}]}]",
    "rules: [{id: a, actions: [allow], conditions: [{not: {tool_in: []}}]}]",
    "rules: [{id: a, actions: [allow], on: requests}]", "chain: {timeout: x}",
    "method_interceptors: {tools/call: {config: {}}}", "state: {session_ttl: -1}", "mode: http",
])  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(said: str) -> None:
    raw = f"interceptor: {{{said}}}".encode()
    with pytest.raises(InvalidRules):
        load_policy(raw)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain(read_source(raw)[0]), SCHEMA)


# Rehearsals

POLICY = """
- {id: tell, conditions: [tool_equals: told], actions: [log: {message: hello}]}
- {id: mask, conditions: [tool_equals: secret],
   actions: [set_param: {field: arguments.key, value: "***"}]}
- {id: stop, conditions: [tool_equals: wipe], actions: [inject_error: {code: -32010, message: No}]}
- {id: quiet, conditions: [method_equals: notifications/noise], actions: [block: "no"]}
"""
NOISE = '{"jsonrpc":"2.0","method":"notifications/noise"}'


def outcome(text: str, *, trace: list[Evaluated] | None = None) -> Rehearsed:
    return Rehearsal(rules(POLICY)).judge(parse_message(text.encode()), trace=trace)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (call("read"), "pass"), (call("told"), "pass"),
        (call("wipe"), 'block by stop: -32010 "No"'), (NOISE, "drop by quiet"),
        (call("secret", key="k"), f"modify by mask: {call('secret', key='***')}"),
    ],
    ids=["no rule", "a rule that changes nothing", "block", "drop", "modify"],
)  # fmt: skip
def test_each_outcome_is_a_word_with_the_rule_that_decided(text: str, shown: str) -> None:
    assert str(outcome(text)) == shown


def test_a_changed_message_is_the_one_that_goes_on() -> None:
    found = outcome(call("secret", key="k"))
    assert found.message
    assert found.message.place.raw.decode() == found.text == call("secret", key="***")
    passed = outcome(call("read"))
    assert passed.message
    assert passed.message.place.raw.decode() == call("read")


def test_a_batch_has_the_gravest_outcome_of_its_members() -> None:
    batch = f"[{call('read')},{call('wipe', 2)},{call('secret', 3, key='k')},{NOISE}]"
    assert outcome(batch).word == "block"
    batch = f"[{call('secret', 3, key='k')},{NOISE}]"
    assert outcome(batch).word == "drop"


def test_a_message_is_from_the_client_by_default() -> None:
    rehearsal = Rehearsal(rules("- {id: r, conditions: [from: server], actions: [block: 'no']}"))
    ping = single(request("ping"))
    assert rehearsal.judge(ping).word == "pass"
    assert rehearsal.judge(ping, from_client=False).word == "block"


def test_the_trace_tells_conditions_and_actions() -> None:
    policy = rules(
        "- {id: a, conditions: [param_exists: arguments.x], actions: [log: {message: a}]}\n"
        "- {id: b, conditions: [param_exists: name], actions: [log: {message: b}]}"
    )
    trace: list[Evaluated] = []
    Rehearsal(policy).judge(single(call()), trace=trace)
    assert list(lines_of(trace)) == [
        "a: did not match",
        "  no  param_exists: arguments.x",
        "b: matched",
        "  yes param_exists: name",
        "  did log",
    ]


def refused_by(rehearsal: Rehearsal, text: str) -> str | None:
    told = rehearsal.judge(single(text))
    return told.rule if told.word == "block" else None


def test_limits_hold_within_a_rehearsal_and_begin_empty_with_the_next() -> None:
    policy = rules("- {id: slow-down, actions: [rate_limit: {key: k, limit: 1, window: 60s}]}")
    first = Rehearsal(policy)
    assert [refused_by(first, call()), refused_by(first, call())] == [None, "slow-down"]
    assert refused_by(Rehearsal(policy), call()) is None


def scripted(folder: Path, *statuses: int, parallel: bool) -> Policy:
    """Read a policy whose scripts end with these statuses; each notes that it ran."""
    text = f"interceptor:\n  chain: {{parallel: {str(parallel).lower()}}}\n  rules:\n"
    for number, status in enumerate(statuses):
        file = folder / f"s{number}"
        code = f"open(__file__ + '.ran', 'w')\nraise SystemExit({status})"
        file.write_text(f"#!{sys.executable}\n{code}\n")
        file.chmod(0o755)
        run = f"run_script: {{path: ./s{number}, decides: true}}"
        text += f"    - {{id: s{number}, actions: [{run}]}}\n"
    return load_policy(text.encode(), machine=ThisMachine(folder))


@pytest.mark.parametrize("parallel", [False, True])
def test_scripts_that_decide_run_to_their_end(parallel: bool, tmp_path: Path) -> None:
    """Nothing waits in a rehearsal, also where the rules let scripts run side by side."""
    policy = scripted(tmp_path, 0, 1, parallel=parallel)
    assert refused_by(Rehearsal(policy), call()) == "s1"
    assert (tmp_path / "s0.ran").exists()


# rules test

CASES = f"""
cases:
  - {{name: delete, message: '{CALL}', expect: block, rule: tools/call, code: -32001}}
  - name: the eleventh
    messages: [{", ".join(["{jsonrpc: '2.0', id: 1, method: expensive/x}"] * 11)}]
    expect: block
    rule: rate-limit-expensive
  - name: fine
    message: {{jsonrpc: "2.0", id: 1, method: ping}}
    expect: pass
"""


def test_test_prints_a_line_for_each_case(tmp_path: Path, typed: Typed) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(CASES)
    lines = typed("rules", "test", SEED, str(file)).out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok", "3"]
    file.write_text(CASES.replace("expect: pass", "expect: drop"))
    assert "FAIL  fine" in typed("rules", "test", SEED, str(file), status=1).out


def test_a_case_may_be_about_a_response(tmp_path: Path, typed: Typed) -> None:
    rules, cases = tmp_path / "p.yaml", tmp_path / "cases.yaml"
    rules.write_text(
        "interceptor: {rules: [{id: a, conditions: [tool_equals: read, result_exists: x],"
        " actions: [redact: {pattern: sk-.}]}]}"
    )
    cases.write_text(
        "cases: [{message: {jsonrpc: '2.0', id: 1, method: tools/call, params: {name: read}},"
        " response: {jsonrpc: '2.0', id: 1, result: {x: sk-1}}, expect: modify, rule: a}]"
    )
    assert '"x":"***"' in typed("rules", "test", str(rules), str(cases)).out


# rules explain


def test_explain_shows_which_rules_were_evaluated(typed: Typed) -> None:
    assert typed("rules", "explain", SEED, CALL.replace("delete", "read")).out.splitlines() == [
        "tools/call (method interceptor): let it pass",
        "block-dangerous-tools: did not match",
        "  yes method_equals: tools/call",
        '  no  param_in: {"field":"name","values":["execute_command","delete_file"]}',
        "rate-limit-expensive: did not match",
        "  no  method_starts_with: expensive/",
        "cache-readonly: did not match",
        '  no  method_in: ["resources/list","tools/list"]',
        "Outcome: pass",
    ]
    shown = typed("rules", "explain", SEED, CALL).out
    assert "block by tools/call: -32001 \"Tool 'delete_file' not allowed\"" in shown


def test_explain_names_every_rule(tmp_path: Path, typed: Typed) -> None:
    """Also those that cannot match, that come too late, or that are for the other direction."""
    rules = tmp_path / "rules.yaml"
    block = "actions: [block: no]"
    rules.write_text(
        "interceptor:\n  rules:\n"
        f"  - {{id: other, conditions: [tool_equals: other], {block}}}\n"
        f"  - {{id: first, conditions: [tool_equals: delete_file], {block}}}\n"
        f"  - {{id: late, {block}}}\n"
        f"  - {{id: answers, on: response, {block}}}\n"
    )
    assert typed("rules", "explain", rules, CALL).out.splitlines() == [
        "other: did not match",
        "  no  tool_equals: other",
        "first: matched",
        "  yes tool_equals: delete_file",
        "  did block",
        "late: was not evaluated: an earlier rule ended the chain",
        "answers: was not evaluated: it is for responses",
        'Outcome: block by first: -32001 "no"',
    ]


def test_explain_says_why_a_message_cannot_be_judged(tmp_path: Path, typed: Typed) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor:\n  rules:\n    - id: inside\n"
        "      conditions: [{param_matches: {field: arguments.path, pattern: '^/work'}}]\n"
        "      actions: [{block: no}]\n"
    )
    twice = '"params":{"name":"read","arguments":{"path":"/etc","path":"/work"}}'

    said = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call",{twice}}}'
    shown = typed("rules", "explain", str(rules), said).out.splitlines()
    assert shown[:-1] == [
        "inside: cannot be judged",
        '  ?   param_matches: {"field":"arguments.path","pattern":"^/work"}',
    ]
    assert shown[-1] == (
        'Outcome: block by inside: -32600 "Invalid Request" '
        "(clients do not see this: the key 'path' appears twice or in another spelling)"
    )


@pytest.mark.parametrize("example", COOKBOOK, ids=lambda path: path.stem)
def test_a_cookbook_example_does_what_it_says(example: Path, typed: Typed) -> None:
    typed("rules", "test", example, example.with_suffix(".cases.yaml"))
    assert f"(rules/{example.name})" in (DOCS / "rules.md").read_text()


def test_the_cookbook_has_examples() -> None:
    assert len(COOKBOOK) >= 11


def test_the_rule_in_the_readme_keeps_files_inside(tmp_path: Path, typed: Typed) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "policy.yaml").write_text(shown)
    inside = ["/home/me/project", "/home/me/project/notes/a b.txt"]
    outside = ["/etc/passwd", "/home/me/project/../.ssh/id", "/home/me/projects"]
    cases = [
        {"message": json.loads(call("read_file", path=path)), "expect": expected}
        for expected, paths in (("pass", inside), ("block", [*outside, inside, 1]))
        for path in paths
    ]
    (tmp_path / "cases.yaml").write_text(json.dumps({"cases": cases}))
    typed("rules", "test", tmp_path / "policy.yaml", tmp_path / "cases.yaml")
