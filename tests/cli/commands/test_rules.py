"""``mcp-tool-filter rules``: check, test, explain, schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.policy.rules.load import CHAIN_KEYS, RULE_KEYS, STATE_KEYS, TOP_KEYS
from mcp_tool_filter.policy.rules.load_actions import ACTION_NAMES
from mcp_tool_filter.policy.rules.load_conditions import CONDITION_NAMES
from mcp_tool_filter.policy.rules.schema import (
    ACTIONS,
    CHAIN,
    CONDITIONS,
    INTERCEPTOR,
    RULE,
    STATE,
    Schema,
)

SEED = "tests/policy/rules/seed.yaml"
CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'


def test_check_accepts_the_example_of_the_specification(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules", "check", SEED]) == 0
    assert capsys.readouterr().out == f"{SEED}: 3 rules, no mistakes\n"


def test_check_reports_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("interceptor:\n  chian: {}\n  rules: [{id: a}]\n")
    assert main(["rules", "check", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"Error: Invalid rules file: {file} has 2 mistakes",
        f"{file}:2:3: interceptor: unknown key 'chian'; did you mean 'chain'?",
        f"{file}:3:11: interceptor.rules[0]: actions is missing",
    ]


def test_check_warns_of_rules_that_can_never_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "interceptor: {rules: [{id: a, actions: [allow]}, {id: b, actions: [block: x]}]}"
    )
    assert main(["rules", "check", str(file)]) == 0
    assert "'b' can never match" in capsys.readouterr().err


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


def test_test_prints_a_line_for_each_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(CASES)
    assert main(["rules", "test", SEED, str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok", "3"]
    file.write_text(CASES.replace("expect: pass", "expect: drop"))
    assert main(["rules", "test", SEED, str(file)]) == 1
    assert "FAIL  fine" in capsys.readouterr().out


def test_test_ends_with_2_without_usable_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text("cases: [{expect: maybe, message: {a: 1}}]")
    assert main(["rules", "test", SEED, str(file)]) == 2
    shown = capsys.readouterr().err
    assert f"{file}:1:18: cases[0].expect: expected pass, block, drop or modify" in shown
    assert "cases[0].message: this is no message" in shown
    assert main(["rules", "test", SEED, str(tmp_path / "nothing")]) == 2
    assert main(["rules", "test", str(tmp_path / "nothing"), str(file)]) == 2


def test_a_case_may_be_about_a_response(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules, cases = tmp_path / "p.yaml", tmp_path / "cases.yaml"
    rules.write_text(
        "interceptor: {rules: [{id: a, conditions: [tool_equals: read, result_exists: x],"
        " actions: [redact: {pattern: sk-.}]}]}"
    )
    cases.write_text(
        "cases: [{message: {jsonrpc: '2.0', id: 1, method: tools/call, params: {name: read}},"
        " response: {jsonrpc: '2.0', id: 1, result: {x: sk-1}}, expect: modify, rule: a}]"
    )
    assert main(["rules", "test", str(rules), str(cases)]) == 0
    assert '"x":"***"' in capsys.readouterr().out


def test_explain_tells_what_was_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", SEED, CALL.replace("delete", "read")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tools/call (method interceptor): let it pass",
        "block-dangerous-tools: did not match",
        "  yes method_equals: tools/call",
        '  no  param_in: {"field":"name","values":["execute_command","delete_file"]}',
        "Outcome: pass",
    ]
    assert main(["rules", "explain", SEED, CALL]) == 0
    shown = capsys.readouterr().out
    assert "block by tools/call: -32001 \"Tool 'delete_file' not allowed\"" in shown


def test_explain_refuses_what_is_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", SEED, "{}"]) == 2
    assert "no message" in capsys.readouterr().err


def keys_of(schema: Schema) -> list[str]:
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return sorted(properties)


def test_the_schema_knows_the_same_keys_as_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["required"] == ["interceptor"]
    assert sorted(CONDITIONS) == sorted(CONDITION_NAMES)
    assert sorted(ACTIONS) == sorted(ACTION_NAMES)
    assert keys_of(INTERCEPTOR) == sorted(TOP_KEYS)
    assert keys_of(CHAIN) == sorted(CHAIN_KEYS)
    assert keys_of(STATE) == sorted(STATE_KEYS)
    assert keys_of(RULE) == sorted(["id", "actions", *RULE_KEYS])
