"""What a shell offers after Tab."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_tool_filter.cli.table import COMMANDS, FILTER
from tests.cli.launched import Typed
from tests.raw_upstream import TIMEOUT

ASKED = [
    (["--deny-g"], ["--deny-glob"]), (["doc"], ["doctor"]),
    (["config", "c"], ["claude-code", "claude-desktop", "cline", "codex", "copilot", "cursor"]),
    (["--new-tools", ""], ["hide", "judge"]), (["completion", "f"], ["fish"]),
    (["wrap", "--sc"], ["--scope"]), (["wrap", "--scope", ""], ["all", "local", "project", "user"]),
    (["doctor", "--sta"], []),  # a flag of the demo
    (["demo", "--sta"], ["--stay"]), (["rules", "ch"], ["check"]),
    (["wrap", "codex", ""], ["$(>pwned)", "files", "linear"]),
    (["unwrap", "codex", "li"], ["linear"]), (["--server", ""], ["$(>pwned)", "mine", "the.other"]),
    (["doctor", "--server", "t"], ["the.other"]),
    (["run", "--server", ""], []),  # there it is a URL
]  # fmt: skip


@pytest.fixture
def servers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with a client's file, where our command is on the PATH."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        '[mcp_servers.files]\ncommand = "x"\n[mcp_servers.linear]\ncommand = "y"\n'
        '[mcp_servers."$(>pwned)"]\ncommand = "z"\n'
    )
    config = home / ".config" / "mcp-tool-filter" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        '[servers.mine]\nurl="a"\n[servers.mine.env]\n[servers."the.other"]\n[servers."$(>pwned)"]'
    )
    program = home / "mcp-tool-filter"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcp_tool_filter "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.chdir(home)


@pytest.mark.usefixtures("servers")
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(("words", "offered"), [*ASKED, (["--deny", "a"], [])])
def test_completion_works_in_bash(
    words: list[str], offered: list[str], typed: Typed, tmp_path: Path
) -> None:
    script = typed("completion", "bash").out
    line = ["mcp-tool-filter", *words]
    quoted = " ".join(f"'{word}'" for word in line)
    ask = (
        f"{script}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words)}; _mcp_tool_filter;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert sorted(ended.stdout.replace("\\", "").split()) == offered
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("servers")
@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish here")
@pytest.mark.parametrize(("words", "offered"), ASKED)
def test_completion_works_in_fish(
    words: list[str], offered: list[str], typed: Typed, tmp_path: Path
) -> None:
    script = tmp_path / "completion.fish"
    script.write_text(typed("completion", "fish").out)
    ask = f'source {script}; complete -C"mcp-tool-filter {" ".join(words)}"'
    ended = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    found = [line.partition("\t") for line in ended.stdout.splitlines()]
    assert sorted(word for word, _, _ in found) == offered
    if words[-1].startswith("-"):
        assert all(said for _, _, said in found)


@pytest.mark.usefixtures("servers")
@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh here")
@pytest.mark.parametrize(("line", "shown"), [
    ("doc", r"mcp-tool-filter doctor"),
    ("lo", r"login +-- log in to an MCP server with your browser"),
    ("config claude", r"claude-code +claude-desktop"), ("wrap --sc", r"wrap --scope"),
    ("wrap codex ", r"\\\$\\\(\\>pwned\\\) +files +linear"),
    ("wrap --scope ", r"local +project +user"), ("demo --", r"--stay +-- keep both running"),
    ("--list", r"mcp-tool-filter --list-tools"),
    ("--server ", r"\\\$\\\(\\>pwned\\\) +mine +the\.other"),
])  # fmt: skip
def test_zsh_describes_what_it_offers(line: str, shown: str, typed: Typed, tmp_path: Path) -> None:
    script = tmp_path / "completion.zsh"
    script.write_text(typed("completion", "zsh").out)
    assert re.search(shown, typed_in_zsh(f"mcp-tool-filter {line}\t\t", shown, script))
    assert not (tmp_path / "pwned").exists()


def typed_in_zsh(keys: str, awaited: str, script: Path) -> str:
    """Type the keys into a zsh in a terminal; return what it then shows."""
    process, terminal = pty.fork()
    if not process:
        surroundings = {**os.environ, "TERM": "vt100", "COLUMNS": "150"}
        os.execvpe("zsh", ["zsh", "-f", "-i"], surroundings)
    try:
        start = f"unsetopt zle_bracketed_paste; PS1='> '; source {script}; echo rea''dy\n"
        os.write(terminal, start.encode())
        read_until(terminal, "ready")
        os.write(terminal, keys.encode())
        return read_until(terminal, awaited)
    finally:
        os.close(terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)


def read_until(terminal: int, awaited: str) -> str:
    """Return what a terminal shows, as soon as that has a match, or nothing more comes."""
    shown = b""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and select.select([terminal], [], [], 10)[0]:
        shown += os.read(terminal, 65536)
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", shown.decode(errors="replace"))
        if re.search(awaited, text):
            return text
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_knows_every_command_and_flag(
    shell: str, typed: Typed
) -> None:
    script = typed("completion", shell).out
    for command in (*COMMANDS.values(), FILTER):
        assert command.name in script
        for flag in command.all_flags:
            assert f"-l {flag.name} " in script or f"--{flag.name}" in script
