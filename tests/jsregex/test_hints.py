"""For people who think in globs: hints, and regexes that say the same as a glob."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.syntax import NotJavaScript, parse_regex
from mcp_tool_filter.policy.patterns import hint, render_glob


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


def fits(glob: str, name: str) -> bool:
    return Matcher(parse_regex(render_glob(glob))).search(name)


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("write_*", "rewrite_file", False),
        ("WRITE_*", "write_file", False),
        ("*", "anything\nat all", True),
        ("{read,write}_*", "write_x", True),
        ("{read,write}_*", "delete_x", False),
        (r"a\*", "a*", True),
        ("a^b$c|(d)+", "a^b$c|(d)+", True),
    ],
)
def test_names_fit_a_glob_as_a_whole(glob: str, name: str, *, expected: bool) -> None:
    assert fits(glob, name) == expected


@given(
    glob=st.text("ab*?.[]!-_", max_size=6).filter(lambda glob: "[" not in glob or "]" in glob),
    name=st.text("ab._!-[]", max_size=6),
)
@example(glob="[]", name="[]")
@example(glob="[!]", name="[!]")
@example(glob="[]a]", name="]")
def test_pythons_fnmatch_agrees(glob: str, name: str) -> None:
    try:
        found = fits(glob, name)
    except NotJavaScript:  # a range that is out of order; to Python it is empty
        return
    assert found == fnmatchcase(name, glob)


def test_a_brace_that_is_not_closed_is_refused() -> None:
    with pytest.raises(NotJavaScript):
        render_glob("{a,b")
