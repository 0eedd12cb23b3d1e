"""Matching means ``RegExp.prototype.test``, in whichever way it is done."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from jsregex.cost import Budget, TooCostly
from jsregex.matcher import Matcher, alphabet_of
from jsregex.program import compile_program
from jsregex.scan import Scan
from jsregex.syntax import Regex, parse_regex
from jsregex.tree import groups_referred_to, to_units
from tests.jsregex.javascript import (
    Node,
    backtracker,
    long_names,
    names,
    parse_safe,
    patterns,
    patterns_that_refer_back,
    recorded,
)


def matches(pattern: str, name: str) -> bool:
    return Matcher(parse_regex(pattern)).search(name)


def answers_of_every_way(regex: Regex, name: str) -> set[bool]:
    """Return what each machine says, also where another one would be taken."""
    text = to_units(name)
    answers = {Matcher(regex).search(name), backtracker(regex).search(text, Budget())}
    if not groups_referred_to(regex.root):
        alphabet = alphabet_of(regex.root)
        scan = Scan(compile_program(regex.root, for_scan=True), alphabet)
        answers.add(scan.search(alphabet.read(text), Budget()))
    return answers


def test_every_recorded_match_is_the_same() -> None:
    disagreed = [
        (row.pattern, name)
        for row in recorded()
        for name in row.matches + row.misses
        if answers_of_every_way(parse_regex(row.pattern), name) != {name in row.matches}
    ]
    assert disagreed == []


@given(pattern=patterns(), name=names())
def test_node_matches_what_we_match(node: Node, pattern: str, name: str) -> None:
    regex = parse_safe(pattern)
    assert [Matcher(regex).search(name)] == node.ask(pattern, name)


@given(pattern=patterns(), name=names())
@example("(?:a|){2}b", "ab")
@example(r"(?<!^|\b.)a", "aaa")
def test_every_way_of_matching_gives_the_same_answer(pattern: str, name: str) -> None:
    assert len(answers_of_every_way(parse_safe(pattern), name)) == 1


@given(pattern=patterns_that_refer_back(), names=st.lists(long_names(), min_size=1, max_size=5))
@example(r"(\w+)_\1_\1", ["ab_" * 85])
@example(r"(?=(a+?))\1b", ["a" * 255 + "b"])
@example(r"(?=(a))?\1b", ["b"])
@example(r"(?:(a)|b)*\1c", ["ab" * 128])
def test_node_matches_long_names_as_we_do(node: Node, pattern: str, names: list[str]) -> None:
    """An accepted pattern is never given up on a name that may be exposed."""
    matcher = Matcher(parse_safe(pattern))
    assume(matcher.is_affordable())
    assert [matcher.search(name) for name in names] == node.ask(pattern, *names)


@pytest.mark.parametrize(("pattern", "name", "expected"), [
    ("^(?:get|set)*$", "get" * 10_000, True),
    ("^(?:get|set)*$", "get" * 10_000 + "!", False),
    (r"^\w*_\w*_\w*$", "_a" * 100_000, True),
    ("(?<!safe_)delete", "safe_delete" * 10_000, False),
    ("(?=.*x)y", "y" * 100_000, False),
])  # fmt: skip
def test_a_long_name_is_matched_in_one_pass(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) == expected


@pytest.mark.parametrize(("pattern", "name"), [
    ("x", "a" * 1_000_001), (r"(a*)\1b", "a" * 5_000),
    (r"^(?!.*(.).*\1)", "".join(map(chr, range(0x4E00, 0x6E00)))),
    ("a{2000}", "a" * 3_000), ("x(?=a{2000})", "a" * 3_000),
])  # fmt: skip
def test_a_name_that_would_cost_too_much_is_not_judged(pattern: str, name: str) -> None:
    """Never a wrong answer: the caller decides what it means."""
    with pytest.raises(TooCostly):
        matches(pattern, name)


def test_a_list_of_costly_names_takes_nothing_from_the_next_name() -> None:
    matcher = Matcher(parse_regex(r"(?:(a)|b)*\1c"))
    for _ in range(1_000):
        assert not matcher.search("ab" * 128)
    assert matcher.search("aac")
