"""The manual page has what the help has, and man can show it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.settings.commands import COMMANDS
from mcp_tool_filter.cli.settings.flags import FLAGS
from mcp_tool_filter.cli.settings.manual import render_manual
from tests.programs import need_program


def shown(page: str) -> str:
    """Return what man shows of a page, without its breaks of lines."""
    need_program("man")
    command = ["man", "--no-hyphenation", "--no-justification", "-E", "UTF-8", "--warnings=w"]
    ended = subprocess.run(
        [*command, "-l", "-"], input=page, capture_output=True, encoding="utf-8", check=True,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "1000", "MAN_KEEP_FORMATTING": ""},
    )  # fmt: skip
    assert ended.stderr == ""
    return re.sub(r".\x08", "", ended.stdout)


def test_the_manual_describes_each_command_and_flag() -> None:
    page = shown(render_manual())
    for command in COMMANDS.values():
        assert f"   {command.name}\n" in page
        for part in command.about.split("\n"):
            assert " ".join(part.split()) in " ".join(page.split())
    own = {flag for command in COMMANDS.values() for flag in command.flags}
    for flag in {*FLAGS.values(), *own}:
        assert re.search(rf"--{flag.name}{f' {flag.value}' if flag.value else ''}\s+\S", page)
        assert flag.help in page


def test_a_line_that_begins_with_a_dot_is_text() -> None:
    """roff would take it for a macro, and leave it out."""
    page = render_manual()
    assert all(
        re.match(r"\.(?:TH|SH|SS|TP|PP|nf|fi)\b", one) for one in re.findall(r"(?m)^\..*", page)
    )
    assert page.isascii()


def test_the_manual_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    assert capsys.readouterr().out == render_manual()


def test_the_manual_is_installed_where_man_looks() -> None:
    page = Path(sys.prefix) / "share" / "man" / "man1" / "mcp-tool-filter.1"
    assert page.read_text("utf-8").startswith(".TH MCP-TOOL-FILTER 1 ")
