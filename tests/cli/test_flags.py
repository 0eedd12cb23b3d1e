"""One wrong word gets one helpful line."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.flags import UsageError, parse_flags
from mcp_tool_filter.options import OPTIONS


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


def test_abbreviated_flags_are_not_guessed() -> None:
    """An abbreviation that works today would mean something else tomorrow."""
    assert "--allow" in complaint("--allo", "^a")


def test_a_pattern_that_begins_with_a_dash_can_be_given() -> None:
    assert parse_flags(["--deny=-x$"]) == {"deny": ["-x$"]}


def test_flags_that_can_be_repeated_keep_their_order() -> None:
    assert parse_flags(["-d", "^b", "--deny", "^a"]) == {"deny": ["^b", "^a"]}
    headers = ["-H", "X-B: 1", "--header", "X-A: 2"]
    assert parse_flags(headers) == {"header": ["X-B: 1", "X-A: 2"]}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_flag_is_accepted_by_its_name(name: str) -> None:
    flag = OPTIONS[name]
    words = [f"--{name}", "1"] if flag.value else [f"--{name}"]
    assert parse_flags(words) == {name: ["1" if flag.value else "true"]}


def test_no_short_flag_is_used_twice() -> None:
    letters = [flag.short for flag in OPTIONS.values() if flag.short]
    assert len(letters) == len(set(letters))
