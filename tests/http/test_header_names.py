"""What follows from the names of headers alone is computed once for each set of names."""

from __future__ import annotations

import pytest

from mcp_tool_filter.http.head import problem_in_fields
from mcp_tool_filter.http.header_names import read_names
from tests.make import raw_head


def test_values_are_not_cached_with_the_names() -> None:
    """Two users of one program send the same names."""
    one, other = (raw_head("POST", "/mcp", ("Mcp-Session-Id", id)) for id in ("ann", "bob"))
    assert one.names is other.names
    assert (one.said.session_id, other.said.session_id) == ("ann", "bob")


def test_names_of_a_long_head_are_not_cached() -> None:
    """A client chooses them, and could send others each time."""
    before = read_names.cache_info().currsize
    for number in range(10):
        headers = [(f"{number}-{at}-{'x' * 100}", "") for at in range(100)]
        assert problem_in_fields(raw_head("POST", "/mcp", *headers)) is None
        assert problem_in_fields(raw_head("POST", "/mcp", *headers, ("Mcp_Name", "a"))) is not None
    assert read_names.cache_info().currsize == before


@pytest.mark.parametrize("name", ["Host", "Content-Type", "Mcp-Session-Id"])
def test_a_header_twice_is_found_in_any_case(name: str) -> None:
    twice = raw_head("POST", "/mcp", (name, "a"), ("X", ""), (name.upper(), "a"))
    assert problem_in_fields(twice) == "a header twice"


def test_the_last_of_two_headers_with_one_name_counts() -> None:
    """(Where either may be sent twice.)"""
    assert raw_head("POST", "/mcp", ("Accept", "a"), ("accept", "b")).get(b"accept") == "b"
