"""``mcp-tool-filter rules``: check, test, explain, schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.rules.interceptors import to_plain
from mcp_tool_filter.rules.load import json_schema, load_policy
from mcp_tool_filter.rules.source import InvalidRules, YamlNode, read_source

SEED = "tests/rules/seed.yaml"


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


SCHEMA = json_schema()
EXAMPLES = [Path(SEED), *Path("addon/mcp_tool_filter/docs/rules").glob("*[!s].yaml")]


def plain(node: YamlNode) -> object:
    return to_plain(node.to_json())


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_schema_accepts_what_the_reader_accepts(file: Path) -> None:
    root, mistakes = read_source(file.read_bytes())
    assert not mistakes
    jsonschema.validate(plain(root), SCHEMA)


@pytest.mark.parametrize(
    "said",
    [
        "rules: [{id: a, actions: [{blok: x}]}]",
        "rules: [{id: a, actions: [{redact: {pattern: a, feld: b}}]}]",
        "rules: [{id: a, actions: [{cache: {key: a}}]}]",
        "rules: [{id: a, actions: [{fork: {copies: 101}}]}]",
        "rules: [{id: a, actions: [{transform: {json_patch: [{op: ad, path: /a}]}}]}]",
        "rules: [{id: a, actions: [{delay: 5y}]}]",
        "rules: [{id: a, actions: []}]",
        "rules: [{actions: [allow]}]",
        "rules: [{id: a, actions: [allow], conditions: [{param_equals: {field: a}}]}]",
        "rules: [{id: a, actions: [allow], conditions: [{all: []}]}]",
        "rules: [{id: a, actions: [allow], conditions: [{not: {tool_in: []}}]}]",
        "rules: [{id: a, actions: [allow], on: requests}]",
        "chain: {timeout: x}",
        "method_interceptors: {tools/call: {config: {}}}",
        "state: {session_ttl: -1}",
        "mode: http",
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(said: str) -> None:
    raw = f"interceptor: {{{said}}}".encode()
    with pytest.raises(InvalidRules):
        load_policy(raw)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain(read_source(raw)[0]), SCHEMA)
