"""JavaScript's own opinion: Node where there is one, and what Node 20 said once.

``javascript.jsonl`` holds patterns, whether ``new RegExp`` takes them, names that they match and
miss, and at times why: Python's ``re`` differs in many of them. ``safety.jsonl`` holds patterns
that recheck 4.5 (npm) proved to be exponential or harmless, generated like those in ``patterns``
below.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from jsregex.backtrack import Backtracker
from jsregex.matcher import alphabet_of
from jsregex.program import captures_of, compile_program
from jsregex.safety import is_safe
from jsregex.syntax import NotJavaScript, Regex, parse_regex
from jsregex.tree import anchored

_HERE = Path(__file__).parent

_ASK = """
require('readline').createInterface({input: process.stdin}).on('line', line => {
    const {pattern, names} = JSON.parse(line);
    let answer = null;
    try {
        const regex = new RegExp(pattern, process.argv[1] || '');
        answer = names.map(name => regex.test(name));
    } catch (error) { }
    console.log(JSON.stringify(answer));
});
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    pattern: str
    valid: bool
    matches: list[str]
    misses: list[str]


class Node:
    """A Node process that answers one question a line."""

    def __init__(self, program: str, flags: str = "") -> None:
        command = [program, "-e", _ASK, *([flags] if flags else [])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8")

    def ask(self, pattern: str, *names: str) -> list[bool] | None:
        """Return whether the pattern matches each of the names; None if it is no regex."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"pattern": pattern, "names": names}) + "\n")
        self._process.stdin.flush()
        answer: list[bool] | None = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


def running_node(flags: str = "") -> Iterator[Node]:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed: JavaScript cannot be asked")
    node = Node(program, flags)
    yield node
    node.close()


def recorded() -> list[Recorded]:
    lines = (_HERE / "javascript.jsonl").read_text("utf-8").splitlines()
    return [
        Recorded(one["pattern"], one["valid"], one.get("matches", []), one.get("misses", []))
        for one in map(json.loads, lines)
    ]


def labelled(label: str) -> list[str]:
    lines = (_HERE / "safety.jsonl").read_text("utf-8").splitlines()
    return [row["pattern"] for row in map(json.loads, lines) if row["class"] == label]


def parse_safe(pattern: str, *, ignore_case: bool = False) -> Regex:
    """Return a pattern that JavaScript can be asked about without waiting for ever."""
    try:
        regex = parse_regex(pattern, ignore_case=ignore_case)
    except NotJavaScript:
        assume(False)
    assume(is_safe(regex.root))
    return regex


def backtracker(regex: Regex, *, remembers: bool = False) -> Backtracker:
    return Backtracker(
        compile_program(regex.root, for_scan=False, groups=regex.groups),
        alphabet_of(regex.root),
        captures=captures_of(regex.groups),
        anchored=anchored(regex.root),
        remembers=remembers,
    )


_ATOMS = st.sampled_from([
    "a", "b", "ab", "_", "-", "x", "1", "é", "😀", "{", "}", "]", "a{,2}", ".", "[ab]", "[^a]",
    "[a-z]", "[]", "[^]", "[😀]", r"[\w.-]", "(?:)", "^", "$", r"\w", r"\d", r"\s", r"\W", r"\b",
    r"\B", r"\.", r"\1", r"\2", r"\ud83d", r"\u{2}", r"\x61", r"\141", r"\0", r"\cA", r"\c",
])  # fmt: skip
_COUNTS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}"])
_OPENINGS = st.sampled_from(["(?:", "(", "(?=", "(?!", "(?<=", "(?<!"])


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(smaller, max_size=4).map("".join)
    choices = st.lists(sequences, min_size=1, max_size=3).map("|".join)
    groups = st.builds("{}{})".format, _OPENINGS, choices)
    return choices | groups | st.builds("{}{}".format, groups | _ATOMS, _COUNTS)


def patterns() -> st.SearchStrategy[str]:
    """Patterns as people write them, and many unlikely ones."""
    return st.recursive(_ATOMS, _larger, max_leaves=12)


def _referring(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(smaller, min_size=1, max_size=3).map("".join)
    choices = st.lists(sequences, min_size=2, max_size=3).map("|".join)
    groups = st.builds("{}{})".format, st.just("(") | _OPENINGS, choices | sequences)
    return sequences | groups | st.builds("{}{}".format, groups, _COUNTS)


def patterns_that_refer_back() -> st.SearchStrategy[str]:
    """Patterns over few characters, so that long names often match, with groups and references."""
    atoms = st.sampled_from([
        "a", "b", "_", "ab", ".", "[ab]", ".*", "^", "$", r"\w", r"\w+", r"\b", r"\1", r"\1", r"\2",
    ])  # fmt: skip
    ends = st.sampled_from(["", "x", "$", r"\1", r"\1x"])
    return st.builds("{}({}){}{}".format, atoms, atoms, st.recursive(atoms, _referring), ends)


def long_names() -> st.SearchStrategy[str]:
    """Names of up to 256 characters: what matching can cost shows only there."""
    texts, rounds = st.text("ab_", min_size=1, max_size=8), st.integers(1, 256)
    long = st.builds(lambda text, times: (text * times)[:255], texts, rounds)
    return st.builds("{}{}".format, long, st.sampled_from("abx!"))


def nonsense() -> st.SearchStrategy[str]:
    """What might be a pattern."""
    letters = r"\\\()[]{}?*+|^$.-,:=!<>kuxcbdwps0189aN_"
    pieces = st.sampled_from([*letters, "(?<a>", r"\k<a>", "{1,2}"])
    return st.lists(pieces, max_size=9).map("".join)


def names() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from("ab_x1-. \né😀\ud83d"), max_size=8).map("".join)
