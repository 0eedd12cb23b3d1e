"""What a shell offers after Tab."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.launched import run


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["--de"], ["--deny"]),
        (["do"], ["doctor"]),
        (["config", "c"], ["claude-code", "claude-desktop", "cursor", "codex"]),
        (["--tools-list", ""], ["auto", "cache", "upstream"]),
        (["completion", "f"], ["fish"]),
        (["--deny", "a"], []),
    ],
)
def test_bash(words: list[str], offered: list[str], tmp_path: Path) -> None:
    script = run("completion", "bash", home=tmp_path).stdout
    line = ["mcp-tool-filter", *words]
    quoted = " ".join(f"'{word}'" for word in line)
    ask = (
        f"{script}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words)}; _mcp_tool_filter;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_knows_the_flags(shell: str, tmp_path: Path) -> None:
    ended = run("completion", shell, home=tmp_path)
    assert ended.returncode == 0
    assert "upstream" in ended.stdout
    assert "doctor" in ended.stdout


@pytest.mark.parametrize(
    ("words", "part"), [([], "Which shell?"), (["fsh"], "completion for fsh: did you mean fish?")]
)
def test_another_shell_is_refused(words: list[str], part: str, tmp_path: Path) -> None:
    ended = run("completion", *words, home=tmp_path)
    assert ended.returncode == 2
    assert part in ended.stderr
