"""What a rules file refers to on this machine: scripts, and Python of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.file import ThisMachine


def test_a_module_beside_the_rules_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine_beside_the_rules.py").write_text("class A:\n    b = 'found'\n")
    machine = ThisMachine(tmp_path)
    assert machine.import_object("mine_beside_the_rules:A.b") == "found"
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:f", "no_such_module cannot be imported: No module named"),
        ("json:no_such", "json has no no_such"),
        ("raises_when_imported:f", "raises_when_imported cannot be imported: ZeroDivisionError"),
    ],
)
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


def test_a_script_that_cannot_run_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "script").touch(0o644)
    machine = ThisMachine(tmp_path)
    with pytest.raises(ValueError, match=r"script cannot be executed; chmod \+x"):
        machine.find_script("script")
    with pytest.raises(ValueError, match="cannot be executed"):
        machine.find_script(".")
    with pytest.raises(ValueError, match="there is no script missing"):
        machine.find_script("missing")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("", "it does not begin with #!"),
        ("exit 0\n", "it does not begin with #!"),
        ("\ufeff#!/bin/sh\n", "it does not begin with #!"),
        ("#!\n", "there is no interpreter behind #!"),
        ("#! /no/such/shell -e\n", "there is no interpreter /no/such/shell"),
        ("#!/bin\n", "there is no interpreter /bin"),
        ("#!/bin/sh\r\n", "its first line ends with a carriage return"),
        ("#!/usr/bin/env no-such-program\n", "there is no program no-such-program on the PATH"),
        ("\ufeff#\0!\0", "it does not begin with #!"),
    ],
)
def test_a_script_that_the_system_would_not_start_is_a_mistake(
    tmp_path: Path, head: str, said: str
) -> None:
    script = tmp_path / "script"
    script.write_text(head, newline="", encoding="utf-16" if "\0" in head else "utf-8")
    script.chmod(0o755)
    with pytest.raises(ValueError, match=f"script cannot be executed: {said}"):
        ThisMachine(tmp_path).find_script("script")


def test_a_program_that_is_no_script_is_found(tmp_path: Path) -> None:
    assert ThisMachine(tmp_path).find_script("/bin/true") == "/bin/true"
