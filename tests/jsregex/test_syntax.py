"""Valid means valid JavaScript: ``new RegExp(text)``, no flags."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.syntax import NotJavaScript, parse_regex
from mcp_tool_filter.policy.patterns import hint, render_glob
from tests.jsregex.javascript import Node, names, nonsense, parse_safe, patterns, recorded


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


# Ignoring case means what JavaScript's flag ``i`` does


LETTERS = (
    "".join(map(chr, range(0x41, 0x180)))
    + "_\u01c5\u01c4\u01c6\u03a9\u03c9\u2126\u212a\u1e9e\u03bc\u039c\u03c3\u03c2\u03a3"
)


def matches(pattern: str, name: str) -> bool:
    return Matcher(parse_regex(pattern, ignore_case=True)).search(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("delete", "DeLeTe_file"),
        ("DELETE", "delete"),
        ("[a-c]x", "BX"),
        ("[^a]", "b"),
        (r"(a)\1", "aA"),
        (r"\x61", "A"),
        ("é", "É"),
        ("\u03c3", "\u03c2"),
    ],
)
def test_capital_and_small_letters_are_equal(pattern: str, name: str) -> None:
    assert matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("[^a]", "A"), ("s", "\u017f"), ("k", "\u212a"), ("ß", "SS"), (r"\W", "S")],
)
def test_other_characters_are_not_equal(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


@given(pattern=patterns(), name=names().map(str.swapcase))
def test_node_matches_what_we_match(folding_node: Node, pattern: str, name: str) -> None:
    assert [Matcher(parse_safe(pattern, ignore_case=True)).search(name)] == folding_node.ask(
        pattern, name
    )


@given(st.text(LETTERS, min_size=1, max_size=3), st.text(LETTERS, max_size=3), st.booleans())
@example("\u017f", "s", False)
@example("İ", "i", True)
def test_node_agrees_for_all_kinds_of_letters(
    folding_node: Node, letters: str, name: str, negated: bool
) -> None:
    assume(not set(letters) & set("\\\\]^-"))  # which mean something else in a class
    pattern = f"[{'^' if negated else ''}{letters}]"
    assert [matches(pattern, name)] == folding_node.ask(pattern, name)


# For people who think in globs: hints, and regexes that say the same as a glob


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
