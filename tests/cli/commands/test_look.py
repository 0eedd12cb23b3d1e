"""What would be hidden, and why; and ``pick``, by a script and by a person in a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import urwid

from mcp_tool_filter.cli.commands.look import Tool
from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.cli.picker import Picker, Row
from mcp_tool_filter.rooms.clients import entries
from tests.cli.launched import ADDON, Typed, ended, launched
from tests.mcp_upstream import mcp_upstream, tool
from tests.programs import need_program
from tests.raw_upstream import TIMEOUT, Peer, raw_upstream
from tests.stdio_client import upstream

TOOLS = [tool("read_file", ',"description":"Reads\\n a file"'), tool("rm_rf"), tool("a\x1b[31m")]


async def said(home: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr, before an upstream with three tools."""

    async with mcp_upstream(tools=TOOLS) as upstream:
        return await ended("-u", f"{upstream.url}/mcp?key=hunter2", *words, home=home)


async def test_a_table_outside_a_terminal_has_tabs_and_no_colour(tmp_path: Path) -> None:
    _, stdout, stderr = await said(tmp_path, "--list-tools", "-d", "^rm_,^nothing")
    assert stdout.splitlines() == [
        "TOOL\tSTATUS\tTOKENS\tDESCRIPTION",
        "read_file\texposed\t24\tReads",
        'rm_rf\tdenied by "^rm_"\t15\t',
        "a\\x1b[31m\texposed\t16\t",
    ]
    assert stderr.splitlines() == [
        "3 tools, 1 would be hidden: about 15 tokens per tools/list",
        'Warning: the pattern "^nothing" matches no tool',
    ]


async def test_json_has_a_stable_form(tmp_path: Path) -> None:
    policy = ("-d", "^rm_,^nothing", "--allow", "_")
    _, stdout, stderr = await said(tmp_path, "--list-tools", "--json", *policy)
    document = json.loads(stdout)
    assert document.pop("upstream").endswith("/mcp?key=…")
    assert document == {
        "server": "raw 1",
        "transport": "Streamable HTTP",
        "revision": "2025-06-18",
        "tools": [
            {
                "name": json.loads(raw)["name"],
                "exposed": why == "exposed",
                "why": why,
                "pattern": pattern,
                "bytes": len(raw),
            }
            for raw, why, pattern in zip(
                TOOLS, ("exposed", "denied", "not allowed"), (None, "^rm_", None), strict=True
            )
        ],
        "savedBytes": len(TOOLS[1]) + len(TOOLS[2]),
        "unmatchedPatterns": ["^nothing"],
        "faults": [],
    }
    assert stderr == ""


OF_CATALOG = (
    "--deny-prompts", "^secret,^gone", "--deny-resources", "^file:///etc/,^nix", "--deny-skills",
    "^hide$,^no$",
)  # fmt: skip


async def ask_command(home: Path, *words: str) -> tuple[int, str, str]:
    """The same, before a command with prompts, resources and skills."""
    return await ended(*words, "--port", "0", *OF_CATALOG, "--", *upstream(), home=home)


async def test_prompts_resources_and_skills_are_shown_with_the_tools(tmp_path: Path) -> None:
    status, stdout, stderr = await ask_command(tmp_path, "--list-tools")
    assert status == 0
    assert stdout.partition("\n\n")[2].splitlines() == [
        "KIND\tNAME\tSTATUS",
        'prompt\tsecret\tdenied by "^secret"',
        "prompt\tgreet\texposed",
        'resource\tfile:///etc/a\tdenied by "^file:///etc/"',
        "resource\tfile:///b\texposed",
        'resource\tfile:///etc/{a}\tdenied by "^file:///etc/"',
        "resource\tfile:///{a}\texposed",
        'skill\tskill://hide/SKILL.md\tdenied by "^hide$"',
        "skill\tskill://a/SKILL.md\texposed",
    ]
    # "^nix" may match an expansion of a template
    unmatched = {"^gone": "prompt", "^no$": "skill"}
    warnings = [f'Warning: the pattern "{one}" matches no {of}' for one, of in unmatched.items()]
    assert stderr.splitlines()[1:] == [
        "Prompts: 2, of which 1 denied, 1 exposed",
        "Resources: 4, of which 2 denied, 2 exposed",
        "Skills: 2, of which 1 denied, 1 exposed",
        *warnings,
    ]
    _, stdout, _ = await ask_command(tmp_path, "--list-tools", "--json")
    document = json.loads(stdout)
    assert document["unmatchedPatterns"] == ["^gone", "^no$"]
    assert document["things"][:2] == [
        {"kind": "prompt", "name": "secret", "exposed": False, "pattern": "^secret"},
        {"kind": "prompt", "name": "greet", "exposed": True, "pattern": None},
    ]
    _, stdout, stderr = await ask_command(tmp_path, "--dry-run")
    assert '  Prompts: 2, of which 1 denied, 1 exposed\n    "^secret": secret\n' in stdout
    assert [line in stdout + stderr for line in warnings] == [True, True]
    _, stdout, stderr = await ask_command(tmp_path, "--dry-run", "--shadow")
    assert "  Skills: 2, all exposed; 1 would be denied\n" in stdout
    _, _, of_list = await ask_command(tmp_path, "--list-tools", "--shadow")
    assert ["Warning: nothing is enforced" in one for one in (stderr, of_list)] == [True, True]


