"""Every command is declared once, and help, completion and dispatch follow."""

from __future__ import annotations

from importlib import import_module

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.settings.commands import COMMANDS, Command
from mcp_tool_filter.cli.settings.flags import WORDS
from mcp_tool_filter.cli.settings.help import render_command_help, render_help
from mcp_tool_filter.cli.settings.usage import UsageError

ALL = list(COMMANDS.values())
each_command = pytest.mark.parametrize("command", ALL, ids=[command.name for command in ALL])


@each_command
def test_its_help_shows_its_usage_and_its_own_flags(command: Command) -> None:
    page = render_command_help(command)
    assert page.startswith(f"usage: mcp-tool-filter {command.name}")
    assert page.endswith("\n")
    for flag in (*command.flags, command.all_flags[-1]):
        assert f"--{flag.name} {flag.value}".rstrip() in page
    assert max(map(len, page.splitlines())) <= 100


@each_command
def test_it_prints_its_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command.name, "--help"]) == 0
    assert capsys.readouterr().out == render_command_help(command)


@each_command
def test_its_module_runs_it(command: Command) -> None:
    assert callable(import_module(f"mcp_tool_filter.cli.commands.{command.module}").run)


@each_command
def test_it_understands_each_of_its_flags(command: Command) -> None:
    for flag in command.all_flags:
        words = [f"--{flag.name}", "1"] if flag.value else [f"--{flag.name}"]
        assert command.parse(words) == {flag.name: ["1" if flag.value else "true"]}


@each_command
def test_no_letter_stands_for_two_of_its_flags(command: Command) -> None:
    letters = [flag.short for flag in command.all_flags if flag.short]
    assert len(letters) == len(set(letters))


@each_command
def test_the_page_of_the_filter_names_it(command: Command) -> None:
    assert f"\n  {command.name} " in render_help()
    assert command.summary in render_help()


@each_command
def test_a_flag_that_it_does_not_have_is_refused(command: Command) -> None:
    with pytest.raises(UsageError) as raised:
        command.parse(["--zzz"])
    help = f"mcp-tool-filter {command.name} --help"
    assert str(raised.value) == f"Error: There is no flag --zzz\nSee {help}"


def test_words_may_stand_before_and_behind_the_flags() -> None:
    typed = COMMANDS["wrap"].parse(["cursor", "--deny", "^a", "files", "--yes"])
    assert typed == {WORDS: ["cursor", "files"], "deny": ["^a"], "yes": ["true"]}


def test_behind_two_dashes_a_word_may_begin_with_one() -> None:
    assert COMMANDS["check-pattern"].parse(["--", "-x", "^a"]) == {WORDS: ["-x", "^a"]}


def test_a_word_too_many_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        COMMANDS["logout"].parse(["http://a", "http://b"])
    assert raised.value.what == "There is one word too many: http://b"


def test_what_another_tool_calls_its_flag_is_offered_only_where_we_have_it() -> None:
    with pytest.raises(UsageError) as raised:
        COMMANDS["scrub"].parse(["--block", "^a"])
    assert raised.value.what == "There is no flag --block"
