"""The rules file: read at start and when it changes; what it refers to on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.rules import file as rules_file
from mcp_tool_filter.rooms.rules.file import (
    RulesInForce,
    StillWritten,
    ThisMachine,
    UnreadableRules,
    WatchedRules,
    read_rules,
)
from mcp_tool_filter.rooms.rules.policy import Policy

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


def test_a_file_that_changes_while_it_is_read_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    watched = WatchedRules(write(file, "one"))
    watched.read()

    def read_slowly(path: str) -> Policy:
        policy = read_rules(path)
        write(file, "one", "another")
        return policy

    with patch.object(rules_file, "read_rules", read_slowly), pytest.raises(StillWritten):
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
    with pytest.raises(UnreadableRules, match="\nIs a directory"):
        RulesInForce(str(tmp_path))


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
    assert caplog.messages[-1] == "Rules that are no longer in force: one"


def test_another_file_replaces_the_first_only_if_it_is_valid(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    rules = RulesInForce(write(first, "one"))
    with pytest.raises(StartError):
        rules.replace_file(str(tmp_path / "missing.yaml"))
    assert (rules.names, rules.path) == (("one",), str(first))
    rules.replace_file(write(second, "two"))
    assert (rules.names, rules.path) == (("two",), str(second))


def test_a_module_beside_the_rules_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine_beside_the_rules.py").write_text("class A:\n    b = 'found'\n")
    machine = ThisMachine(tmp_path)
    assert machine.import_object("mine_beside_the_rules:A.b") == "found"
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(("name", "said"), [
    ("no_such_module:f", "no_such_module cannot be imported: No module named"),
    ("json:no_such", "json has no no_such"),
    ("raises_when_imported:f", "raises_when_imported cannot be imported: ZeroDivisionError"),
])  # fmt: skip
def test_a_failed_import_has_a_reason(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "raises_when_imported.py").write_text("raise ZeroDivisionError")
    with pytest.raises(ValueError, match=said):
        ThisMachine(tmp_path).import_object(name)


def test_a_script_is_found_from_the_folder_of_the_rules_file(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert ThisMachine(tmp_path).find_script("./script") == str(script)
    assert ThisMachine(tmp_path / "other").find_script(str(script)) == str(script)
    assert ThisMachine(tmp_path).find_script("/bin/true") == "/bin/true"  # no script


@pytest.mark.parametrize(("path", "said"), [
    ("script", r"script cannot be executed; chmod \+x"), (".", "cannot be executed"),
    ("missing", "there is no script missing"),
])  # fmt: skip
def test_a_script_that_cannot_run_has_a_reason(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "script").touch(0o644)
    with pytest.raises(ValueError, match=said):
        ThisMachine(tmp_path).find_script(path)


@pytest.mark.parametrize(("head", "said"), [
    ("", "it does not begin with #!"), ("exit 0\n", "it does not begin with #!"),
    ("\ufeff#!/bin/sh\n", "it does not begin with #!"),
    ("#!\n", "there is no interpreter behind #!"),
    ("#! /no/such/shell -e\n", "there is no interpreter /no/such/shell"),
    ("#!/bin\n", "there is no interpreter /bin"),
    ("#!/bin/sh\r\n", "its first line ends with a carriage return"),
    ("#!/usr/bin/env no-such-program\n", "there is no program no-such-program on the PATH"),
    ("\ufeff#\0!\0", "it does not begin with #!"),
])  # fmt: skip
def test_a_script_that_would_not_start_is_a_mistake(tmp_path: Path, head: str, said: str) -> None:
    script = tmp_path / "script"
    script.write_text(head, newline="", encoding="utf-16" if "\0" in head else "utf-8")
    script.chmod(0o755)
    with pytest.raises(ValueError, match=f"script cannot be executed: {said}"):
        ThisMachine(tmp_path).find_script("script")
