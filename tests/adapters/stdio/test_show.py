"""What a command prints between its messages, for people."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.stdio.judge import show_stray_line
from mcp_tool_filter.protocol.limits import Limits


def shown(line: bytes) -> tuple[bool, list[str]]:
    said: list[str] = []
    return show_stray_line(line, Limits(), said.append), said


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"Listening on 8000", "Listening on 8000"),
        (b"\x1b[31mred\a", "\\x1b[31mred\\x07"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"x" * 3000, "x" * 2000 + "…"),
    ],
)
def test_text_is_marked_escaped_and_cut(line: bytes, text: str) -> None:
    assert shown(line) == (True, [f"[not JSON, from the command] {text}"])


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"null", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_json_is_not_shown(line: bytes) -> None:
    assert shown(line) == (False, [])


def test_text_that_is_too_long_is_not_reported_as_no_json() -> None:
    said: list[str] = []
    assert not show_stray_line(b'{"a":1}', Limits(message=5), said.append)
    assert said == []


def test_a_broken_message_is_shown_differently_from_text() -> None:
    """A request may wait for it."""
    is_text, said = shown(b'{"jsonrpc":"2.0","id":1,"result":')
    assert not is_text
    assert len(said) == 1
