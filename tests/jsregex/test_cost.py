"""What a pattern with references can cost is known at the start, and nothing costs more."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given

from jsregex.backtrack import _PRICE, _STEPS_AT_ONCE
from jsregex.cost import MOST_STEPS, Budget, most_scan_steps, most_steps
from jsregex.matcher import Matcher, alphabet_of
from jsregex.program import captures_of, compile_program
from jsregex.safety import is_safe
from jsregex.scan import Scan
from jsregex.syntax import Regex, parse_regex
from jsregex.tree import anchored, groups_referred_to
from tests.jsregex.javascript import (
    backtracker,
    long_names,
    parse_safe,
    patterns,
    patterns_that_refer_back,
)
from tests.rows import each_row


def bound_of(regex: Regex) -> int:
    program = compile_program(regex.root, for_scan=False, groups=regex.groups)
    captures = captures_of(regex.groups)
    return most_steps(program, captures=captures, anchored=anchored(regex.root))


class Counting(Budget):
    """Counts what is spent, and the steps that a backtracker pays for in advance."""

    spent = steps_of_backtracker = 0

    def spend(self, steps: int) -> None:
        self.spent += steps
        self.steps_of_backtracker += _STEPS_AT_ONCE * (steps == _PRICE)


@given(pattern=patterns_that_refer_back(), name=long_names())
def test_the_cost_of_any_name_is_within_the_bound(pattern: str, name: str) -> None:
    regex, counting = parse_safe(pattern), Counting()
    bound = bound_of(regex)
    assume(bound <= MOST_STEPS)
    backtracker(regex, remembers=True).search(name, counting)
    assert counting.steps_of_backtracker <= bound + 2 * _STEPS_AT_ONCE


@pytest.mark.parametrize("pattern", [
    r"(\w+)_\1_\1", r"(?:(a)|b)*\1c", r"^(?!.*(.).*\1)", r"(.)\1+", r"^(\w+)_\w+_\1$",
    r"^(?=(a+))\1$", r"^(a|b|ab)\1*$", r"(?<=\1(a))b", r"^(?:(a)|(b))*\1\2$",
    r"(?<x>a)(?<y>b)\k<y>\k<x>",
])  # fmt: skip
def test_patterns_that_can_be_judged_in_time_are_accepted(pattern: str) -> None:
    assert Matcher(parse_regex(pattern)).is_affordable()


@each_row("pattern", [
    r"(\w+).*\1", r"(\w+)_(\w+)_\2_\1", r"^(\w+)_(\w+)_(\w+)_\1$", r"(?:(a)|b)*.*\1c",
    r"(?<=(\w+))\1", r"^(?:(a)|b)*(?=.*\1)(?=.*\1)c",
])  # fmt: skip
def test_cubic_patterns_are_refused(pattern: str) -> None:
    assert not Matcher(parse_regex(pattern)).is_affordable()


NAMES_OF_TOOLS = [f"{verb}_{noun}" for verb in ("get", "list", "make") for noun in "abcdefgh" * 20]


@given(pattern=patterns(), name=long_names())
@example("(?:.{0,80}a){3}x$", "a" * 256)
@example("(?<=a(?=.*b).*)c", "ab" * 128)
def test_the_scans_cost_of_any_name_is_within_the_bound(pattern: str, name: str) -> None:
    regex, counting = parse_safe(pattern), Counting()
    assume(not groups_referred_to(regex.root))
    alphabet = alphabet_of(regex.root)
    program = compile_program(regex.root, for_scan=True, longest=256)
    Scan(program, alphabet).search([alphabet.letters[char] for char in name], counting)
    assert counting.spent <= most_scan_steps(program, alphabet)


@pytest.mark.parametrize("pattern", [
    f"^(?:{'|'.join(f'.*_{name}' for name in NAMES_OF_TOOLS)})$",
    ".{0,1000}x.{0,1000}y$", "(?:a{0,200}b){3}x",
], ids=["tools", "counts", "copies"])  # fmt: skip
def test_patterns_that_the_scan_can_judge_in_time_are_accepted(pattern: str) -> None:
    assert Matcher(parse_regex(pattern)).is_affordable()


def test_patterns_that_the_scan_cannot_judge_in_time_are_refused() -> None:
    wide = "|".join(f".*{first}.{{0,40}}{last}" for first in "abcdefgh" for last in "abcdefgh")
    assert is_safe(parse_regex(f"^(?:{wide})$").root)
    assert not Matcher(parse_regex(f"^(?:{wide})$")).is_affordable()


def test_an_unreferenced_capture_costs_nothing() -> None:
    """Remembered with it, every place would have to be tried once more for each capture."""
    few, many = (bound_of(parse_regex(text)) for text in ("^(a)*(b)\\2", "^(?:a)*(b)\\1"))
    assert few == many
