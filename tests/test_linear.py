"""Every regex of the product takes linear time, whatever text it gets.

All calls of ``re`` in the package are collected from its source, so a new one cannot be forgotten.
Each pattern is proven for what its module does with it: a search that may begin anywhere costs more
than a match at the start.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mcp_tool_filter
from tests.regexes import Use, steps_grow

PACKAGES = Path(mcp_tool_filter.__file__).parents[1]
METHODS = {
    "match": Use.MATCH,
    "fullmatch": Use.FULL,
    "search": Use.SEARCH,
    "finditer": Use.EACH,
    "findall": Use.EACH,
    "sub": Use.EACH,
    "subn": Use.EACH,
    "split": Use.EACH,
}
"""Of ``re``, and of patterns."""
MOST = 1.8  # 1 and a loop of at most 64 rounds

SHORT = {
    "_GLOB_PIECE": "reads what the operator has typed",
    "_PIECE": "reads what the operator has typed",
    "_UNKNOWN_TOOL": "reads at most 4,096 characters",
    "_UNSEEN": "reads our own docs",
    "_WORD": "reads at most 200 characters of a name",
}
"""Patterns that need no proof."""

ONCE = {
    "_ASSIGNED": "begins where the one before has ended, until there is none",
    "_BEFORE_VALUE": "begins at each member of an object",
    "_CHUNK": "begins behind a chunk, and at most 4 KB wait there",
    "_HEAD": "begins at the start, and reads at most 512 bytes",
    "_KEY": "begins behind a value",
    "_AFTER_VALUE": "begins behind a value",
    "_KEY_ENDS": "begins behind a string",
    "_NOTHING": "begins behind an event; a line that goes on is searched for its end only",
    "_PART": "begins where the one before has ended, until there is none",
    "_REST_OF_LINE": "begins at one place of each edit",
    "_BLANK_REST": "begins behind an item",
    "_BLANKS": "begins behind an item",
}
"""Patterns that match at more places than the start, but read no text again and again."""

MADE = {
    "_COULD_CARRY": "one word, or one character",
    "_python": "a pattern that jsregex has proven",
    "_with_literal_in": "words, one of which is searched for",
    "_multipart": "one word",
    "_without_values": "one word, and what follows it",
    "with_flags": "reads our own sentences",
    "doubled": "a pattern that is proven where it is declared, or a dollar",
}
"""Functions that make a pattern at run time, and why it is linear."""


@dataclass(frozen=True)
class Regex:
    """One call of ``re``, and how its pattern is used."""

    place: str
    name: str
    pattern: re.Pattern[Any] | None
    """None if it is made at run time."""
    uses: frozenset[Use] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Module:
    path: Path
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    names: dict[str, Any]


@cache
def modules() -> Sequence[Module]:
    found = []
    for path in sorted(PACKAGES.rglob("*.py")):
        parts = path.relative_to(PACKAGES).with_suffix("").parts
        dotted = ".".join(parts)
        tree = ast.parse(path.read_text("utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        is_part = path.parent != PACKAGES and path.stem != "__main__" and "docs" not in parts
        names = vars(importlib.import_module(dotted)) if is_part else {"re": re}
        found.append(Module(path, tree, parents, names))
    return found


def regexes() -> Iterator[Regex]:
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _is_of_re(node.func):
                yield _regex(module, node)


def _is_of_re(called: ast.AST) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id == "re"
        and called.attr in {*METHODS, "compile"}
    )


def _regex(module: Module, call: ast.Call) -> Regex:
    assert isinstance(call.func, ast.Attribute)
    place = f"{module.path.relative_to(PACKAGES)}:{call.lineno}"
    function = _function_around(module, call)
    pattern = _evaluated(module, call)
    if call.func.attr != "compile":
        return Regex(place, function, pattern, frozenset({METHODS[call.func.attr]}))
    if pattern is None:
        return Regex(place, function or _name_of(module, call), None)
    name, uses = _uses_of(module, call)
    return Regex(place, name, pattern, frozenset(uses))


def _function_around(module: Module, node: ast.AST) -> str:
    while node in module.parents:
        node = module.parents[node]
        if isinstance(node, ast.FunctionDef):
            return node.name
    return ""


def _name_of(module: Module, node: ast.AST) -> str:
    """Return the name of the constant that a node is part of."""
    while not isinstance(node, ast.Assign):
        node = module.parents[node]
    assert isinstance(node.targets[0], ast.Name)
    return node.targets[0].id


def _evaluated(module: Module, call: ast.Call) -> re.Pattern[Any] | None:
    assert isinstance(call.func, ast.Attribute)
    given = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
    flags = [one.value for one in call.keywords if one.arg == "flags"] or call.args[given:]
    made = ast.Call(ast.parse("re.compile", mode="eval").body, [call.args[0], *flags], [])
    code = ast.fix_missing_locations(ast.Expression(made))
    try:
        found = eval(compile(code, str(module.path), "eval"), dict(module.names))
    except NameError:
        return None
    assert isinstance(found, re.Pattern)
    return found


def _uses_of(module: Module, node: ast.AST) -> tuple[str, set[Use]]:
    """Return the name that a pattern gets, and what is done with it; all if that is unclear."""
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute):  # re.compile(…).fullmatch
        return "", {METHODS[parent.attr]} | _moves(module, parent)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
    elif isinstance(parent, ast.AnnAssign) and isinstance(parent.target, ast.Name):
        name = parent.target.id
    else:
        return "", {Use.EACH, Use.FULL}
    known = (one for one in modules() if isinstance(one.names.get(name), re.Pattern))
    where = [module] if name.startswith("_") else known
    return name, {use for one in where for use in _uses_in(one, name)}


def _uses_in(module: Module, name: str) -> Iterator[Use]:
    for node in ast.walk(module.tree):
        is_name = isinstance(node, ast.Name) and node.id == name
        if not is_name and not (isinstance(node, ast.Attribute) and node.attr == name):
            continue
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            continue
        parent = module.parents[node]
        if isinstance(parent, ast.IfExp):
            parent = module.parents[parent]
        if isinstance(parent, ast.Attribute) and parent.attr in METHODS:
            yield METHODS[parent.attr]
            yield from _moves(module, parent)
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            yield from _uses_in(module, parent.targets[0].id)
        elif not (isinstance(parent, ast.Attribute) and parent.attr == "pattern"):
            yield from (Use.EACH, Use.FULL)


def _moves(module: Module, method: ast.Attribute) -> set[Use]:
    """Return EACH for a match that begins at a place in the text, which may be many places."""
    call = module.parents[method]
    if not isinstance(call, ast.Call) or call.func is not method or method.attr == "fullmatch":
        return set()
    at = call.args[1] if len(call.args) > 1 else None
    is_start = at is None or (isinstance(at, ast.Constant) and at.value == 0)
    return set() if is_start else {Use.EACH}


def test_every_regex_is_linear() -> None:
    assert list(_slow()) == []


def _slow() -> Iterator[str]:
    for one in regexes():
        if one.pattern is None or one.name in SHORT:
            continue
        uses = one.uses - {Use.EACH} | {Use.MATCH} if one.name in ONCE else one.uses
        for use in uses:
            if (growth := steps_grow(one.pattern, use)) > MOST:
                yield f"{one.place} {one.name} {use.value}: {growth:.1f}"


def test_a_regex_that_is_made_at_run_time_is_known() -> None:
    assert {one.name for one in regexes() if one.pattern is None} == set(MADE)


def test_the_exceptions_exist() -> None:
    names = {one.name for one in regexes()}
    assert names >= {*SHORT, *ONCE}


def test_there_is_no_other_way_to_a_regex() -> None:
    """What imports ``re`` under another name, or another engine, would not be collected."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in {"re", "regex", "re2"}, module.path
            elif isinstance(node, ast.Import):
                names = {one.name: one.asname for one in node.names}
                assert not {"regex", "re2"} & set(names), module.path
                assert names.get("re") is None, module.path


