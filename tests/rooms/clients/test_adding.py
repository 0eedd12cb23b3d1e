"""A policy is added to, never silently replaced; all files change together."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launched import Typed, surroundings
from tests.stdio_client import UPSTREAM

FILES = ("read_file", "delete_file")
NOTES = ("read_note", "drop_note", "move_note")


def entry(tools: tuple[str, ...]) -> dict[str, Any]:
    return {"command": sys.executable, "args": [UPSTREAM, "--tools", ",".join(tools)]}


SERVERS = {"mcpServers": {"files": entry(FILES), "notes": entry(NOTES)}}
OTHERS = {"mcpServers": {"mine": entry(FILES)}}


@pytest.fixture
def cursor(home: Path) -> Path:
    return saved(home / ".cursor" / "mcp.json", SERVERS)


@pytest.fixture
def kiro(home: Path) -> Path:
    return saved(home / ".kiro" / "settings" / "mcp.json", OTHERS)


def saved(file: Path, servers: object) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(servers, indent=2))
    return file


def args_in(file: Path, name: str) -> list[str]:
    args: list[str] = json.loads(file.read_text())["mcpServers"][name]["args"]
    return args[: args.index("--")] if "--" in args else args


WRAP = ("wrap", "cursor", "files", "--yes")


def test_a_wrapped_server_keeps_its_flags_and_gets_more(cursor: Path, typed: Typed) -> None:
    rules = cursor.parent / "rules.yaml"
    rules.write_text("version: 1\nrules: []\n")
    log = ("--flag=--audit-log", "--flag=/tmp/log")
    typed(*WRAP, "--deny", "^delete_", "--flag=--rules", f"--flag={rules}", *log)
    typed(*WRAP, "--deny", "^move_", "--flag=--max-clients=7")
    kept = ["--deny", "^delete_", "--deny", "^move_", "--rules", str(rules)]
    assert args_in(cursor, "files") == [*kept, "--audit-log", "/tmp/log", "--max-clients", "7"]
    other = ("--flag=--rules", "--flag=/tmp/other.yaml")
    assert "--replace" in typed(*WRAP, "--deny", "x", *other, status=2).err
    assert str(rules) in args_in(cursor, "files")


@pytest.mark.parametrize("more", [("--except", "^delete_"), ("--shadow",)])
def test_what_shows_a_hidden_tool_needs_more_than_yes(
    more: tuple[str, ...], cursor: Path, typed: Typed
) -> None:
    typed(*WRAP, "--deny", "^delete_")
    before = cursor.read_text()
    refused = typed(*WRAP, *more, status=2)
    assert "files: delete_file" in refused.err
    assert "--replace" in refused.err
    assert cursor.read_text() == before
    typed(*WRAP, *more, "--replace")
    assert more[0] in args_in(cursor, "files")
    assert args_in(cursor, "files")[:2] == ["--deny", "^delete_"]


def test_a_wider_allow_list_shows_tools(cursor: Path, typed: Typed) -> None:
    typed(*WRAP, "--allow", "^read_")
    assert "files: delete_file" in typed(*WRAP, "--allow", "^delete_", status=2).err
    typed(*WRAP, "--deny", "^x")


def test_a_server_that_does_not_answer_shows_nothing_by_yes(cursor: Path, typed: Typed) -> None:
    typed(*WRAP, "--deny", "^delete_")
    cursor.write_text(cursor.read_text().replace(UPSTREAM, "/none/such"))
    assert "not known" in typed(*WRAP, "--except", "x", status=2).err
    typed(*WRAP, "--deny", "more")


def test_a_replaced_policy_is_the_one_that_is_typed(cursor: Path, typed: Typed) -> None:
    typed("wrap", "cursor", "--all", "--read-only", "--yes")
    typed("wrap", "cursor", "--all", "--deny", "^drop_", "--yes")
    assert args_in(cursor, "notes") == ["--read-only", "--deny", "^drop_"]
    typed("wrap", "cursor", "--all", "--deny", "^drop_", "--yes", "--replace")
    assert args_in(cursor, "notes") == ["--deny", "^drop_"]


def answered(home: Path, *words: str, answer: bytes) -> tuple[int, str]:
    """Type an answer in a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mcp_tool_filter", *words], stdin=theirs, stdout=theirs,
        stderr=theirs, env=surroundings(home), cwd=home,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, answer)
        said = bytearray()
        try:
            while some := os.read(ours, 65536):
                said += some
        except OSError:  # it has ended
            pass
    os.close(ours)
    return process.returncode, said.decode()


