"""Asking a command for its tools: ``--list-tools``, ``--dry-run`` and ``doctor`` in front of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.launched import run
from tests.stdio_client import upstream

DENY = ("--deny", "^delete_")


@pytest.mark.rest(but=2)
@pytest.mark.parametrize("flags", [(), ("--strict",), ("--modern",), ("--page", "1"), ("--crlf",)])
def test_the_tools_of_a_command_are_listed(flags: tuple[str, ...], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = upstream(*flags, journal=journal)
    found = run("--list-tools", "--format", "json", *DENY, "--", *command, home=tmp_path)
    assert found.returncode == 0, found.stderr
    known = json.loads(found.stdout)
    exposed = {tool["name"]: tool["exposed"] for tool in known["tools"]}
    assert exposed == {"read_file": True, "write_file": True, "delete_file": False}
    assert known["transport"] == "stdio"
    first = json.loads(journal.read_bytes().split(b"\n")[0])
    assert first["method"] == "initialize"


def test_the_doctor_looks_at_a_command(tmp_path: Path) -> None:
    found = run("doctor", *DENY, "--", *upstream(), home=tmp_path)
    assert found.returncode == 0, found.stdout
    assert "3 tools: 2 exposed, 1 denied" in found.stdout


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("no-such-command",), "Command not found: no-such-command"),
        (("sh", "-c", "exit 4"), "The command exited with code 4"),
    ],
)
def test_the_doctor_says_why_a_command_does_not_work(
    words: tuple[str, ...], part: str, tmp_path: Path
) -> None:
    found = run("doctor", *DENY, "--", *words, home=tmp_path)
    assert found.returncode == 1
    assert part in found.stdout


def test_waiting_for_a_silent_command_ends(tmp_path: Path) -> None:
    words = ("--dry-run", "--connection-timeout", "300", *DENY, "--", "sleep", "60")
    found = run(*words, home=tmp_path)
    assert found.returncode == 1
    assert found.stderr == (
        "Error: Failed to connect to upstream MCP at sleep 60\nConnection timeout after 300ms\n"
    )


def test_text_between_a_commands_messages_is_shown(tmp_path: Path) -> None:
    """It may say why no tools come."""
    words = ("sh", "-c", "echo Listening on port 8000; echo '{}'; exit 1")
    found = run("--list-tools", "--", *words, home=tmp_path)
    shown, invalid, *_ = found.stderr.splitlines()
    assert shown == "[not JSON, from the command] Listening on port 8000"
    assert invalid.startswith("Warning: The command sent an invalid message: ")


def test_waiting_ends_when_a_command_closes_its_output(tmp_path: Path) -> None:
    words = ("sh", "-c", "exec >&-; read line; read line; sleep 600")
    found = run("--list-tools", "--connection-timeout", "600000", "--", *words, home=tmp_path)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "The command has closed its output"


def test_the_doctor_asks_whether_a_silent_command_speaks_mcp(tmp_path: Path) -> None:
    words = ("doctor", "--connection-timeout", "300", "--", "sleep", "60")
    found = run(*words, home=tmp_path)
    assert "Does it speak MCP over stdio" in found.stdout
    assert "firewall" not in found.stdout
