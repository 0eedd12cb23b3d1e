"""Valid means valid JavaScript: ``new RegExp(text)``, no flags."""

from __future__ import annotations

import pytest
from hypothesis import given

from mcp_tool_filter.jsregex.syntax import NotJavaScript, parse_regex
from tests.jsregex.javascript import Node, nonsense, patterns, recorded


def is_valid(pattern: str) -> bool:
    try:
        parse_regex(pattern)
    except NotJavaScript:
        return False
    return True


@pytest.mark.parametrize(
    "pattern",
    [
        "[]",  # nothing at all
        "[^]",  # anything at all
        "a{,3}",  # no count, but braces
        "a{1",
        "]",
        r"\8",  # an 8: there is no such group
        r"\k",  # a k: there are no names
        r"\c",  # a backslash and a c
        r"\p{L}",  # a p and braces
        r"\u{61}",  # 61 times u
        "(?=a)*",  # Annex B lets a look-ahead be repeated
        r"(?<\u{61}>x)\k<a>",
        "a{2147483648,2147483647}",  # both counts are infinity to V8
        "(?:" * 5000 + ")" * 5000,
    ],
)
def test_valid_javascript_patterns_are_accepted(pattern: str) -> None:
    """Python's ``re`` refuses most of these."""
    assert is_valid(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a++",
        "a{2}{3}",
        "(?i)x",
        "(?i:x)",  # ES2025
        "(?<a>x)|(?<a>y)",  # ES2025
        "(?P<n>x)",
        "(?>x)",
        "(?#x)",
        r"\b+",
        "^*",
        "(?<=a)*",
        "a{2,1}",
        "[b-a]",
        r"(?<a>x)[\k]",
        r"(?<a>x)\k<b>",
        "*delete*",
        "{1}",
        "a\\",
        "()" * 32768,
    ],
)
def test_invalid_javascript_patterns_are_refused(pattern: str) -> None:
    """Python's ``re`` takes some of these."""
    assert not is_valid(pattern)


def test_the_validity_of_every_recorded_pattern_is_the_same() -> None:
    disagreed = [row.pattern for row in recorded() if is_valid(row.pattern) != row.valid]
    assert disagreed == []


@given(pattern=patterns() | nonsense())
def test_node_accepts_the_same_patterns(node: Node, pattern: str) -> None:
    assert is_valid(pattern) == (node.ask(pattern) is not None)