@pytest.mark.parametrize(("answer", "status"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_question_names_the_tools_that_would_be_shown(
    answer: bytes, status: int, home: Path, cursor: Path, typed: Typed
) -> None:
    typed(*WRAP, "--deny", "^delete_")
    words = ("wrap", "cursor", "files", "--except", "^delete_")
    ended, said = answered(home, *words, answer=answer)
    assert ended == status
    question = said.index("Make this change?")
    assert "hidden now: delete_file" in said[:question]
    assert ("--except" in args_in(cursor, "files")) is (status == 0)


def test_all_servers_are_one_diff_one_question_and_one_summary(
    home: Path, cursor: Path, typed: Typed
) -> None:
    before = cursor.read_text()
    said = answered(home, "wrap", "cursor", "--all", "--deny", "^d", answer=b"y\n")[1]
    assert said.count("Make this change?") == said.count("+++ with the change") == 1
    assert "2 servers: 5 tools, " in said
    assert "; with the filter 3 tools, " in said
    assert said.count("Undo: mcp-tool-filter unwrap cursor --all") == 1
    typed("unwrap", "--all", "--yes")
    assert cursor.read_text() == before


def test_a_policy_for_all_is_once_at_the_top_and_goes_with_the_last(
    home: Path, cursor: Path, kiro: Path, typed: Typed
) -> None:
    """The second client's server is the same as one of the first's: they share a section."""
    before, into = (cursor.read_text(), kiro.read_text()), home / "servers.toml"
    typed("wrap", "cursor", "--all", "--into", into, "--deny", "^d", "--yes")
    typed("wrap", "kiro", "--all", "--into", into, "--deny", "^d", "--yes")
    said = tomllib.loads(into.read_text())
    assert said["deny"] == ["^d"]
    assert {name: set(one) for name, one in said["servers"].items()} == {
        "files": {"command"}, "notes": {"command"},
    }  # fmt: skip
    assert args_in(kiro, "mcp-tool-filter")[:2] == ["serve", "--stdio"]
    typed("unwrap", "cursor", "--all", "--yes")
    assert tomllib.loads(into.read_text()).keys() == {"deny", "servers"}
    assert list(tomllib.loads(into.read_text())["servers"]) == ["files"]
    typed("unwrap", "--all", "--yes")
    assert (cursor.read_text(), kiro.read_text()) == before
    assert not into.exists()


def test_the_same_server_of_two_clients_is_one_section(
    home: Path, cursor: Path, kiro: Path, typed: Typed
) -> None:
    """What the second one adds counts for both, and each can be undone alone."""
    before, into = (cursor.read_text(), kiro.read_text()), home / "servers.toml"
    typed("wrap", "cursor", "files", "--into", into, "--deny", "^d", "--yes")
    typed("wrap", "kiro", "mine", "--into", into, "--deny", "^x", "--yes")
    assert args_in(kiro, "mine")[:2] == args_in(cursor, "files")[:2] == ["--server", "files"]
    [section] = tomllib.loads(into.read_text())["servers"].values()
    assert section["deny"] == ["^d", "^x"]
    typed("unwrap", "cursor", "files", "--yes")
    assert cursor.read_text() == before[0]
    assert args_in(kiro, "mine")[:2] == ["--server", "files"]
    typed("unwrap", "kiro", "mine", "--yes")
    assert (kiro.read_text(), into.exists()) == (before[1], False)


def test_what_a_person_wrote_for_other_servers_stays_as_it_is(
    home: Path, cursor: Path, typed: Typed
) -> None:
    into = home / "servers.toml"
    into.write_text(mine := '# mine\ndeny = ["^x"]\n\n[servers.z]\nurl = "http://localhost:1/"\n')
    typed("wrap", "cursor", "--all", "--into", into, "--deny", "^d", "--read-only", "--yes")
    said = tomllib.loads(into.read_text())
    assert (said["deny"], "read-only" in said) == (["^x"], False)
    assert said["servers"]["notes"]["deny"] == ["^d"]
    typed("unwrap", "--all", "--yes")
    assert into.read_text() == mine
    assert "Nothing to do" in typed("unwrap", "--all", "--yes").err


def test_a_policy_is_added_to_the_servers_behind_one_entry(cursor: Path, typed: Typed) -> None:
    into = cursor.parent / "servers.toml"
    before = cursor.read_text()
    words = ("wrap", "cursor", "--all", "--into", into, "--yes")
    typed(*words, "--shadow", "--deny", "^none")
    made = cursor.read_text()
    said = typed(*words, "--deny", "^delete_")
    assert "1 hidden" in said.err
    table = tomllib.loads(into.read_text())
    assert table["deny"] == ["^none", "^delete_"]
    assert all("shadow" not in one for one in table["servers"].values())
    assert cursor.read_text() == made
    assert "Nothing to do" in typed(*words, "--deny", "^delete_").err
    refused = typed(*words, "--except", "^delete_", status=2).err
    assert "--replace" in refused
    assert tomllib.loads(into.read_text()) == table
    typed("unwrap", "--all", "--yes")
    assert (cursor.read_text(), into.exists()) == (before, False)
