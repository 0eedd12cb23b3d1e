"""Every command is declared once, and help, completion and dispatch follow."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mcp_tool_filter.cli.flags import WORDS, UsageError, parse_flags
from mcp_tool_filter.cli.help import (
    render_command_help,
    render_first_steps,
    render_help,
    render_manual,
)
from mcp_tool_filter.cli.options import OPTIONS
from mcp_tool_filter.cli.settings import gather, settle
from mcp_tool_filter.cli.table import COMMANDS, TOPICS, Command
from tests.cli.launched import ADDON, Typed, surroundings
from tests.programs import need_program
from tests.rows import each_row
from tests.shown import DOCS, shown_commands

ALL = list(COMMANDS.values())


@pytest.mark.parametrize("command", ALL, ids=[command.name for command in ALL])
def test_each_command_has_help_flags_and_a_function(command: Command, typed: Typed) -> None:
    page = render_command_help(command)
    assert page.startswith(f"usage: mcp-tool-filter {command.name}")
    assert max(map(len, page.splitlines())) <= 80
    assert typed(command.name, "--help").out == page
    assert f"\n  {command.name:<15}{command.summary}\n" in render_help()
    module, _, function = command.function.rpartition(".")
    assert callable(getattr(import_module(f"mcp_tool_filter.{module}"), function))
    for flag in command.all_flags:
        words = [f"--{flag.name}", "1"] if flag.value else [f"--{flag.name}"]
        assert command.parse(words) == {flag.name: ["1" if flag.value else "true"]}
        is_own = flag in (*command.flags, command.all_flags[-1])
        assert not is_own or f"--{flag.name} {flag.value}".rstrip() in page
    letters = [flag.short for flag in command.all_flags if flag.short]
    assert len(letters) == len(set(letters))
    with pytest.raises(UsageError) as raised:
        command.parse(["--zzz"])
    help = f"mcp-tool-filter {command.name} --help"
    assert str(raised.value) == f"Error: There is no flag --zzz\nSee {help}"


def test_the_filters_help_fits_a_terminal() -> None:
    assert max(map(len, (render_help() + render_first_steps()).splitlines())) <= 80


def test_arguments_may_stand_before_and_after_flags() -> None:
    found = COMMANDS["wrap"].parse(["cursor", "--deny", "^a", "files", "--yes"])
    assert found == {WORDS: ["cursor", "files"], "deny": ["^a"], "yes": ["true"]}


def test_after_two_dashes_an_argument_may_begin_with_a_dash() -> None:
    assert COMMANDS["check-pattern"].parse(["--", "-x", "^a"]) == {WORDS: ["-x", "^a"]}


# One wrong word gets one helpful line
def test_a_pattern_that_begins_with_a_dash_can_be_given() -> None:
    assert parse_flags(["--deny=-x$"]) == {"deny": ["-x$"]}


def test_flags_that_can_be_repeated_keep_their_order() -> None:
    assert parse_flags(["-d", "^b", "--deny", "^a"]) == {"deny": ["^b", "^a"]}
    headers = ["-H", "X-B: 1", "--header", "X-A: 2"]
    assert parse_flags(headers) == {"header": ["X-B: 1", "X-A: 2"]}


def test_each_flag_is_accepted_by_its_names() -> None:
    for name, flag in OPTIONS.items():
        for spelling in flag.spellings:
            words = [spelling, "1"] if flag.value else [spelling]
            assert parse_flags(words) == {name: ["1" if flag.value else "true"]}


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
    for flag in {*OPTIONS.values(), *own}:
        assert re.search(rf"--{flag.name}{f' {flag.value}' if flag.value else ''}\s+\S", page)
        assert flag.help in page


def test_a_line_that_begins_with_a_dot_is_text() -> None:
    """roff would take it for a macro, and leave it out."""
    page = render_manual()
    assert all(
        re.match(r"\.(?:TH|SH|SS|TP|PP|nf|fi)\b", one) for one in re.findall(r"(?m)^\..*", page)
    )
    assert page.isascii()


def test_the_manual_is_printed(typed: Typed) -> None:
    assert typed("man").out == render_manual()


def test_the_manual_is_installed_where_man_looks() -> None:
    page = Path(sys.prefix) / "share" / "man" / "man1" / "mcp-tool-filter.1"
    assert page.read_text("utf-8").startswith(".TH MCP-TOOL-FILTER 1 ")


@each_row("line", [line for line in shown_commands() if line.startswith("mcp-tool-filter")])
def test_every_command_line_shown_in_help_is_valid(line: str) -> None:
    words = shlex.split(line)[1:]
    if not words:
        return
    if words[0] in COMMANDS:
        COMMANDS[words[0]].parse(words[1:])
        return
    given = parse_flags(words)
    if "server" not in given:  # of a config file
        settle(given).config  # noqa: B018  it raises for what cannot be


def test_the_file_with_settings_shown_in_help_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t")
    [text] = re.findall(r"^```toml\n(.*?)^```", (DOCS / "settings.md").read_text(), re.M | re.S)
    (tmp_path / "settings.toml").write_text(text)
    found = settle(gather(parse_flags(["--config", str(tmp_path / "settings.toml")]), {}))
    assert found.config().choice.exceptions != ()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("columns", [60, 100])
def test_each_topic_is_a_page_that_fits(
    topic: str, columns: int, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    page = typed("help", topic).out
    assert page.startswith("# ")
    lines = [line for line in page.splitlines() if not line.startswith("    ")]
    assert not [line for line in lines if line.startswith(("|", "```", "<!--")) or "](" in line]
    assert not [line for line in lines if len(line) > columns and " " in line.strip()]
    raw = (DOCS / f"{'CHANGELOG' if topic == 'changelog' else topic}.md").read_text()
    said = set(re.findall(r"\w+", page))
    prose = re.sub(r"\]\(.*?\)|^```\w+|\|.*|^<!--.*-->|^!.*", "", raw, flags=re.M)
    assert set(re.findall(r"\w+", prose)) <= said


@pytest.mark.parametrize(
    ("lines", "quote", "pages"), [(20, "", True), (500, "", False), (20, "'", False)]
)
def test_on_a_terminal_a_page_has_colours_and_a_pager(
    lines: int, quote: str, pages: bool, tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED; cat\n")
    pager.chmod(0o755)
    us = f"{sys.executable} -m mcp_tool_filter help patterns"
    more = {"PAGER": f"{pager}{quote}", "LINES": str(lines), "COLUMNS": "80", "TERM": "xterm"}
    ended = subprocess.run(
        ["script", "-qec", us, "/dev/null"], capture_output=True, text=True, check=True,
        env=surroundings(tmp_path) | more, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "\x1b[1mPatterns\x1b[0m" in ended.stdout
    assert ("PAGED" in ended.stdout) is pages


def test_help_without_a_topic_lists_the_topics(typed: Typed) -> None:
    listed = typed("help").out.splitlines()[1:]
    assert listed == [f"  {topic:<16}{about}" for topic, about in TOPICS.items()]


def test_the_path_is_one_line_for_use_in_another_command(typed: Typed) -> None:
    assert typed("addon-path") == (f"{ADDON / 'tool_filter.py'}\n", "")
