"""``wrap --lock``, ``doctor`` and ``status``: a lock that is broken, and tools that wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.changing_server import write_tools
from tests.cli.commands.test_lock import EVIL, MAIL, READ, Locked
from tests.cli.launched import run

NEW = '{"name":"new","inputSchema":{"type":"object"}}'


@pytest.fixture
def it(tmp_path: Path) -> Locked:
    """A lock of two tools; of these, the server has one, changed, and a new one."""
    it = Locked(tmp_path)
    it.serve(READ, MAIL, instructions="Be good.")
    it.lock()
    it.serve(EVIL, NEW, instructions="Be bad.")
    return it


def command_of(it: Locked) -> list[str]:
    return write_tools(it.folder / "tools.json", EVIL, NEW, instructions="Be bad.")


def test_doctor_says_what_waits_for_approval(it: Locked) -> None:
    flags = ["doctor", "--json", "--lock", str(it.file), "--", *command_of(it)]
    said = json.loads(run(*flags, home=it.folder).stdout)
    failed = [one["text"] for one in said["checks"] if not one["ok"]]
    waits = "Waits for approval: the"
    assert failed == [
        f"{waits} tool read_file has changed since it was approved (--lock)",
        f"{waits} tool new is not approved (--lock)",
        f"{waits} server's instructions are not the approved ones (--lock)",
        "The lock has tools that are not there: send_email",
        "No tool is exposed",
    ]
    assert "The lock approves 2 tools" in [one["text"] for one in said["checks"]]
    it.file.write_text("{")
    said = json.loads(run(*flags, home=it.folder).stdout)
    assert [one["text"] for one in said["checks"] if not one["ok"]] == [
        f"The lock is broken: {it.file}"
    ]


def status(it: Locked, *words: str) -> Any:
    return run("status", *words, "--config", str(it.folder / "c.toml"), home=it.folder)


def test_status_counts_what_waits_and_names_a_broken_lock(it: Locked) -> None:
    (it.folder / "broken.lock").write_text("{")
    locks = {"one": "tools.lock", "two": "broken.lock", "three": "none.lock"}
    command = json.dumps(command_of(it))
    tables = [
        f"[servers.{name}]\ncommand = {command}\nlock = '{lock}'\n" for name, lock in locks.items()
    ]
    (it.folder / "c.toml").write_text("".join(tables))
    rows = {row["name"]: row for row in json.loads(status(it, "--json").stdout)}
    one = rows["one"]
    assert (one["lock"], one["waiting"], one["hidden"]) == (str(it.file), 2, 2)
    for name, what in (("two", "The lock is broken"), ("three", "Cannot read the lock")):
        assert rows[name]["reachable"] is False
        assert what in rows[name]["problem"]
        assert rows[name]["waiting"] == 0
    ended = status(it)
    assert ended.returncode == 1
    assert "2 waiting" in ended.stdout
    assert "one: 2 tools wait for approval" in ended.stderr
    assert ": The lock is broken: " in ended.stderr.partition("two: not reached: ")[2]


def test_wrap_writes_a_lock_that_is_found_from_any_folder(it: Locked) -> None:
    file = it.folder / ".cursor" / "mcp.json"
    file.parent.mkdir()
    words = command_of(it)
    entry = {"command": words[0], "args": words[1:]}
    file.write_text(json.dumps({"mcpServers": {"srv": entry}}))
    wrap = ["wrap", "cursor", "srv", "--yes", "--lock"]
    missing = run(*wrap, str(it.folder / "none.lock"), home=it.folder)
    assert missing.returncode == 1
    assert "Cannot read the lock" in missing.stderr
    assert json.loads(file.read_text())["mcpServers"]["srv"] == entry
    assert run(*wrap, str(it.file), home=it.folder).returncode == 0
    args = json.loads(file.read_text())["mcpServers"]["srv"]["args"]
    assert args[args.index("--lock") + 1] == str(it.file)
