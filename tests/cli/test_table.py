"""Every command is declared once, and help, completion and dispatch follow."""

from __future__ import annotations

from importlib import import_module

import pytest

from mcp_tool_filter.cli.flags import WORDS, UsageError, parse_flags
from mcp_tool_filter.cli.help import render_command_help, render_first_steps, render_help
from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.table import COMMANDS, Command
from mcp_tool_filter.options import OPTIONS

ALL = list(COMMANDS.values())


@pytest.mark.parametrize("command", ALL, ids=[command.name for command in ALL])
def test_each_command_has_help_flags_and_a_function(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    page = render_command_help(command)
    assert page.startswith(f"usage: mcp-tool-filter {command.name}")
    assert max(map(len, page.splitlines())) <= 80
    assert main([command.name, "--help"]) == 0
    assert capsys.readouterr().out == page
    assert f"\n  {command.name:<15}{command.summary}\n" in render_help()
    module, _, function = command.function.rpartition(".")
    assert callable(getattr(import_module(f"mcp_tool_filter.cli.{module}"), function))
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


# One wrong word gets one helpful line
def complaint(*argv: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse_flags(argv)
    return raised.value.what


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--dney", "^a"], "There is no flag --dney: did you mean --deny?"),
        (["--upstraem=http://x"], "There is no flag --upstraem: did you mean --upstream?"),
        (["--mode", "reverse:http://x"], "There is no flag --mode: did you mean --upstream?"),
        (["--listen-port=1"], "There is no flag --listen-port: did you mean --port?"),
        (["--zzzzzz"], "There is no flag --zzzzzz"),
        (["doctr"], "There is no command doctr: did you mean doctor?"),
        (["-u", "x", "doctor"], "The command comes first: mcp-tool-filter doctor …"),
        (["--port"], "--port needs a value"),
        (["--deny"], "--deny needs a value"),
        (["--den", "^a"], "There is no flag --den: did you mean --deny?"),
    ],
)
def test_a_wrong_flag_is_named_with_a_suggestion(argv: list[str], said: str) -> None:
    assert complaint(*argv) == said


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["npx", "-y", "a-server"], "mcp-tool-filter -- npx -y a-server"),
        (["-d", "^a b", "uvx", "s"], "mcp-tool-filter -d '^a b' -- uvx s"),
        (["--stdio", "npx", "s"], "mcp-tool-filter --stdio -- npx s"),
        (["./server", "--port", "1"], "mcp-tool-filter -- ./server --port 1"),
        (["-H", "X: hunter2", "npx", "s"], "mcp-tool-filter [FLAGS] -- npx s"),
        (["sh", "-c", "x"], "mcp-tool-filter -- sh -c x"),
    ],
)
def test_forgotten_dashes_give_the_right_command_line(argv: list[str], line: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_flags(argv)
    assert raised.value.why == line


def test_a_url_alone_is_an_upstream() -> None:
    with pytest.raises(UsageError) as raised:
        parse_flags(["http://me:hunter2@localhost:3000/mcp", "--deny", "^a"])
    assert raised.value.what == "A URL comes after --upstream"
    assert "hunter2" not in str(raised.value)


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
