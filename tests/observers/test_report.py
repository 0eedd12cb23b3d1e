"""What the user reads at start."""

from __future__ import annotations

import pytest

from mcp_tool_filter.observers.sentences import Introduction, estimate_tokens, render_report
from tests.make import answering, definition, listing, snapshot, snapshot_of

WHO = Introduction(
    upstream="http://127.0.0.1:3000/mcp",
    server="files 1.0",
    transport="Streamable HTTP",
    revision="2025-06-18",
    listens_at="http://127.0.0.1:8080/mcp",
)


def test_the_report_names_the_upstream_hidden_tools_and_savings() -> None:
    saved = len(definition("rm_a")) * 2
    assert render_report(WHO, snapshot("read", "rm_a", "rm_b", deny="^rm")).splitlines() == [
        "MCP tool filter: http://127.0.0.1:8080/mcp -> http://127.0.0.1:3000/mcp",
        "  Upstream: files 1.0, Streamable HTTP, 2025-06-18",
        "  Tools: 3, of which 2 denied, 1 exposed",
        '    "^rm": rm_a, rm_b',
        f"  Saved: {saved} bytes of context, about {saved // 4} tokens per tools/list",
    ]


def test_a_tool_that_no_allow_pattern_matches_is_reported_as_not_allowed() -> None:
    assert "    not allowed: b" in render_report(WHO, snapshot("a", "b", allow="a"))


def test_only_some_of_many_tools_are_named() -> None:
    report = render_report(WHO, snapshot(*(f"rm{number}" for number in range(100)), deny="^rm"))
    assert "rm11 and 88 more" in report


def test_a_pattern_that_matches_nothing_gets_a_warning() -> None:
    assert 'Warning: the pattern "^x" matches no tool' in render_report(WHO, snapshot(deny="^x"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deny": "rm"}, 'no tool is left: the pattern "rm" matches every tool'),
        ({"deny": "a,b"}, "no tool is left"),
        ({"deny": "_b", "allow": "b"}, "no tool is left"),
        ({"deny": "rm_a"}, None),
    ],
)
def test_a_filter_that_leaves_no_tool_gets_a_warning(
    options: dict[str, str], said: str | None
) -> None:
    report = render_report(WHO, snapshot("rm_a", "rm_b", **options)).splitlines()
    warnings = [line for line in report if line.startswith("Warning:")]
    assert warnings == ([f"Warning: {said}"] if said else [])


def test_a_tool_that_cannot_be_exposed_gets_a_warning() -> None:
    broken = snapshot_of(answering('{"tools":[1]}'))
    assert "Warning: a tool that is not an object: not exposed" in render_report(WHO, broken)


def test_unusual_names_are_escaped_for_the_terminal() -> None:
    report = render_report(WHO, snapshot_of(listing("rm\\u001b[31m"), deny="^rm"))
    assert "rm\\x1b[31m" in report
    assert "\x1b" not in report


@pytest.mark.parametrize(("size", "tokens"), [(0, "0"), (399, "99"), (40_000, "10,000")])
def test_tokens_are_estimated_from_bytes(size: int, tokens: str) -> None:
    assert estimate_tokens(size) == tokens
