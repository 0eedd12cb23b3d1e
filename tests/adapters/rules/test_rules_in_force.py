"""The rules of a process: read, and replaced when their file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.file import RulesInForce
from mcp_tool_filter.errors import StartError

RULE = "{id: %s, conditions: [tool_equals: a], actions: [{block: no}]}"


def write(file: Path, *ids: str) -> str:
    file.write_text(f"interceptor: {{rules: [{', '.join(RULE % one for one in ids)}]}}")
    return str(file)


async def test_the_rules_are_those_of_the_file_and_change_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    rules = RulesInForce(write(file, "one"))
    link = rules.link("http://upstream")
    before = rules.names
    write(file, "two", "three")
    await rules.read_again()
    assert (before, rules.names) == (("one",), ("two", "three"))
    assert link.policy is rules.policy
    assert caplog.messages == ["Rules that are no longer in force: one"]


async def test_the_old_rules_stay_if_the_new_ones_have_mistakes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    rules = RulesInForce(write(file, "one"))
    file.write_text("interceptor: 5")
    await rules.read_again()
    assert rules.names == ("one",)
    assert caplog.messages[-1].startswith("The old rules stay in force.\n")


def test_another_file_replaces_the_first_only_if_it_is_valid(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    rules = RulesInForce(write(first, "one"))
    with pytest.raises(StartError):
        rules.replace_file(str(tmp_path / "missing.yaml"))
    assert (rules.names, rules.path) == (("one",), str(first))
    rules.replace_file(write(second, "two"))
    assert (rules.names, rules.path) == (("two",), str(second))
