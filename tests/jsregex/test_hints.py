"""A hint is for people who think in globs."""

from __future__ import annotations

import pytest

from mcp_tool_filter.jsregex.hints import hint


@pytest.mark.parametrize(
    ("glob", "regex"),
    [
        ("*delete*", ": delete"),
        ("*", ": .*"),
        ("**", ": .*"),
        ("*_db", ": _db$"),
        ("delete_*", ": ^delete_"),
        ("get_*_by_*", ": ^get_.*_by_"),
        ("*.write", r": \.write$"),
    ],
)
def test_a_glob_is_shown_as_a_regex(glob: str, regex: str) -> None:
    advice = hint(glob)
    assert advice is not None
    assert advice.endswith(regex)


@pytest.mark.parametrize("pattern", ["(?i)delete", "/^delete/i", ".*a.*b.*c.*"])
def test_other_common_mistakes_get_a_hint(pattern: str) -> None:
    assert hint(pattern) is not None


@pytest.mark.parametrize("pattern", ["^delete_.*$", ".*_db$", "(a+)+", "[a", "delete_file"])
def test_correct_patterns_get_no_hint(pattern: str) -> None:
    assert hint(pattern) is None
