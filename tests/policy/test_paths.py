"""Sets of paths, as users write them."""

from __future__ import annotations

import pytest

from mcp_tool_filter.errors import InvalidOption
from mcp_tool_filter.policy.paths import parse_paths

PATHS = parse_paths(["/mcp, /files/*", "/v1/"], option="header_paths")


@pytest.mark.parametrize(
    "target",
    ["/mcp", "/mcp/", "/mcp?a=/b", "/files/a", "/files/", "/files/a/b.txt?c", "/v1", "/v1/"],
)
def test_a_path_is_in_the_set_with_any_query(target: str) -> None:
    assert PATHS.has(target)


@pytest.mark.parametrize(
    "target",
    [
        "/", "/mcp/x", "/mcpx", "/MCP", "//mcp", "/%6dcp", "/files", "/v1/x", "*",
        "/files/../admin", "/files/..", "/files/./a", "/files/%2e%2e/admin", "/files/..%2fadmin",
        "/files/a%5c..", "/files/\\..\\admin", "/files//admin", "/files/..;/admin",
        "/files/%252e%252e/admin", "/mcp/../admin", "/mcp;a", "/mcp//",
    ],
)  # fmt: skip
def test_other_paths_are_not_in_the_set(target: str) -> None:
    assert not PATHS.has(target)


def test_a_star_matches_all_paths() -> None:
    assert parse_paths(["*"], option="x").has("/any/path?x")


def test_no_path_is_in_an_empty_set() -> None:
    assert not parse_paths([], option="x").has("/")


@pytest.mark.parametrize("text", ["mcp", "http://host/mcp", "/a*b", "/a?b", "/a b", "/a#b", "**"])
def test_an_invalid_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="header_paths"):
        parse_paths([text], option="header_paths")