@pytest.mark.parametrize(
    ("pattern", "use", "growth"),
    [
        (r"(?:amzn?|amz)-", Use.MATCH, 0),
        (r"(?:(?:amzn?|amz)-)*id", Use.FULL, float("inf")),
        (r"(?:amzn?-)*id", Use.FULL, 1),
        (r"<[^>]*>", Use.SEARCH, 2),
        (r"<[^<>]*>", Use.SEARCH, 1),
        (r"<[^>]*>?", Use.EACH, 1),
        (r"[ \t]*x", Use.SEARCH, 2),
        (r"[ \t]*x", Use.MATCH, 1),
        (r"(?<![ \t])[ \t]*x", Use.SEARCH, 1),
        (r"\S*hmac\S*\s", Use.MATCH, 2),
        (r"skill:/*(?:.*/)?index", Use.MATCH, 2),
        (r"a(?:.*b)?", Use.SEARCH, 1),
        (r"a(?:.*b)?", Use.EACH, 2),
        (r"(?s).*(?:user|tenant).*", Use.FULL, 1),
        (r".*(?:user|tenant).*", Use.FULL, 2),  # a line feed would let it fail
        (r'"(?:[^"\\]|\\.)*"', Use.EACH, 2),
        (r'"(?:[^"\\]|\\.)*"?', Use.EACH, 1),
        (r'"(?:[^"\\]++|\\.)*+"', Use.MATCH, 1),
        (r"(?:a*+b)*+c", Use.MATCH, 1),
        (r"a*+[ab]*c", Use.MATCH, 2),
    ],
)
def test_the_proof_finds_what_grows(pattern: str, use: Use, growth: float) -> None:
    assert steps_grow(re.compile(pattern), use) == growth
