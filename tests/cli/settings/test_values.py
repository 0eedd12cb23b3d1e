"""One value of a flag, and the URL of an upstream as users type it."""

from __future__ import annotations

import pytest

from mcp_tool_filter.cli.settings.settings import read_settings
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.cli.settings.values import (
    is_on,
    one_of,
    parse_count,
    parse_port,
    parse_variable,
    split_command,
)


@pytest.mark.parametrize(
    ("url", "origin", "endpoint"),
    [
        ("http://localhost:3000/mcp", "http://localhost:3000", "/mcp"),
        ("http://localhost:3000", "http://localhost:3000", ""),
        ("http://localhost:3000/", "http://localhost:3000", ""),
        ("localhost:3000/sse", "http://localhost:3000", "/sse"),
        ("https://example.com/a/mcp?k=1", "https://example.com", "/a/mcp?k=1"),
        ("HTTP://[::1]:3000/mcp", "http://[::1]:3000", "/mcp"),
        ("http://localhost:3000/mcp#there", "http://localhost:3000", "/mcp"),
    ],
)
def test_the_path_in_the_url_is_the_endpoint(url: str, origin: str, endpoint: str) -> None:
    found = read_settings(["--upstream", url], {})
    assert (found.origin, found.endpoint) == (origin, endpoint)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "Missing --upstream URL"),
        ("ftp://localhost", "Unsupported URL scheme: ftp"),
        ("http://", "--upstream is not a valid URL"),
        ("http://localhost:99999", "is not a valid URL"),
        ("http://user:hunter2@localhost/", "Credentials in --upstream would be shown"),
        ("http://user:hunter2#@localhost/", "is not a valid URL"),
    ],
)
def test_an_invalid_upstream_is_refused_without_showing_a_password(url: str, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_settings(["--upstream", url], {})
    assert part in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("text", ["65536", "99999", "100000", "-1", "", "http", "1.0"])
def test_a_port_is_a_number_from_0_to_65535(text: str) -> None:
    assert (parse_port("0"), parse_port("65535")) == (0, 65535)
    with pytest.raises(UsageError, match=f"--port cannot be {text}"):
        parse_port(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [("npx -y 'a b'", ("npx", "-y", "a b")), ("", ())],
)
def test_a_command_is_split_like_in_a_shell(text: str, command: tuple[str, ...]) -> None:
    assert split_command(text) == command
    with pytest.raises(UsageError, match="cannot be split into words"):
        split_command("npx 'a")


@pytest.mark.parametrize("text", ["KEY", "=secret", "KEY=secret\0"])
def test_a_variable_has_a_name_and_no_error_shows_its_value(text: str) -> None:
    assert parse_variable("KEY=a=b") == ("KEY", "a=b")
    with pytest.raises(UsageError) as caught:
        parse_variable(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "100000", "x", ""])
def test_a_count_is_a_number_above_0(text: str) -> None:
    assert parse_count("max-children", "32") == 32
    with pytest.raises(UsageError, match=f"--max-children cannot be {text}"):
        parse_count("max-children", text)


@pytest.mark.parametrize(
    ("text", "is_it"),
    [("true", True), ("YES", True), ("1", True), ("off", False), ("0", False), (None, False)],
)
def test_a_switch_can_be_written_in_several_ways(text: str | None, is_it: bool) -> None:
    assert is_on({} if text is None else {"stdio": text}, "stdio") is is_it
    with pytest.raises(UsageError, match="stdio cannot be maybe"):
        is_on({"stdio": "maybe"}, "stdio")


def test_a_choice_must_be_one_of_the_known_ones() -> None:
    assert one_of("log-format", "json", ("text", "json")) == "json"
    with pytest.raises(UsageError, match="It must be one of: text, json"):
        one_of("log-format", "xml", ("text", "json"))
