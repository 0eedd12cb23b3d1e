"""Unsafe means that backtracking over it could take forever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsregex.cost import Budget, TooCostly
from jsregex.safety import is_safe
from jsregex.syntax import Regex, parse_regex
from tests.jsregex.javascript import backtracker, labelled, parse_safe, patterns
from tests.rows import each_row

NAMES_OF_TOOLS = [f"{verb}_{noun}" for verb in ("get", "list", "make") for noun in "abcdefgh" * 20]


def is_pattern_safe(pattern: str) -> bool:
    return is_safe(parse_regex(pattern).root)


@pytest.mark.parametrize("pattern", ["(a+)+", "(a*)*", "^(?:[a-z]+_?)+$", "(?:a{2,}b)*", "(?=a+)*"])
def test_nested_unbounded_repetition_is_refused(pattern: str) -> None:
    """As npm's safe-regex2 has it, also where nothing could fail."""
    assert not is_pattern_safe(pattern)


@each_row("pattern", [
    "(a|a)*$", "(a|aa)+$", r"^(?:\w|\d)+x$", r"^(?:.|\s)*x", "^(?:a?b?)*x$", "^(?:ab|abab)*$",
    "^(?:(?:|)a)*$", "^(?:a|a)*?$", "^(?:[a-z_]|_[a-z])*$", "^(?:a|b|ab){13,}c", "^(?:a|aa){40}$",
    "^(?:a{0,40}){0,40}$", "^(?=(?:a|aa)*x)", "(?<!x(?:a|aa)*)$", r"^(a)(?:\1|a)*$",
    "^" + 25 * "a?" + "$", "^(?:a?){25}$", "^" + 25 * "(?:a|a)" + "$", "^" + 25 * "(?:|)" + "$",
    "^(?:(?:a|aa){12}){2}$",
    r"^(?:\w{1,30}|[^]){30}",  # ends anywhere, but not before the thirtieth round
])  # fmt: skip
def test_exponential_patterns_are_refused(pattern: str) -> None:
    assert not is_pattern_safe(pattern)


@each_row("pattern", [
    r"^\w*_\w*_\w*_\w*$", "^a*a*a*a*$",
    "a*a*a*$",  # the search is the fourth
    "^.*_.*_.*_.*_.*_.*$", "^(?=a*a*a*a*$)", r"(?:\w+\s?){12}$",
    r"^[^_]*\d*\d*(?:ab)*[a-z]*$",  # three share digits, and two share letters
    r"[a-z]*x(?:ab)*x(?:ab)*x\w*x[a-z]*xa*x",  # xxxx… would match, but not xabxabx…
    "^" + 6 * "a{0,40}" + "$",
])  # fmt: skip
def test_four_loops_over_the_same_text_are_refused(pattern: str) -> None:
    assert not is_pattern_safe(pattern)


@each_row("pattern", [
    "^delete_.*$", ".*_database$", "^(?!read_).*$", "^(?:(?!list_|get_).)*$", "^((?!read).)*$",
    "^(?:[a-z]+_)?delete$", "(?<!safe_)delete", "^(?=.*delete)(?=.*file).*$",
    r"^mcp__\w+__delete_\w+$", "^.*(?:delete|drop|truncate).*$", ".*admin.*delete.*",
    "^[A-Za-z0-9_.-]{1,128}$",
    "^[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}$",
    "^[a-z]+_[a-z]+_[a-z]+_[a-z]+_[a-z]+$", "^(?!.*(.).*\\1)", f"^(?:{'|'.join(NAMES_OF_TOOLS)})$",
    f"^(?!(?:{'|'.join(NAMES_OF_TOOLS)})$).*",
    f"^(?:{'|'.join(f'.*_{name}' for name in NAMES_OF_TOOLS)})$",
])  # fmt: skip
def test_common_patterns_are_accepted(pattern: str) -> None:
    assert is_pattern_safe(pattern)


@each_row("pattern", [
    "^(?:ab|ac)*d", r"^(?:\w|\W)*x$", r"^(?:\d\d|\d-)*$",
    "^(?:a|aa)*",  # ends anywhere
    r"^(?:.|\s)*$",  # matches everything
    r"^.*a.*a.*a.*a",  # fails only where there is little to share
    "^a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p?$", "a{1000}", "((((((((((a))))))))))" * 50,
])  # fmt: skip
def test_harmless_patterns_are_accepted(pattern: str) -> None:
    assert is_pattern_safe(pattern)


@pytest.mark.parametrize("pattern", [
    "(a" * 300 + r")\1" * 300, "(?:a{0,900}b){0,900}", "(?:" * 50 + "a?" + "){12}" * 50,
    f"^(?:{'|'.join('a' * 5_000)})*$", "^" + "(?:a|b?c)" * 5_000 + "$",
], ids=["deep", "long", "deep and long", "wide", "undecided"])  # fmt: skip
def test_patterns_too_large_to_judge_are_refused(pattern: str) -> None:
    assert not is_pattern_safe(pattern)


def test_all_exponential_patterns_found_by_recheck_are_refused() -> None:
    assert [pattern for pattern in labelled("exponential") if is_pattern_safe(pattern)] == []


def test_almost_all_patterns_that_recheck_found_harmless_are_accepted() -> None:
    harmless = labelled("harmless")
    refused = [pattern for pattern in harmless if not is_pattern_safe(pattern)]
    assert len(refused) / len(harmless) < 0.02


def search_backtracking(regex: Regex, text: str) -> bool:
    """Search as JavaScript's matcher does, which backtracks. Raises TooCostly."""
    return backtracker(regex).search(text, Budget(2_000_000))


def test_an_exponential_pattern_would_backtrack_without_end() -> None:
    """This is what we refuse; so the next test measures something."""
    with pytest.raises(TooCostly):
        search_backtracking(parse_regex("^(?:a|aa)*$"), 40 * "a" + "!")


@given(
    pattern=patterns(),
    pump=st.text("ab_x1", min_size=1, max_size=3),
    suffix=st.sampled_from(["", "!", "\n", "x"]),
)
def test_safe_patterns_are_fast_on_any_text(pattern: str, pump: str, suffix: str) -> None:
    search_backtracking(parse_safe(pattern), 40 * pump + suffix)
