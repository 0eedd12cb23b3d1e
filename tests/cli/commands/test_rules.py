"""``mcp-tool-filter rules``: check, test, explain, schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.policy.rules.actions import ACTION_NAMES
from mcp_tool_filter.policy.rules.conditions import CONDITION_NAMES
from mcp_tool_filter.policy.rules.load import CHAIN_KEYS, RULE_KEYS, STATE_KEYS, TOP_KEYS
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
