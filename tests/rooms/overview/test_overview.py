"""The screen of all servers, in a real terminal, with real servers."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launched import Typed, surroundings
from tests.stdio_client import UPSTREAM


def entry(*tools: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [UPSTREAM, "--tools", ",".join(tools)]}


FILES, NOTES = entry("read_file", "delete_file"), entry("a", "b", "c")
LOST = {"command": "/none/such"}


@pytest.fixture
def files(home: Path) -> list[Path]:
    """Two clients that have one server alike, under the same name."""
    found = [home / ".cursor" / "mcp.json", home / ".kiro" / "settings" / "mcp.json"]
    servers = [{"files": FILES, "notes": NOTES, "lost": LOST}, {"files": FILES}]
    for file, one in zip(found, servers, strict=True):
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"mcpServers": one}, indent=2))
    return found


class Person:
    """Somebody at a terminal."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal, self.process = terminal, process
        self.seen = ""

    def sees(self, text: str) -> str:
        """Wait for a text; return all that was shown since the last one."""
        while text not in self.seen:
            assert select.select([self._terminal], [], [], 20)[0], f"no {text!r} in {self.seen!r}"
            try:
                self.seen += os.read(self._terminal, 65536).decode()
            except OSError:
                raise AssertionError(f"no {text!r} in {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ends(self) -> int:
        with suppress(OSError):
            while os.read(self._terminal, 65536):
                pass
        return self.process.wait(20)


@contextmanager
def at_a_terminal(home: Path, *words: str) -> Iterator[Person]:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "mcp_tool_filter", *words], stdin=theirs, stdout=theirs,
        stderr=theirs, env=surroundings(home, {"TERM": "xterm"}), cwd=home,
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            yield Person(ours, process)
        finally:
            process.kill()
            os.close(ours)


HEAD = "Cursor, Kiro: 3 servers, 5 tools, "


def test_the_screen_is_there_before_the_servers_answer(home: Path, files: list[Path]) -> None:
    hangs = {"command": "sleep", "args": ["300"]}
    files[1].write_text(json.dumps({"mcpServers": {"files": FILES, "hangs": hangs}}))
    before = [file.read_text() for file in files]
    with at_a_terminal(home) as person:
        assert "0 tools" in person.sees("Asking 4 servers …")
        person.sees("Asking 1 server …")
        person.types("q")
        assert person.ends() == 0
    assert [file.read_text() for file in files] == before


@pytest.mark.parametrize("answer", ["", "o"])
def test_one_key_filters_all_and_another_one_undoes_it(
    answer: str, home: Path, files: list[Path]
) -> None:
    before = [file.read_text() for file in files]
    config = home / ".config" / "mcp-tool-filter" / "config.toml"
    with at_a_terminal(home) as person:
        shown = person.sees("[r] read-only")
        assert HEAD in shown
        assert "Command not found: /none/such" in shown
        person.types("r")
        person.sees("[E/o]")
        person.types(f"{answer}\n")
        person.sees("Make this change?")
        assert [file.read_text() for file in files] == before, "nothing changes before the answer"
        person.types("y\n")
        assert "Make this change?" not in person.sees("Undo: "), "one question for all files"
        assert person.ends() == 0
    said = tomllib.loads(config.read_text())
    assert said["read-only"] is True
    assert set(said["servers"]) == {"files", "notes", "lost"}
    assert all("read-only" not in one for one in said["servers"].values())
    with at_a_terminal(home) as person:
        assert "Cursor, Kiro: 3 servers, 0 tools" in person.sees("[u] undo")
        person.types("u")
        person.sees("Make this change?")
        person.types("y\n")
        assert person.ends() == 0
    assert [file.read_text() for file in files] == before
    assert not config.exists(), "it was not there before"


def test_only_watching_enforces_nothing(home: Path, files: list[Path], ran: Typed) -> None:
    with at_a_terminal(home) as person:
        person.sees("[r] read-only")
        person.types("w")
        person.sees("[E/o]")
        person.types("\n")
        person.sees("Make this change?")
        person.types("y\n")
        assert person.ends() == 0
    out, err = ran()
    assert err == ""
    assert HEAD in out
    assert out.count("only watched") == 3


def test_without_a_terminal_it_is_printed_once(home: Path, files: list[Path], ran: Typed) -> None:
    out, err = ran()
    assert (err, "\x1b" in out) == ("", False)
    assert out.startswith(HEAD)
    assert re.search(r"\n  notes +3 tools +\d+ tokens   says nothing about its tools\n", out)
    rows = {one["name"]: one for one in json.loads(ran("--json").out)}
    assert rows["files"]["clients"] == ["cursor", "kiro"]
    assert (rows["files"]["tools"], rows["files"]["tokens"]) == (2, 28)
    assert (rows["lost"]["reachable"], rows["lost"]["tools"]) == (False, None)


def test_without_any_servers_it_offers_the_demo(home: Path, ran: Typed) -> None:
    out, err = ran()
    assert out.startswith("No MCP servers found in any client's file.")
    assert ("mcp-tool-filter demo" in out, err) == (True, "")
    assert json.loads(ran("--json").out) == []


def test_wrap_counts_tokens_as_the_screen_does(files: list[Path], ran: Typed) -> None:
    names = ["a" * length for length in range(1, 9)]  # of each size, divided by four
    files[0].write_text(json.dumps({"mcpServers": {"one": entry(*names)}}))
    files[1].unlink()
    counted = re.compile(r"8 tools, ([\d,]+) tokens in every conversation")
    screen = counted.search(ran().out)
    wrapped = counted.search(ran("wrap", "cursor", "--all", "--deny", "^aa$", "--yes").err)
    assert screen is not None
    assert wrapped is not None
    assert screen[1] == wrapped[1]