async def test_strict_wants_every_pattern_to_match_something(tmp_path: Path) -> None:
    status, _, stderr = await ask_command(tmp_path, "--list-tools", "--strict")
    what, why = stderr.splitlines()
    assert (status, what) == (1, 'Error: The pattern "^gone" matches no prompt')
    assert why == "With the option strict, every pattern must match a prompt"
    status, stdout, _ = await ask_command(tmp_path, "doctor")
    assert status == 1
    assert 'FAIL The pattern "^no$" matches no skill' in stdout
    assert "ok   Prompts: 2, of which 1 denied, 1 exposed" in stdout


async def test_a_dry_run_prints_the_start_report_and_ends(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--dry-run", "-d", "^rm_", "-p", "6273")
    assert status == 0
    assert stdout.splitlines()[0].startswith("MCP tool filter: http://127.0.0.1:6273/mcp?key=… ->")
    assert "Tools: 3, of which 1 denied, 2 exposed" in stdout
    assert (stderr, "hunter2" in stdout) == ("", False)


async def test_a_dry_run_reads_the_rules_as_a_start_does(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("interceptor: {rules: [{id: mine, actions: [{block: no}]}]}")
    _, stdout, _ = await said(tmp_path, "--dry-run", "--rules", str(rules))
    assert "  Rules: 1: mine\n" in stdout
    rules.write_text("interceptor: {rules: [{id: mine, actions: [{blok: no}]}]}")
    for words in (["--dry-run"], ["--dry-run", "--json"]):
        status, _, stderr = await said(tmp_path, *words, "--rules", str(rules))
        assert (status, "did you mean 'block'?" in stderr) == (1, True)


async def test_a_dry_run_can_be_read_by_programs(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--dry-run", "--json", "-p", "7000")
    document = json.loads(stdout)
    assert (status, stderr) == (0, "")
    assert document["listensAt"] == "http://127.0.0.1:7000/mcp?key=…"
    assert document["warnings"] == ["nothing is denied: there is no deny or allow pattern"]
    assert [each["name"] for each in document["tools"]] == ["read_file", "rm_rf", "a\x1b[31m"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
@pytest.mark.parametrize("words", [["--list-tools"], ["--dry-run", "--json"], ["doctor"]], ids=str)
async def test_an_interrupt_gives_no_output_and_the_usual_status(
    words: list[str], number: signal.Signals, status: int, tmp_path: Path
) -> None:
    """A script must not take what is not there for "no tools"."""

    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        reached.set()
        await peer.left()

    async with (
        raw_upstream(script) as upstream,
        launched(*words, "--upstream", upstream.url, "-d", "^a", home=tmp_path) as it,
    ):
        await reached.wait()
        it.interrupt(number)
        assert (await it.exit_code(), it.stderr) == (status, "")


READS, DELETES = {"readOnlyHint": True}, {"destructiveHint": True}
HINTS = {"read_file": READS, "delete_file": DELETES, "delete_user": DELETES}
NAMES = ("read_file", "write_file", "delete_file", "delete_user")


@pytest.fixture
def server() -> list[str]:
    return upstream("--tools", ",".join(NAMES), "--hints", json.dumps(HINTS))


@pytest.mark.parametrize(("names", "pattern"), [
    (["--names", "delete_user,delete_file"], "'^delete_'"),
    (["--names=write_file"], "'^write_file$'"),
    (["--names", "write_file", "--names", "delete_user"], "'^(?:write_file|delete_user)$'"),
])  # fmt: skip
def test_a_script_gets_the_pattern_of_the_tools_it_names(
    names: list[str], pattern: str, server: list[str], ran: Typed
) -> None:
    out, err = ran("pick", *names, "--", *server)
    assert (out, " hidden, " in err) == (f"--deny {pattern}\n", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--names", "delete_fil"], "did you mean delete_file?"), ([], "--names a,b")],
)
def test_pick_needs_names_of_tools_or_a_terminal(
    words: list[str], said: str, server: list[str], ran: Typed
) -> None:
    assert said in ran("pick", *words, "--", *server, status=2).err


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
        end = time.monotonic() + TIMEOUT
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
    return f"PYTHONPATH={ADDON} {sys.executable} -m mcp_tool_filter pick -- {shlex.join(server)}"


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


def picking(terminal: Terminal, home: Path, entry: Mapping[str, object]) -> Path:
    """Type ``wrap --pick`` for an entry of Gemini's file."""
    file = home / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"files": entry}}))
    words = f"HOME={home} PYTHONPATH={ADDON} {sys.executable} -m mcp_tool_filter wrap gemini"
    terminal.press(f"cd {home}; clear; {words} files --pick --yes", "Enter")
    return file


