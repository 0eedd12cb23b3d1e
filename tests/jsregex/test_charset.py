"""Ignoring case means what JavaScript's flag ``i`` does."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.syntax import parse_regex
from tests.jsregex.javascript import Node, names, parse_safe, patterns

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
