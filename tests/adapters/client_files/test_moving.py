"""A server's entry in a file of servers, and back."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.client_files.entries import CannotWrap, ServerEntry
from mcp_tool_filter.adapters.client_files.moving import (
    entry_for,
    free_name,
    moved_from,
    server_named_in,
    with_section,
    without_section,
)
from mcp_tool_filter.cli.config_file import parse_file
from mcp_tool_filter.cli.settings import Sources
from tests.adapters.client_files.test_entries import ENTRIES

ORIGIN = "~/.cursor/mcp.json"
FILES = {
    "new": "",
    "blank lines": "\n\n",
    "other servers": '# mine\ndeny = ["^rm"] # all\n\n[servers.a]\nurl = "http://a"\n# the end\n',
    "Windows": 'deny = ["^rm"]\r\n\r\n[servers."b.c"]\r\ncommand = ["b"]\r\n',
}
WORDS = ["/opt/bin/mcp-tool-filter", "--server", "x", "--config", "/etc/x.toml"]


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_every_entry_comes_back_and_the_file_stays_as_it_was(entry: ServerEntry, text: str) -> None:
    policy = {"deny": ["^rm", 'a"\\d'], "read-only": True, "message-limit": "1MB"}
    new = with_section(text, "x", entry, policy, ORIGIN)
    assert new.startswith(text)
    assert moved_from(new, "x", ORIGIN) == entry
    assert moved_from(new, "x", "~/other.json") is None
    assert without_section(new, "x") == text
    more = new + "\n# of y\n[servers.y]\nurl = 'http://y'\n"
    assert without_section(more, "x") == text + "\n# of y\n[servers.y]\nurl = 'http://y'\n"
    section = tomllib.loads(new.replace("\r\n", "\n"))["servers"]["x"]
    assert {key: section[key] for key in policy} == policy
    left = entry_for(entry, WORDS)
    assert server_named_in(left) == ("x", "/etc/x.toml")
    assert "s3cr" not in str(left)


def test_the_filter_starts_with_what_the_client_had_given() -> None:
    """A dollar that is no reference stays one; ${NAME} in any client's spelling is ours."""
    environment = {"A": "${T}", "B": "${env:T}", "C": "{env:T}", "D": "pa$$word$HOME", "E": "\x7f"}
    entry: ServerEntry = {"command": "a", "args": ["b c", "$x"], "env": environment, "cwd": "/srv"}
    text = with_section("", "x", entry, {}, ORIGIN)
    file = parse_file("/x.toml", text.encode())
    settings = Sources(file, {}, {}, {"T": "t-1"}).of_server("x", is_stdio=True)
    assert settings.command == ("a", "b c", "$x")
    assert settings.cwd == "/srv"
    wanted = {"A": "t-1", "B": "t-1", "C": "t-1", "D": "pa$$word$HOME", "E": "\x7f"}
    assert settings.env == wanted
    assert moved_from(text, "x", ORIGIN) == entry
    entry = {"type": "http", "url": "https://mcp.example/mcp?$top=1"}
    text = with_section("", "x", entry, {}, ORIGIN)
    settings = Sources(parse_file("/x.toml", text.encode()), {}, {}, {}).of_server("x")
    assert settings.upstream == entry["url"]
    assert moved_from(text, "x", ORIGIN) == entry


def test_what_was_edited_in_the_section_is_kept() -> None:
    entry: ServerEntry = {"command": "npx", "args": ["a@1"], "env": {"KEY": "old", "X": 1}, "z": 2}
    text = with_section("", "x", entry, {}, ORIGIN)
    text = text.replace("a@1", "a@2").replace('"old"', '"new"')
    now = moved_from(text, "x", ORIGIN)
    assert now == {"command": "npx", "args": ["a@2"], "env": {"KEY": "new", "X": 1}, "z": 2}


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["${workspaceFolder}"]},
        {"command": "npx", "args": ["{file:~/key}"]},
        {"command": "npx", "env": {"KEY": "${input:key}"}},
        {"command": "npx", "env": {"KEY": "${KEY:-x}"}},
        {"url": "https://${HOST}/mcp"},
    ],
)
def test_what_only_the_client_knows_stays_with_it(entry: ServerEntry) -> None:
    with pytest.raises(CannotWrap, match="The client fills in"):
        with_section("", "x", entry, {}, ORIGIN)


@pytest.mark.parametrize("text", ["servers = {}\n", "[servers]\n[servers.a\n", "a = 1\na = 2"])
def test_a_file_that_cannot_take_a_section_is_left_alone(text: str) -> None:
    with pytest.raises(CannotWrap):
        with_section(text, "x", {"command": "a"}, {}, ORIGIN)


def test_a_name_that_is_taken_gets_a_number() -> None:
    text = '[servers.a]\nurl="http://a"\n[servers.a-2]\nurl="http://a"\n'
    names = [free_name(text, name) for name in ("a", "b", "-Ä b/c", "", "x" * 90)]
    assert names == ["a-3", "b", "b-c", "server", "x" * 60]


_TEXTS = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=12)


@example(words=["x"], values={"0": "\x85#"})  # ends a line for Python, and not for TOML
@given(
    words=st.lists(_TEXTS.filter(lambda one: "${" not in one and "{" not in one), min_size=1),
    values=st.dictionaries(_TEXTS.filter(bool), _TEXTS.filter(lambda one: "{" not in one)),
)
def test_any_text_comes_back(words: list[str], values: dict[str, str]) -> None:
    entry: ServerEntry = {"command": words[0] or "x", "args": words[1:], "env": values}
    text = with_section("a = 1\n", "x", entry, {}, ORIGIN)
    assert moved_from(text, "x", ORIGIN) == entry
    assert without_section(text, "x") == "a = 1\n"
    assert tomllib.loads(text)["servers"]["x"]["command"] == [words[0] or "x", *words[1:]]
