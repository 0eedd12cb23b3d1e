"""JSON, read strictly: what is JSON to everybody is read, all else is refused."""

from __future__ import annotations

import pytest

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.scan import EACH, scan
from tests.protocol.json_texts import NOT_JSON, ODD_BUT_LEGAL, short


@pytest.mark.parametrize("raw", ODD_BUT_LEGAL, ids=short)
def test_odd_but_legal_json_is_read(raw: bytes) -> None:
    text, root = scan(raw, {})
    assert text[slice(*root.span)].encode() == raw.strip(b" \t\r\n")


@pytest.mark.parametrize("raw", NOT_JSON, ids=short)
def test_a_text_that_only_some_readers_accept_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(raw, {"a": {}})


@pytest.mark.parametrize("raw", [raw for raw in NOT_JSON if raw.strip()], ids=short)
def test_such_texts_are_refused_outside_the_outline_too(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(b'{"deep":[' + raw + b"]}", {})


def test_a_part_keeps_its_place_in_the_text() -> None:
    """So that an answer can give an id back in the very bytes it came in."""
    text, root = scan(b'{"id": 1.0, "params": {"x": [1], "name": "a"}}', {"params": {}})
    assert text[slice(*root["id"].span)] == "1.0"
    assert text[slice(*root["params"]["x"].span)] == "[1]"
    assert root["params"]["name"].text == "a"


def test_repeated_members_are_all_kept() -> None:
    """The caller has to see that a key stands twice."""
    _, root = scan(b'{"a":1,"\\u0061":2}', {})
    assert [member.key for member in root.members or ()] == ["a", "a"]


def test_the_first_of_members_with_the_same_key_is_found() -> None:
    text, root = scan(rb'{"a": 1, "\u0061": 2, "b": {"a": 3}}', {"b": {}})
    assert [text[slice(*one.span)] for one in (root["a"], root["b"]["a"])] == ["1", "3"]
    assert [member.key for member in root.members or ()] == ["a", "a", "b"]
    assert root.get("c") is None


def test_arrays_are_opened_only_where_the_outline_says_so() -> None:
    """Other parts are only checked, which costs a tenth."""
    document = b'[{"a":[{"b":1}]}]'
    _, closed = scan(document, {"a": {}})
    assert closed.elements is None
    _, opened = scan(document, {EACH: {"a": {}}})
    assert [one["a"].elements for one in opened.elements or ()] == [None]


def test_members_outside_the_outline_are_not_opened() -> None:
    _, root = scan(b'{"a":{"b":1}}', {})
    assert root["a"].members is None


def test_an_escaped_backslash_does_not_escape_a_quote() -> None:
    scan(rb'["\\", "' + b"[" * 1000 + rb'", "\\\"", "' + b"{" * 1000 + b'"]', {})


def test_a_byte_order_mark_is_named_in_the_error() -> None:
    with pytest.raises(ProtocolError, match="byte order mark"):
        scan(b"\xef\xbb\xbf{}", {})


def test_a_message_over_the_limit_is_not_parsed() -> None:
    with pytest.raises(OverLimit):
        scan(b"[" + b" " * 100 + b"]", {}, Limits(message=100))
