"""Every command is declared once, and help, completion and dispatch follow."""

from __future__ import annotations

from importlib import import_module

import pytest

from mcp_tool_filter.cli.flags import WORDS, UsageError
from mcp_tool_filter.cli.help import render_command_help, render_help
from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.table import COMMANDS, Command

ALL = list(COMMANDS.values())
each_command = pytest.mark.parametrize("command", ALL, ids=[command.name for command in ALL])


@each_command
def test_each_commands_help_shows_its_usage_and_flags(command: Command) -> None:
    page = render_command_help(command)
    assert page.startswith(f"usage: mcp-tool-filter {command.name}")
    assert page.endswith("\n")
    for flag in (*command.flags, command.all_flags[-1]):
        assert f"--{flag.name} {flag.value}".rstrip() in page
    assert max(map(len, page.splitlines())) <= 100


@each_command
def test_each_command_prints_its_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command.name, "--help"]) == 0
    assert capsys.readouterr().out == render_command_help(command)


@each_command
def test_each_commands_module_runs_it(command: Command) -> None:
    module, _, function = command.function.rpartition(".")
    assert callable(getattr(import_module(f"mcp_tool_filter.cli.{module}"), function))


@each_command
def test_each_command_accepts_each_of_its_flags(command: Command) -> None:
    for flag in command.all_flags:
        words = [f"--{flag.name}", "1"] if flag.value else [f"--{flag.name}"]
        assert command.parse(words) == {flag.name: ["1" if flag.value else "true"]}


@each_command
def test_no_short_flag_of_a_command_is_used_twice(command: Command) -> None:
    letters = [flag.short for flag in command.all_flags if flag.short]
    assert len(letters) == len(set(letters))


@each_command
def test_the_filters_help_names_each_command(command: Command) -> None:
    assert f"\n  {command.name} " in render_help()
    assert command.summary in render_help()


@each_command
def test_an_unknown_flag_is_refused_with_the_commands_help(command: Command) -> None:
    with pytest.raises(UsageError) as raised:
        command.parse(["--zzz"])
    help = f"mcp-tool-filter {command.name} --help"
    assert str(raised.value) == f"Error: There is no flag --zzz\nSee {help}"


def test_arguments_may_stand_before_and_after_flags() -> None:
    typed = COMMANDS["wrap"].parse(["cursor", "--deny", "^a", "files", "--yes"])
    assert typed == {WORDS: ["cursor", "files"], "deny": ["^a"], "yes": ["true"]}


def test_after_two_dashes_an_argument_may_begin_with_a_dash() -> None:
    assert COMMANDS["check-pattern"].parse(["--", "-x", "^a"]) == {WORDS: ["-x", "^a"]}


def test_an_extra_argument_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        COMMANDS["logout"].parse(["http://a", "http://b"])
    assert raised.value.what == "There is one word too many: http://b"


def test_flags_of_other_tools_are_suggested_only_where_we_have_them() -> None:
    with pytest.raises(UsageError) as raised:
        COMMANDS["scrub"].parse(["--block", "^a"])
    assert raised.value.what == "There is no flag --block"
