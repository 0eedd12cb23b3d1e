r"""Python's regexes as the trees of our JavaScript regexes, to prove that they are linear.

>>> from re import compile
>>> [steps_grow(compile(text), Use.SEARCH) for text in (r"a+b", r"(?<!a)a+b", r"(a|a)*b")]
[2, 1, inf]

The number is the exponent: twice the text takes 2, 4 or 8 times as long.

Where Python knows more than JavaScript, the tree may match more, and then costs more:

- ``a++`` is ``a+``: it only cuts ways off. If an ``a`` may follow, a match counts as never certain.
  ``(?:[^"]++|"")*`` is ``(?:[^"]|"")*``.
- All characters above U+FFFF are one.
- A look behind at one character, at the start of a search, is a character before the match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from itertools import product
from math import inf
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from jsregex import safety
from jsregex.automaton import Automaton, TooManyEdges, follow
from jsregex.safety import count_loops
from jsregex.tree import (
    EMPTY,
    EVERYTHING,
    LAST_UNIT,
    Alternation,
    CharSet,
    Edge,
    Look,
    Node,
    Reference,
    Repeat,
    Sequence,
    Unit,
    anchored,
    invert,
    union,
)


class Use(Enum):
    """What a regex is used for."""

    MATCH = "match"  # at the start of a text
    FULL = "fullmatch"
    SEARCH = "search"
    EACH = "finditer"  # and sub, split: a match ends a search, and begins the next one


def steps_grow(pattern: re.Pattern[Any], use: Use) -> float:
    """Return the exponent with which the steps of a match grow with the text."""
    translation = _Translation(pattern, searches=use in (Use.SEARCH, Use.EACH))
    root = _with_end(translation.root) if use is Use.FULL else translation.root
    try:
        return _degree(root, use, is_wider=translation.is_wider)
    except TooManyEdges:
        return inf


def _with_end(node: Node) -> Node:
    """Return the tree with the end of the text behind it, unless it reads everything anyway."""
    match node:
        case Sequence((*items, last)):
            return Sequence((*items, _with_end(last)))
        case Alternation(options):
            return Alternation(tuple(map(_with_end, options)))
        case Repeat(Unit(chars), _, None) if chars == EVERYTHING:
            return node
        case Repeat(body, 0, 1):
            return Alternation((_with_end(body), Edge.END))
    return Sequence((node, Edge.END))


def _degree(root: Node, use: Use, *, is_wider: bool, backward: bool = False) -> float:
    searches = use in (Use.SEARCH, Use.EACH)
    automaton = follow(root, search=searches and not anchored(root), backward=backward)
    automaton.conditional |= is_wider
    loops = safety._loops(automaton)
    if any(safety._is_exponential(automaton, loop) for loop in loops):
        return inf
    if safety._most_ways(automaton, loops) > safety._FEW_WAYS:
        return inf
    looks = (
        _degree(look.body, Use.MATCH, is_wider=True, backward=look.behind)
        for look in automaton.others
    )
    return _longest_chain(automaton, loops, use) + max(looks, default=0)


def _longest_chain(automaton: Automaton, loops: list[set[int]], use: Use) -> float:
    """Return how many loops one after the other can share a text."""
    longest: list[float] = []
    for number, loop in enumerate(loops):  # loops that this one leads to come earlier
        weight = safety._weight(automaton, loop)
        reached = safety._reach(automaton, loop)
        degree = weight
        for other, later in enumerate(loops[:number]):
            if longest[other] + weight > degree and not reached.isdisjoint(later):
                places = product(loop, later)
                shares = any(_share(automaton, loop, later, *both, use) for both in places)
                degree = max(degree, longest[other] + weight if shares else longest[other])
        longest.append(degree)
    return max(longest, default=0)


def _share(
    automaton: Automaton, loop: set[int], later: set[int], start: int, end: int, use: Use
) -> bool:
    sharing = safety._Sharing(automaton, loop, later, start, end)
    if use is not Use.EACH or automaton.conditional:
        return sharing.can() and not _can_only_succeed(automaton, start)
    # What a match has read belongs to it if the later loop may end after each round.
    text = sharing._find_text()
    return text is not None and not safety._succeeds(automaton, end, text)


def _can_only_succeed(automaton: Automaton, start: int) -> bool:
    return all(safety._always_succeeds(automaton, one) for one in safety._reach(automaton, {start}))


class _Translation:
    def __init__(self, pattern: re.Pattern[Any], *, searches: bool) -> None:
        self._searches = searches
        self.is_wider = False
        """Whether the tree may match where the pattern does not."""
        parsed = parser.parse(pattern.pattern, pattern.flags)
        self.root = self._sequence(list(parsed), pattern.flags, (), first=True)

    def _sequence(
        self, items: list[Any], flags: int, after: CharSet, *, first: bool = False
    ) -> Node:
        nodes: list[Node] = []
        for number, (what, value) in enumerate(items):
            leading = first and all(map(_is_without_width, items[:number]))
            follows = _first_of(items[number + 1 :], flags, after)
            nodes.append(self._node(what, value, flags, follows, first=leading))
        return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))

    def _node(self, what: Any, value: Any, flags: int, after: CharSet, *, first: bool) -> Node:
        if what in _UNITS:
            return Unit(_chars(what, value, flags))
        if what is op.BRANCH:
            ways = [self._sequence(list(one), flags, after, first=first) for one in value[1]]
            return Alternation(tuple(ways))
        if what is op.SUBPATTERN:
            _, added, removed, body = value
            return self._sequence(list(body), flags & ~removed | added, after, first=first)
        if what in _REPEATS:
            return self._repeat(what, value, flags, after)
        if what is op.AT:
            return self._edge(value, flags, after, first=first)
        if what in (op.ASSERT, op.ASSERT_NOT):
            return self._look(what, value, flags, first=first)
        if what is op.GROUPREF:
            return Reference(value)
        raise ValueError(f"cannot translate {what}")

    def _repeat(self, what: Any, value: Any, flags: int, after: CharSet) -> Node:
        least, most, body = value
        most = None if most is op.MAXREPEAT else most
        begins = _first_of(list(body), flags, ())
        if what is op.POSSESSIVE_REPEAT and (most is not None or _meet(begins, after)):
            self.is_wider = True
        if most is None and len(body) == 1:
            body = [_without_inner_loop(*body[0])]
        return Repeat(self._sequence(list(body), flags, union(begins, after)), least, most)

    def _edge(self, where: Any, flags: int, after: CharSet, *, first: bool) -> Node:
        if first and self._searches:
            if where is op.AT_BEGINNING and flags & re.MULTILINE:
                return Alternation((Edge.START, Unit(_range(10, 10))))
            word = _category(op.CATEGORY_WORD, bool(flags & re.UNICODE))
            if where is op.AT_BOUNDARY and not _meet(invert(word), after):
                return Alternation((Edge.START, Unit(invert(word))))
        if where is op.AT_BEGINNING_STRING:
            return Edge.START
        if where is op.AT_END_STRING:
            return Edge.END
        if where is op.AT_BEGINNING:
            return Edge.NOT_WORD if flags & re.MULTILINE else Edge.START
        if where is op.AT_END:
            return Edge.NOT_WORD if flags & re.MULTILINE else Edge.END
        return Edge.NOT_WORD if where is op.AT_NON_BOUNDARY else Edge.WORD

    def _look(self, what: Any, value: Any, flags: int, *, first: bool) -> Node:
        direction, body = value[0], list(value[1])
        negated, behind = what is op.ASSERT_NOT, direction < 0
        if behind and len(body) == 1 and body[0][0] is op.AT:
            return self._edge(body[0][1], flags, (), first=False)
        if behind and first and self._searches:
            if not negated:
                return self._sequence(body, flags, EVERYTHING)
            (unit, char), *others = body
            if not others and unit in _UNITS:
                return Alternation((Edge.START, Unit(invert(_chars(unit, char, flags)))))
        look = Look(self._sequence(body, flags, EVERYTHING), behind, negated)
        # What is asked once, at the start, and without a loop, changes nothing that comes later.
        is_at_start = first and not self._searches and not behind
        return EMPTY if is_at_start and count_loops(look) == 0 else look


_UNITS = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_WITHOUT_WIDTH = (op.AT, op.ASSERT, op.ASSERT_NOT)


def _is_without_width(item: Any) -> bool:
    return item[0] in _WITHOUT_WIDTH


def _meet(one: CharSet, other: CharSet) -> bool:
    return any(low <= to and at <= high for low, high in one for at, to in other)


def _first_of(items: list[Any], flags: int, after: CharSet) -> CharSet:
    """Return the characters with which these items may begin, and what is after them."""
    if not items:
        return after
    (what, value), *rest = items
    if what in _UNITS:
        return _chars(what, value, flags)
    if what is op.BRANCH:
        return union(*(_first_of([*one, *rest], flags, after) for one in value[1]))
    if what is op.SUBPATTERN:
        _, added, removed, body = value
        inner = flags & ~removed | added
        return union(_first_of(list(body), inner, _first_of(rest, flags, after)))
    if what in _REPEATS:
        begins = _first_of(list(value[2]), flags, _first_of(rest, flags, after))
        return begins if value[0] else union(begins, _first_of(rest, flags, after))
    if what is op.ASSERT and value[0] > 0:
        return _first_of(list(value[1]), flags, EVERYTHING)
    return _first_of(rest, flags, after) if what is op.AT else EVERYTHING


def _without_inner_loop(what: Any, value: Any) -> tuple[Any, Any]:
    """Return the body of a loop with ``a`` in the place of each ``a++`` that is a whole way round.

    The next round cannot begin with an ``a``.
    """
    if what is op.SUBPATTERN:
        *more, body = value
        return what, (
            *more,
            [_without_inner_loop(*one) for one in body] if len(body) == 1 else body,
        )
    if what is op.BRANCH:
        ways = [[_without_inner_loop(*way[0])] if len(way) == 1 else way for way in value[1]]
        return what, (None, ways)
    if what is op.POSSESSIVE_REPEAT and value[0] == 1 and len(value[2]) == 1:
        inner = value[2][0]
        return inner if inner[0] in _UNITS else (what, value)
    return what, value


def _chars(what: Any, value: Any, flags: int) -> CharSet:
    if what is op.ANY:
        return EVERYTHING if flags & re.DOTALL else invert(((10, 10),))
    if what is op.IN:
        negated = value[0][0] is op.NEGATE
        chars = union(*(_items(item, flags) for item in value[negated:]))
    else:
        negated, chars = what is op.NOT_LITERAL, _range(value, value)
    if flags & re.IGNORECASE:
        chars = _both_cases(chars)
    if not negated:
        return chars
    beyond = ((LAST_UNIT, LAST_UNIT),)  # a set never has all of these
    return union(invert(chars), beyond)


def _items(item: Any, flags: int) -> CharSet:
    what, value = item
    if what is op.LITERAL:
        return _range(value, value)
    if what is op.RANGE:
        return _range(*value)
    return _category(value, bool(flags & re.UNICODE))


def _range(low: int, high: int) -> CharSet:
    return ((min(low, LAST_UNIT), min(high, LAST_UNIT)),)


_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


@cache
def _category(name: Any, is_unicode: bool) -> CharSet:
    one = re.compile(_CATEGORIES[name], 0 if is_unicode else re.ASCII)
    codes = (code for code in range(LAST_UNIT + 1) if one.match(chr(code)))
    return union(tuple([(code, code) for code in codes]))


@cache
def _both_cases(chars: CharSet) -> CharSet:
    codes = [code for low, high in chars for code in range(low, high + 1)]
    if len(codes) > LAST_UNIT // 2:
        return chars  # sets of nearly all characters have both cases
    return union(chars, tuple(_other_cases(codes)))


def _other_cases(codes: Iterable[int]) -> Iterator[tuple[int, int]]:
    for code in codes:
        for other in _others_of(chr(code)):
            if len(other) == 1 and ord(other) <= LAST_UNIT:
                yield ord(other), ord(other)


def _others_of(char: str) -> Iterator[str]:
    yield from (char.lower(), char.upper(), char.casefold())
    yield from {"k": "\u212a", "s": "\u017f", "i": "\u0130\u0131"}.get(char.lower(), "")
