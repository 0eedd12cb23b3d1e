"""Pages to read in the terminal, and every command line that the README and they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from mcp_tool_filter.cli.launcher import main
from mcp_tool_filter.cli.settings.commands import COMMANDS, TOPICS
from mcp_tool_filter.cli.settings.flags import parse_flags
from mcp_tool_filter.cli.settings.settings import settle
from tests.proxy import REPOSITORY

DOCS = REPOSITORY / "addon" / "mcp_tool_filter" / "docs"
_BLOCK = re.compile(r"^```(?:sh|text|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(mcp-tool-filter .*)$", re.MULTILINE)


def shown_commands() -> Iterator[str]:
    for page in [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md"))]:
        for block in _BLOCK.findall(page.read_text()):
            yield from _COMMAND.findall(block)


@pytest.mark.parametrize("line", sorted(set(shown_commands())))
def test_every_command_line_shown_in_help_is_valid(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] in COMMANDS:
        COMMANDS[words[0]].parse(words[1:])
        return
    given = parse_flags(words)
    settle(given).config  # noqa: B018  it raises for what cannot be


def test_help_shows_command_lines() -> None:
    assert len(set(shown_commands())) > 20


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_is_a_page(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    assert capsys.readouterr().out.startswith("# ")


def test_help_without_a_topic_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "patterns" in capsys.readouterr().out


def test_an_unknown_topic_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "pattern"]) == 2
    assert "did you mean patterns?" in capsys.readouterr().err


def test_an_unknown_topic_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "nope"]) == 2
    assert capsys.readouterr().err == "Error: There is no topic nope\nSee mcp-tool-filter help\n"
