"""What a pattern with references can cost is known at the start, and nothing costs more."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given

from mcp_tool_filter.jsregex.automaton import Alphabet
from mcp_tool_filter.jsregex.cost import MOST_STEPS, Allowance, most_scan_steps, most_steps
from mcp_tool_filter.jsregex.matcher import Matcher
from mcp_tool_filter.jsregex.program import captures_of, compile_program
from mcp_tool_filter.jsregex.run import Backtracker, Scan
from mcp_tool_filter.jsregex.safety import is_safe
from mcp_tool_filter.jsregex.syntax import NotJavaScript, Regex, parse_regex
from mcp_tool_filter.jsregex.tree import WORD, Reference, Unit, anchored, walk
from tests.jsregex.javascript import long_names, patterns, patterns_that_refer_back


class CountingBacktracker:
    """Counts the steps that matching takes, and those it could take."""

    def __init__(self, regex: Regex) -> None:
        program = compile_program(regex.root, for_scan=False, groups=regex.groups)
        units = [node.chars for node in walk(regex.root) if isinstance(node, Unit)]
        captures, is_anchored = captures_of(regex.groups), anchored(regex.root)
        self.bound = most_steps(program, captures=captures, anchored=is_anchored)
        self._allowance = Counting()
        self._backtracker = Backtracker(
            program,
            Alphabet([WORD, *units]),
            self._allowance,
            captures=captures,
            anchored=is_anchored,
            remembers=True,
        )

    def steps_for(self, name: str) -> float:
        self._allowance.steps = 0
        self._backtracker.search(name)
        return self._allowance.steps


class Counting(Allowance):
    """300 steps are paid for at once, with 1000."""

    steps = 0

    def spend(self, steps: int) -> None:
        self.steps += 300 * (steps == 1000)


@given(pattern=patterns_that_refer_back(), name=long_names())
def test_the_cost_of_any_name_is_within_the_bound(pattern: str, name: str) -> None:
    try:
        regex = parse_regex(pattern)
    except NotJavaScript:
        assume(False)
    assume(is_safe(regex.root))
    counting = CountingBacktracker(regex)
    assume(counting.bound <= MOST_STEPS)
    assert counting.steps_for(name) <= counting.bound + 300


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\w+)_\1_\1",
        r"(?:(a)|b)*\1c",
        r"^(?!.*(.).*\1)",
        r"(.)\1+",
        r"^(\w+)_\w+_\1$",
        r"^(?=(a+))\1$",
        r"^(a|b|ab)\1*$",
        r"(?<=\1(a))b",
        r"^(?:(a)|(b))*\1\2$",
        r"(?<x>a)(?<y>b)\k<y>\k<x>",
    ],
)
def test_patterns_that_can_be_judged_in_time_are_accepted(pattern: str) -> None:
    assert Matcher(parse_regex(pattern)).is_affordable()


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\w+).*\1",
        r"(\w+)_(\w+)_\2_\1",
        r"^(\w+)_(\w+)_(\w+)_\1$",
        r"(?:(a)|b)*.*\1c",
        r"(?<=(\w+))\1",
        r"^(?:(a)|b)*(?=.*\1)(?=.*\1)c",
    ],
)
def test_cubic_patterns_are_refused(pattern: str) -> None:
    assert not Matcher(parse_regex(pattern)).is_affordable()


NAMES_OF_TOOLS = [f"{verb}_{noun}" for verb in ("get", "list", "make") for noun in "abcdefgh" * 20]


@given(pattern=patterns(), name=long_names())
@example("(?:.{0,80}a){3}x$", "a" * 256)
@example("(?<=a(?=.*b).*)c", "ab" * 128)
def test_the_scans_cost_of_any_name_is_within_the_bound(pattern: str, name: str) -> None:
    try:
        regex = parse_regex(pattern)
    except NotJavaScript:
        assume(False)
    assume(is_safe(regex.root))
    assume(not any(isinstance(node, Reference) for node in walk(regex.root)))
    units = [node.chars for node in walk(regex.root) if isinstance(node, Unit)]
    alphabet, allowance = Alphabet([WORD, *units]), Spending()
    program = compile_program(regex.root, for_scan=True, longest=256)
    Scan(program, alphabet, allowance).search([alphabet.letters[char] for char in name])
    assert allowance.steps <= most_scan_steps(program, alphabet)


class Spending(Allowance):
    steps = 0

    def spend(self, steps: int) -> None:
        self.steps += steps


@pytest.mark.parametrize(
    "pattern",
    [
        f"^(?:{'|'.join(f'.*_{name}' for name in NAMES_OF_TOOLS)})$",
        ".{0,1000}x.{0,1000}y$",
        "(?:a{0,200}b){3}x",
    ],
    ids=["tools", "counts", "copies"],
)
def test_patterns_that_the_scan_can_judge_in_time_are_accepted(pattern: str) -> None:
    assert Matcher(parse_regex(pattern)).is_affordable()


def test_patterns_that_the_scan_cannot_judge_in_time_are_refused() -> None:
    wide = "|".join(f".*{first}.{{0,40}}{last}" for first in "abcdefgh" for last in "abcdefgh")
    assert is_safe(parse_regex(f"^(?:{wide})$").root)
    assert not Matcher(parse_regex(f"^(?:{wide})$")).is_affordable()


def test_an_unreferenced_capture_costs_nothing() -> None:
    """Remembered with it, every place would have to be tried once more for each capture."""
    few, many = (
        CountingBacktracker(parse_regex(text)).bound for text in ("^(a)*(b)\\2", "^(?:a)*(b)\\1")
    )
    assert few == many
