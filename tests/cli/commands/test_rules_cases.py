"""``mcp-tool-filter rules test``: cases of messages, and what becomes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main

SEED = "tests/rules/seed.yaml"
CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'

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
