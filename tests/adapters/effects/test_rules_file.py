"""The rules file: read at start, and read again when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.effects.rules_file import UnreadableRules, WatchedRules
from mcp_tool_filter.adapters.effects.rules_in_force import RulesInForce

RULE = "{id: %s, conditions: [tool_equals: a], actions: [{block: no}]}"


def write(file: Path, *ids: str) -> str:
    file.write_text(f"interceptor: {{rules: [{', '.join(RULE % one for one in ids)}]}}")
    return str(file)


def test_a_change_of_the_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    watched = WatchedRules(write(file, "one"))
    watched.read()
    assert not watched.has_changed()
    write(file, "another")
    assert watched.has_changed()
    watched.read()
    assert not watched.has_changed()


def test_a_missing_file_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "policy.yaml"
    watched = WatchedRules(write(file, "one"))
    watched.read()
    file.unlink()
    assert not watched.has_changed()
    assert not watched.has_changed()
    assert caplog.messages == [f"The rules file {file} is gone; its rules stay in force"]


def test_a_file_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRules) as caught:
        RulesInForce(str(tmp_path))
    assert caught.value.why == "Is a directory"
