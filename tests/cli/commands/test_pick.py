"""``pick``: a script names the tools, a person picks them in a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import need_program

ADDON = Path(__file__).parents[3] / "addon"
SERVER = """\
import json, sys
TOOLS = ["read_file", "write_file", "delete_file", "delete_user"]
for line in sys.stdin:
    said = json.loads(line)
    if "id" not in said:
        continue
    result = {}
    if said["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    if said["method"] == "tools/list":
        schema = {"type": "object"}
        result = {"tools": [{"name": n, "description": f"Tool {n}", "inputSchema": schema}
                            for n in TOOLS]}
    answer = {"jsonrpc": "2.0", "id": said["id"]}
    if said["method"] == "server/discover":
        answer["error"] = {"code": -32601, "message": "Method not found"}
    else:
        answer["result"] = result
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return [sys.executable, str(file)]


def picked(*words: str) -> subprocess.CompletedProcess[str]:
    """Run pick as a script does."""
    command = [sys.executable, "-m", "mcp_tool_filter", "pick", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ADDON)},
    )


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["--names", "delete_user,delete_file"], "'^delete_'"),
        (["--names=write_file"], "'^write_file$'"),
        (["--names", "write_file", "--names", "delete_user"], "'^(?:write_file|delete_user)$'"),
    ],
)
def test_a_script_gets_the_pattern_of_the_tools_it_names(
    names: list[str], pattern: str, server: list[str]
) -> None:
    done = picked(*names, "--", *server)
    assert done.stdout == f"--deny {pattern}\n"
    assert done.returncode == 0


def test_an_unknown_tool_name_is_a_mistake(server: list[str]) -> None:
    done = picked("--names", "delete_fil", "--", *server)
    assert "did you mean delete_file?" in done.stderr
    assert done.returncode == 2


def test_pick_without_a_terminal_says_how_to_name_tools(server: list[str]) -> None:
    done = picked("--", *server)
    assert "--names a,b" in done.stderr
    assert done.returncode == 2


class Terminal:
    """A terminal of tmux."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-S", str(socket)]

    def run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p", "-t", "0")

    def press(self, *keys: str) -> None:
        self.run("send-keys", "-t", "0", *keys)

    def wait(self, is_there: Callable[[str], bool]) -> str:
        end = time.monotonic() + 30
        while not is_there(screen := self.screen()):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    need_program("tmux")
    found = Terminal(tmp_path / "tmux")
    found.run("new-session", "-d", "-x", "100", "-y", "20", "sh")
    yield found
    found.run("kill-server")


def _command(server: list[str]) -> str:
    return f"PYTHONPATH={ADDON} {sys.executable} -m mcp_tool_filter pick -- {' '.join(server)}"


def test_a_person_picks_with_the_keyboard(
    server: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    result = tmp_path / "result"
    terminal.press(f"{_command(server)} > {result}", "Enter")
    terminal.wait(lambda screen: "4 of 4 tools remain" in screen)
    terminal.press("/")
    terminal.wait(lambda screen: "Search:" in screen)
    terminal.press("-l", "delete")
    terminal.wait(lambda screen: "write_file" not in screen.partition("Choose")[2])
    terminal.press("Enter")
    terminal.press("a")
    terminal.wait(lambda screen: "2 of 4 tools remain" in screen)
    terminal.press("Space")
    screen = terminal.wait(lambda screen: "3 of 4 tools remain" in screen)
    assert "[    ] delete_file" in screen  # the first that was found
    assert "[hide] delete_user" in screen
    terminal.press("Enter")
    terminal.wait(lambda screen: "1 tool hidden, 3 left" in screen)
    assert result.read_text() == "--deny '^delete_user$'\n"


def test_quitting_prints_no_pattern(server: list[str], terminal: Terminal, tmp_path: Path) -> None:
    result = tmp_path / "result"
    terminal.press(f"{_command(server)} > {result}; echo status $?", "Enter")
    terminal.wait(lambda screen: "4 of 4 tools remain" in screen)
    terminal.press("Space", "q")
    terminal.wait(lambda screen: "status 1" in screen)
    assert result.read_text() == ""


def test_an_interrupt_restores_the_terminal(
    server: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    """Also after a change of the window's size."""
    terminal.run("resize-window", "-t", "0", "-x", "24", "-y", "6")
    before, after = tmp_path / "before", tmp_path / "after"
    line = f"stty -a > {before}; {_command(server)}; echo status $?; stty -a > {after}; echo done"
    terminal.press(line, "Enter")
    terminal.wait(lambda screen: "read_file" in screen)
    terminal.run("resize-window", "-t", "0", "-x", "100", "-y", "20")
    terminal.wait(lambda screen: "4 of 4 tools remain" in screen)
    terminal.press("C-c")
    screen = terminal.wait(lambda screen: "\ndone" in screen)
    assert "status 130" in screen
    modes = [file.read_text().partition("intr")[2] for file in (before, after)]
    assert modes[0] == modes[1] != ""


@pytest.mark.parametrize("more", [{"env": {"KEY": "k"}}, {"env": {}}, {}])
def test_picked_patterns_are_written_to_the_clients_file(
    more: dict[str, object], server: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    folder = tmp_path / ".gemini"
    folder.mkdir()
    entry = {"command": server[0], "args": server[1:], **more}
    (folder / "settings.json").write_text(json.dumps({"mcpServers": {"files": entry}}))
    words = f"HOME={tmp_path} PYTHONPATH={ADDON} {sys.executable} -m mcp_tool_filter wrap gemini"
    terminal.press(f"cd {tmp_path}; clear; {words} files --pick --yes", "Enter")
    terminal.wait(lambda screen: "4 of 4 tools remain" in screen)
    terminal.press("Down", "Space", "Enter")
    terminal.wait(lambda screen: "Undo: mcp-tool-filter unwrap" in screen)
    written = json.loads((folder / "settings.json").read_text())["mcpServers"]["files"]
    assert written["args"] == ["--deny", "^write_file$", "--", *server]
    assert {key: value for key, value in written.items() if key == "env"} == more
