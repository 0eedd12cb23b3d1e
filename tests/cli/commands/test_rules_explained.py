"""``mcp-tool-filter rules explain``: why a message passes or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main

SEED = "tests/rules/seed.yaml"
CALL = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'


def test_explain_shows_which_rules_were_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_explain_refuses_text_that_is_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", SEED, "{}"]) == 2
    assert "no message" in capsys.readouterr().err


def test_explain_says_why_a_message_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "interceptor:\n  rules:\n    - id: inside\n"
        "      conditions: [{param_matches: {field: arguments.path, pattern: '^/work'}}]\n"
        "      actions: [{block: no}]\n"
    )
    twice = '"params":{"name":"read","arguments":{"path":"/etc","path":"/work"}}'

    said = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call",{twice}}}'
    assert main(["rules", "explain", str(rules), said]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:-1] == [
        "inside: cannot be judged",
        '  ?   param_matches: {"field":"arguments.path","pattern":"^/work"}',
    ]
    assert shown[-1] == (
        'Outcome: block by inside: -32600 "Invalid Request" '
        "(clients do not see this: the key 'path' appears twice or in another spelling)"
    )
