"""The rules file: read at start, and read again when it changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules import file as rules_file
from mcp_tool_filter.adapters.rules.file import (
    RulesInForce,
    StillWritten,
    UnreadableRules,
    WatchedRules,
    read_rules,
)
from mcp_tool_filter.rules.model import Policy

RULE = "{id: %s, conditions: [tool_equals: a], actions: [{block: no}]}"


def write(file: Path, *ids: str) -> str:
    file.write_text(f"interceptor: {{rules: [{', '.join(RULE % one for one in ids)}]}}")
    return str(file)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_changed_file_is_read_when_it_is_complete(tmp_path: Path, is_replaced: bool) -> None:
    """The beginning of a rules file is often valid, and has fewer rules."""
    file, clock = tmp_path / "policy.yaml", Clock()
    watched = WatchedRules(write(file, "one"), clock)
    watched.read()
    assert not watched.has_changed()
    whole = "interceptor:\n  rules:\n" + "".join(f"  - {RULE % f'r{n}'}\n" for n in range(9))
    if is_replaced:
        write(tmp_path / "new", "another")
        (tmp_path / "new").rename(file)
    else:
        file.write_text("")
        for line in whole.splitlines(keepends=True):
            with file.open("a") as end:
                end.write(line)
            assert not watched.has_changed()
            clock.now += 0.9
    assert not watched.has_changed()
    clock.now += 1
    assert watched.has_changed()
    assert len(watched.read().rules) == (1 if is_replaced else 9)
    assert not watched.has_changed()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who writes")
def test_a_file_is_not_read_while_a_program_has_it_open_for_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the program pauses: what it has written is often valid, and has fewer rules."""
    file, clock = tmp_path / "policy.yaml", Clock()
    watched = WatchedRules(write(file, "one", "another"), clock)
    watched.read()
    with file.open("w") as being_written:
        being_written.write("interceptor:\n  rules:\n")
        for name in ("one", "another"):
            print(f"  - {RULE % name}", file=being_written, flush=True)
            for _ in range(3):
                assert not watched.has_changed()
                clock.now += 60
    assert caplog.messages == [f"The old rules stay in force: a program still writes {file}"]
    assert watched.has_changed()
    assert len(watched.read().rules) == 2


def test_a_file_that_changes_while_it_is_read_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.yaml"
    watched = WatchedRules(write(file, "one"))
    watched.read()

    def read_slowly(path: str) -> Policy:
        policy = read_rules(path)
        write(file, "one", "another")
        return policy

    monkeypatch.setattr(rules_file, "read_rules", read_slowly)
    with pytest.raises(StillWritten):
        watched.read()


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
