"""The README's recording shows what the screen shows today: six public servers, and four keys.

It is made anew as the pictures are: with ``MCP_TOOL_FILTER_PICTURES=1`` (``tests/pictures.py``).
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.test_look import Terminal
from tests.cli.launched import ADDON
from tests.end_to_end.peer import INSTALLED, need
from tests.pictures import IS_MADE, PICTURES
from tests.programs import need_program
from tests.proxy import REPOSITORY
from tests.recording_of_the_screen import (
    COLUMNS,
    Frame,
    read_frames,
    render_svg,
    wrapped,
    write_frames,
)

TEXT, PICTURE = PICTURES / "screen.txt", PICTURES / "screen.svg"
COMMANDS = {
    "notion": ["notion-mcp-server"], "playwright": ["playwright-mcp", "--headless"],
    "github": ["mcp-server-github"], "filesystem": ["mcp-server-filesystem", "."],
    "memory": ["mcp-server-memory"], "thinking": ["mcp-server-sequential-thinking"],
}  # fmt: skip


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A shell in an empty home folder that has one client's file."""
    need("shown")
    need_program("tmux")
    (file := tmp_path / ".cursor" / "mcp.json").parent.mkdir()
    entries = {name: {"command": words[0], "args": words[1:]} for name, words in COMMANDS.items()}
    file.write_text(json.dumps({"mcpServers": entries}, indent=2))
    bin = INSTALLED / "shown" / "node_modules" / ".bin"
    ours = f'mcp-tool-filter() {{ {shlex.quote(sys.executable)} -m mcp_tool_filter "$@"; }}'
    (tmp_path / "begin").write_text(
        f"export HOME={tmp_path} PATH={bin}:$PATH PYTHONPATH={ADDON} NOTION_TOKEN=x\n"
        f"unset XDG_CONFIG_HOME XDG_STATE_HOME XDG_RUNTIME_DIR\ncd; PS1='$ '\n{ours}\nclear\n"
    )
    found = Terminal(tmp_path / "tmux")
    begin = f"bash --noprofile --rcfile {tmp_path}/begin"
    found.run("new-session", "-d", "-x", str(COLUMNS), "-y", "60", begin)
    yield found
    found.run("kill-server")


@pytest.mark.rest
def test_the_recording_shows_the_screen(terminal: Terminal, tmp_path: Path) -> None:
    seen = frames(terminal, tmp_path)
    if IS_MADE:
        TEXT.write_text(write_frames(seen), "utf-8")
        PICTURE.write_text(render_svg(seen), "utf-8")
    assert write_frames(seen) == TEXT.read_text("utf-8")


def frames(terminal: Terminal, home: Path) -> list[Frame]:
    """Do what a new user does, and note what the terminal shows after each step."""

    def see(text: str, seconds: float, end: str = "") -> Frame:
        terminal.wait(lambda screen: text in screen and screen.rstrip().endswith(end))
        return Frame(seconds, wrapped(neutral(terminal.run("capture-pane", "-p", "-J"), home)))

    terminal.wait(lambda screen: screen.startswith("$"))
    terminal.press("-l", "mcp-tool-filter")
    typed = see("$ mcp-tool-filter", 0.8)
    terminal.press("Enter")
    first = see("[r] read-only: 33 tools", 4.5)
    terminal.press("r")
    asked = see("One entry for [e]ach server", 1.2)
    terminal.press("e", "Enter")
    changes = see("Make this change?", 2.5)
    terminal.press("y", "Enter")
    saved = see("Restart cursor", 2.0, end="\n$")
    terminal.press("-l", "clear; mcp-tool-filter")
    terminal.press("Enter")
    after = see("33 tools, 14,829 tokens in every", 4.0)
    terminal.press("u")
    undo = see("Make this change?", 1.5)
    terminal.press("y", "Enter")
    undone = see("Saved ", 2.0, end="\n$")
    return [typed, first, asked, changes, saved, after, undo, undone]


def neutral(text: str, home: Path) -> str:
    """Name no folder of this machine, and no key that is made of one."""
    for path, name in ((home, "/home/ada"), (REPOSITORY, "/home/ada/mcp-tool-filter")):
        text = text.replace(str(path), name)
    return re.sub(r"\b[0-9a-f]{16}-mcp\.json", "0123456789abcdef-mcp.json", text)


def test_the_picture_is_drawn_of_its_text() -> None:
    found = read_frames(TEXT.read_text("utf-8"))
    assert render_svg(found) == PICTURE.read_text("utf-8")
    assert PICTURE.stat().st_size < 1_000_000


def test_the_readme_has_the_figures_of_the_recording() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    text = TEXT.read_text("utf-8")
    [(tools, tokens)] = set(re.findall(r"6 servers, (9\d tools), ([\d,]+ tokens) in every", text))
    [(reading, less)] = set(re.findall(r"read-only: (\d+ tools), ([\d,]+ tokens)", text))
    for figure in (tools, tokens, reading, less):
        assert figure in readme
