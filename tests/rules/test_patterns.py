"""The patterns of rules meet texts of any length; what is quick for long ones finds the same."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.jsregex.cost import Budget
from mcp_tool_filter.rules.fields import parse_rule_pattern

PATTERNS = [
    "^/etc", "secret$", "a+b", "(sk|ghp)-[a-z]{3,}", r"\bkey\b", "x(?=y)", "(?<!n)o", "[^a-z ]",
    r"\d{3}-\d{2}", "^a(b|c)*$", "é", "[à-ü]x", r"\x41b", ".b.c",
]  # fmt: skip
PIECES = ["/etc", "secret", "aab", "sk-abc", " key ", "xy", "no", "o", "1", "123-45", "abcbc", "é",
          "éx", "Ab", "kbxc", "a", " ", "😀"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=6), before=st.booleans())
def test_a_long_text_is_searched_like_a_short_one(
    pattern: str, pieces: list[str], before: bool
) -> None:
    """Python reads these patterns as JavaScript does."""
    found = "".join(pieces)
    text = "z" * 300 + found if before else found + "z" * 300
    expected = re.search(pattern, text, re.ASCII) is not None
    assert parse_rule_pattern(pattern).is_in(text, Budget()) is expected


def test_a_text_without_the_required_part_is_rejected_quickly() -> None:
    """Else a client could keep everyone waiting with one long argument and many rules."""
    text = "a" * 4_000_000
    quick, slow = parse_rule_pattern("^/etc"), parse_rule_pattern("b.c|d.e")

    def seconds(pattern: str) -> float:
        one = parse_rule_pattern(pattern)
        begun = process_time()
        assert not one.is_in(text, Budget())
        return process_time() - begun

    assert quick.required == "/etc"
    assert slow.required == ""
    assert seconds("^/etc") * 10 < seconds("b.c|d.e")
