"""Valid means valid JavaScript: ``new RegExp(text)``, no flags."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from jsregex.glob import render_glob
from jsregex.matcher import Matcher, PatternFinder
from jsregex.syntax import NotJavaScript, parse_regex
from mcp_tool_filter.core.policy.patterns import hint
from tests.jsregex.javascript import Node, names, nonsense, parse_safe, patterns, recorded
from tests.rows import each_row


def is_valid(pattern: str) -> bool:
    try:
        parse_regex(pattern)
    except NotJavaScript:
        return False
    return True


def test_deep_nesting_is_valid_and_too_many_groups_are_not() -> None:
    assert is_valid("(?:" * 5000 + ")" * 5000)
    assert not is_valid("()" * 32768)


def test_the_validity_of_every_recorded_pattern_is_the_same() -> None:
    disagreed = [row.pattern for row in recorded() if is_valid(row.pattern) != row.valid]
    assert disagreed == []


@given(pattern=patterns() | nonsense())
def test_node_accepts_the_same_patterns(node: Node, pattern: str) -> None:
    assert is_valid(pattern) == (node.ask(pattern) is not None)


# Ignoring case means what JavaScript's flag ``i`` does


LETTERS = "_\u01c5\u01c4\u01c6\u03a9\u03c9\u2126\u212a\u1e9e\u03bc\u039c\u03c3\u03c2\u03a3"
LETTERS += "".join(map(chr, range(0x41, 0x180)))


def matches(pattern: str, name: str) -> bool:
    return Matcher(parse_regex(pattern, ignore_case=True)).search(name)


@each_row(("pattern", "name"), [
    ("delete", "DeLeTe_file"), ("DELETE", "delete"), ("[a-c]x", "BX"), ("[^a]", "b"),
    (r"(a)\1", "aA"), (r"\x61", "A"), ("é", "É"), ("\u03c3", "\u03c2"),
])  # fmt: skip
def test_capital_and_small_letters_are_equal(pattern: str, name: str) -> None:
    assert matches(pattern, name)
    assert PatternFinder(parse_regex(pattern, ignore_case=True)).find(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("[^a]", "A"), ("s", "\u017f"), ("k", "\u212a"), ("ß", "SS"), (r"\W", "S")],
)
def test_other_characters_are_not_equal(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


@given(pattern=patterns(), name=names().map(str.swapcase))
def test_node_matches_what_we_match(folding_node: Node, pattern: str, name: str) -> None:
    matcher = Matcher(parse_safe(pattern, ignore_case=True))
    assert [matcher.search(name)] == folding_node.ask(pattern, name)


@given(st.text(LETTERS, min_size=1, max_size=3), st.text(LETTERS, max_size=3), st.booleans())
@example("\u017f", "s", False)
@example("İ", "i", True)
def test_node_agrees_on_letters(folding_node: Node, letters: str, name: str, negated: bool) -> None:
    assume(not set(letters) & set("\\\\]^-"))  # which mean something else in a class
    pattern = f"[{'^' if negated else ''}{letters}]"
    assert [matches(pattern, name)] == folding_node.ask(pattern, name)


# For people who think in globs: hints, and regexes that say the same as a glob


@each_row(("pattern", "advised"), [
    ("*delete*", ": delete"), ("*", ": .*"), ("**", ": .*"), ("*_db", ": _db$"),
    ("delete_*", ": ^delete_"), ("get_*_by_*", ": ^get_.*_by_"), ("*.write", r": \.write$"),
    ("(?i)delete", ": delete"), ("/^delete/i", ": ^delete"), (".*a.*b.*c.*", ": a.*b.*c"),
    ("^delete_.*$", None), (".*_db$", None), ("(a+)+", None), ("[a", None), ("delete_file", None),
])  # fmt: skip
def test_a_glob_or_another_common_mistake_gets_a_hint(pattern: str, advised: str | None) -> None:
    advice = hint(pattern)
    assert advice is None if advised is None else advice and advice.endswith(advised)


def fits(glob: str, name: str) -> bool:
    return Matcher(parse_regex(render_glob(glob))).search(name)


@each_row(("glob", "name", "expected"), [
    ("write_*", "rewrite_file", False), ("WRITE_*", "write_file", False),
    ("*", "anything\nat all", True), ("{read,write}_*", "write_x", True),
    ("{read,write}_*", "delete_x", False), (r"a\*", "a*", True), ("a^b$c|(d)+", "a^b$c|(d)+", True),
])  # fmt: skip
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