def test_a_wrapped_entry_comes_with_its_hidden_tools_marked(
    server: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    """A pattern stays as it was typed: it may be meant for later tools."""
    old = ["--deny", "^delete_", "--deny", "^write", "--message-limit", "1MB", "--", *server]
    file = picking(terminal, tmp_path, {"command": "mcp-tool-filter", "args": old})
    screen = terminal.wait(lambda screen: "1 of 4 tools remain" in screen)
    assert re.search(r"\[ {4}\] read_file +\d+ +read-only", screen)
    assert re.search(r"\[hide\] delete_file +\d+ +destructive", screen)
    terminal.press("Space", "Down", "Space", "Enter")
    terminal.wait(lambda screen: "Undo: mcp-tool-filter unwrap" in screen)
    written = json.loads(file.read_text())["mcpServers"]["files"]["args"]
    assert written == [
        "--deny", "^delete_", "--deny", "^write", "--deny", "^read_file$",
        "--except", "^write_file$", "--message-limit", "1MB", "--", *server,
    ]  # fmt: skip


def test_picked_patterns_are_written_to_the_clients_file(
    server: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    entry = {"command": server[0], "args": server[1:], "env": {"KEY": "k"}}
    file = picking(terminal, tmp_path, entry)
    terminal.wait(lambda screen: "4 of 4 tools remain" in screen)
    terminal.press("Down", "Space", "Enter")
    terminal.wait(lambda screen: "Undo: mcp-tool-filter unwrap" in screen)
    written = json.loads(file.read_text())["mcpServers"]["files"]
    assert written["args"] == ["--deny", "^write_file$", "--", *server]
    assert written["env"] == {"KEY": "k", ENTRY: entries.key_of(written)}


# The screen
SIZE = (100, 12)


def pressed(picker: Picker, *keys: str) -> str:
    """Return the screen after these keys; at the end, "left"."""
    for key in keys:
        try:
            if picker.widget.keypress(SIZE, key):
                picker.key(key)
        except urwid.ExitMainLoop:
            return "left"
    return "\n".join(line.decode() for line in picker.widget.render(SIZE, focus=True).text)


def test_escape_clears_the_search_and_quitting_loses_no_choice_without_asking() -> None:
    tools = [Tool(name, 100, "") for name in ("read_file", "write_file", "delete_file")]
    picker = Picker(tools)
    screen = pressed(picker)
    assert re.search(r"Choose the tools to hide +TOKENS +DESCRIPTION", screen)
    screen = pressed(picker, "/", *"del", "enter", " ")
    assert ["write_file" in screen, "2 of 3 tools remain" in screen] == [False, True]
    screen = pressed(picker, "esc")
    assert ["write_file" in screen, "2 of 3 tools remain" in screen] == [True, True]
    for key, after in (("esc", "Quit without"), ("n", "2 of 3"), ("q", "Quit without")):
        assert after in pressed(picker, key)
    assert (pressed(picker, "y"), picker.result) == ("left", None)
    assert (pressed(Picker(tools), "q"), pressed(Picker(tools), "esc")) == ("left", "left")


def test_all_listed_tools_are_hidden_or_shown_together() -> None:
    picker = Picker([Tool(name, 100, "") for name in ("a", "ab", "b")])
    assert "1 of 3 tools remain" in pressed(picker, "/", "a", "enter", "a")
    assert "3 of 3 tools remain" in pressed(picker, "a")
    assert "2 of 3 tools remain" in pressed(picker, "down", " ")
    assert (pressed(picker, "enter"), picker.result) == ("left", ["ab"])


def test_only_rows_on_the_screen_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have thousands of tools, and each letter of a search lists them anew."""
    made: list[str] = []
    tools = [Tool(f"tool_{number}", 100, "A tool") for number in range(10_000)]
    picker, draw = Picker(tools), Row.render

    def counted(row: Row, size: object, focus: bool = False) -> urwid.Canvas:
        made.append(row.tool.name)
        return draw(row, size, focus)

    monkeypatch.setattr(Row, "render", counted)
    for key in ("/", *"99", "enter", "a", "enter"):
        pressed(picker, key)
    assert 0 < len(made) < 200
    assert picker.result == [tool.name for tool in tools if "99" in tool.name]


def test_names_of_any_width_are_aligned() -> None:
    tools = [Tool(name, 100, "") for name in ("read", "日本語", "x" * 40)]
    lines = Picker(tools).widget.render((90, 6)).text
    ends = {len(line.decode().rstrip().encode("gbk", "replace")) for line in lines[1:4]}
    assert len(ends) == 1
