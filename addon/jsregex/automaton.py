"""The alphabet of one pattern: characters that the pattern cannot tell apart share one letter.

>>> alphabet = Alphabet([((97, 122),), ((97, 97),)])
>>> [alphabet.letters[char] for char in "azA"]
[1, 2, 0]
>>> bin(alphabet.mask(((97, 122),)))
'0b110'

A tree as an automaton of positions: each place where a unit is consumed, and what follows it.

Unlike an automaton for matching, it counts in how many ways a backtracking matcher can get from one
position to the next. More than one way means ambiguity:

>>> from jsregex.syntax import parse_regex
>>> once = follow(parse_regex("^(?:a|b)*$").root)
>>> twice = follow(parse_regex("^(?:a?b?)*$").root)
>>> once.following, twice.following
([{0: 1, 1: 1}, {0: 1, 1: 1}], [{1: 2, 0: 1}, {0: 1, 1: 1}])

A look-ahead is a branch that leads nowhere: its ways are tried and cost steps, but none continues.
A look in the other direction gets its own automaton.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import inf

from jsregex.tree import (
    EVERYTHING,
    LAST_UNIT,
    Alternation,
    CharSet,
    Edge,
    Group,
    Look,
    Node,
    Reference,
    Repeat,
    Sequence,
    Unit,
    union,
    walk,
)


class _Letters(dict[str, int]):
    """The letter of each character, looked up once: there are at most 65,536."""

    def __init__(self, cuts: list[int]) -> None:
        self._cuts = cuts

    def __missing__(self, char: str) -> int:
        letter = self[char] = bisect_right(self._cuts, ord(char))
        return letter


class Alphabet:
    def __init__(self, sets: Iterable[CharSet]) -> None:
        edges = {edge for chars in sets for low, high in chars for edge in (low, high + 1)}
        self._cuts = sorted(edges - {0, LAST_UNIT + 1})
        self.size = len(self._cuts) + 1
        self.letters = _Letters(self._cuts)

    def read(self, text: str) -> abc.Sequence[int]:
        """Return which letter each character is."""
        table = self._ascii
        if table is not None and text.isascii():  # most long texts are; a hundred times as fast
            return text.encode().translate(table)
        return [self.letters[char] for char in text]

    @cached_property
    def _ascii(self) -> bytes | None:
        letters = [self.letters[chr(code)] for code in range(128)]
        return bytes([*letters, *bytes(128)]) if max(letters) < 256 else None

    def mask(self, chars: CharSet) -> int:
        """Return the letters of one of the sets, as the bits of a number."""
        bits = 0
        for low, high in chars:
            first, last = bisect_right(self._cuts, low), bisect_right(self._cuts, high)
            bits |= (2 << last) - (1 << first)
        return bits


def bits_of(number: int) -> list[int]:
    """Return which bits of a number are set, the lowest first."""
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


SMALL = 12  # a count up to this becomes copies; a higher count is treated as a loop
_EXACT_COPIES = 200  # of a single unit: copies without a choice cost nothing
_MOST_WAYS = 1_000_000
_MOST_EDGES = 100_000

# Conditions of a way, besides the units it consumes.
_FREE, _AT_START, _AT_END, _OTHER = 0, 1, 2, 4

type _Ways = dict[tuple[int, int], int]  # (position, condition) to number of ways


class TooManyEdges(Exception):
    """The automaton would have too many edges to be judged."""


@dataclass(slots=True)
class Automaton:
    letters: list[int] = field(default_factory=list)  # of each position, as bits
    following: list[dict[int, int]] = field(default_factory=list)  # position to number of ways
    rounds: list[float] = field(default_factory=list)  # of the loop that the position is in
    first: dict[int, int] = field(default_factory=dict)  # the ways in
    ways_round: int = 1  # the ways past all positions
    search: int | None = None  # the position that skips what is before a match
    succeeding: set[int] = field(default_factory=set)  # from here on nothing can fail
    ending: set[int] = field(default_factory=set)  # a match may end here if the text does
    conditional: bool = False  # a match also depends on word boundaries, looks or captures
    others: list[Look] = field(default_factory=list)  # looks in the other direction
    alphabet: Alphabet = field(default_factory=lambda: Alphabet([]))


def follow(root: Node, *, backward: bool = False, search: bool = True) -> Automaton:
    """Return the automaton of a pattern, with a search loop before it if it may begin
    anywhere; or that of a look-behind, which is read backward."""
    return _Builder(root, backward=backward).build(search=search)


@dataclass(slots=True)
class _Part:
    """How a part of the pattern begins, ends, and is passed without consuming anything."""

    first: _Ways
    last: _Ways
    empty: dict[int, int]


def _add[Key](ways: dict[Key, int], key: Key, number: int) -> None:
    ways[key] = min(_MOST_WAYS, ways.get(key, 0) + number)


class _Builder:
    def __init__(self, root: Node, *, backward: bool) -> None:
        self._root = root
        self._backward = backward
        self._bodies = {node.number: node for node in walk(root) if isinstance(node, Group)}
        self._sets = {
            node: self._chars(node) for node in walk(root) if isinstance(node, Unit | Reference)
        }
        self._made = Automaton(alphabet=Alphabet(self._sets.values()))
        self._masks = {chars: self._made.alphabet.mask(chars) for chars in self._sets.values()}
        self._rounds = 0.0
        self._edges = 0

    def _chars(self, node: Unit | Reference) -> CharSet:
        if isinstance(node, Unit):
            return node.chars
        group = self._bodies.get(node.number)
        if group is None:  # the group is outside this part
            return EVERYTHING
        return union(*(unit.chars for unit in walk(group) if isinstance(unit, Unit)))

    def build(self, *, search: bool) -> Automaton:
        whole = self._part(self._root, 1)
        self._end(whole.last)
        self._made.ways_round = max([1, *whole.empty.values()])
        for (position, _), ways in whole.first.items():
            _add(self._made.first, position, ways)
        if search:
            starts = {key: ways for key, ways in whole.first.items() if not key[1] & _AT_START}
            if starts and _FREE not in whole.empty:
                self._made.search = self._position((1 << self._made.alphabet.size) - 1, inf)
                self._join({(self._made.search, _FREE): 1}, starts)
                self._made.following[self._made.search][self._made.search] = 1
                self._made.first[self._made.search] = 1
        return self._made

    def _end(self, last: _Ways) -> None:
        for position, condition in last:
            if condition == _FREE:
                self._made.succeeding.add(position)
            if condition in {_FREE, _AT_END}:
                self._made.ending.add(position)

    def _position(self, letters: int, rounds: float) -> int:
        self._made.letters.append(letters)
        self._made.rounds.append(rounds)
        self._made.following.append({})
        return len(self._made.letters) - 1

    def _join(self, last: _Ways, first: _Ways, times: int = 1) -> None:
        self._edges += len(last) * len(first)
        if self._edges > _MOST_EDGES:
            raise TooManyEdges
        for (position, before), ways_before in last.items():
            if before & _AT_END:
                continue
            following = self._made.following[position]
            for (next_position, after), ways_after in first.items():
                if not after & _AT_START:
                    _add(following, next_position, ways_before * ways_after * times)

    def _part(self, node: Node, copies: int) -> _Part:
        match node:
            case Unit():
                return self._unit(node)
            case Sequence(items):
                return self._sequence(items, copies)
            case Alternation(options):
                return _either([self._part(option, copies) for option in options])
            case Repeat():
                return self._repeat(node, copies)
            case Group(body):
                return self._part(body, copies)
            case Reference():
                part = self._unit(node)
                part.empty[_OTHER] = 1
                self._made.conditional = True
                return part
            case Look():
                return self._look(node, copies)
            case Edge():
                return self._edge(node)

    def _unit(self, node: Unit | Reference) -> _Part:
        position = self._position(self._masks[self._sets[node]], self._rounds)
        return _Part({(position, _FREE): 1}, {(position, _FREE): 1}, {})

    def _edge(self, edge: Edge) -> _Part:
        match edge:
            case Edge.START:
                condition = _AT_END if self._backward else _AT_START
            case Edge.END:
                condition = _AT_START if self._backward else _AT_END
            case _:
                condition = _OTHER
                self._made.conditional = True
        return _Part({}, {}, {condition: 1})

    def _look(self, look: Look, copies: int) -> _Part:
        self._made.conditional = True
        if look.behind != self._backward:
            self._made.others.append(look)
            return _Part({}, {}, {_OTHER: 1})
        body = self._part(look.body, copies)
        self._end({key: ways for key, ways in body.last.items() if key[1] == _FREE})
        first: _Ways = {}
        for (position, condition), ways in body.first.items():
            _add(first, (position, condition | _OTHER), ways)
        return _Part(first, {}, {_OTHER: 1})

    def _sequence(self, items: tuple[Node, ...], copies: int) -> _Part:
        whole = _Part({}, {}, {_FREE: 1})
        for item in _merge_optional_runs(items[::-1] if self._backward else items):
            self._append(whole, self._part(item, copies))
        return whole

    def _append(self, whole: _Part, part: _Part) -> None:
        self._join(whole.last, part.first)
        for passed, ways in whole.empty.items():
            if passed & _AT_END:
                continue
            for (position, condition), ways_in in part.first.items():
                _add(whole.first, (position, condition | passed), ways * ways_in)
        last = part.last
        for passed, ways in part.empty.items():
            if passed & _AT_START:
                continue
            for (position, condition), ways_out in whole.last.items():
                last = dict(last) if last is part.last else last
                _add(last, (position, condition | passed), ways * ways_out)
        empty: dict[int, int] = {}
        for one, ways_one in whole.empty.items():
            for other, ways_other in part.empty.items():
                _add(empty, one | other, ways_one * ways_other)
        whole.last, whole.empty = last, empty

    def _repeat(self, node: Repeat, copies: int) -> _Part:
        least, most, body = node.least, node.most, node.body
        if most == 0:
            return _Part({}, {}, {_FREE: 1})
        whole = _Part({}, {}, {_FREE: 1})
        if most is not None and most * copies <= SMALL:
            exact = least
            further = self._optional_copies(body, most - least, copies * most)
        else:
            times = least * copies  # so many copies before the loop, unless they are too many
            is_exact = times <= _EXACT_COPIES if isinstance(body, Unit) else 1 < times <= SMALL
            exact = least if is_exact else 0
            further = None if most == exact else self._loop(node, exact, copies)
        for _ in range(exact):
            self._append(whole, self._part(body, copies * max(1, exact)))
        if further:
            self._append(whole, further)
        return whole

    def _optional_copies(self, body: Node, number: int, copies: int) -> _Part | None:
        """Return the part for ``(x(x(x)?)?)?``, where no x may be empty."""
        rest: _Part | None = None
        for _ in range(number):
            part = self._part(body, copies)
            part.empty = {}
            if rest:
                self._append(part, rest)
            part.empty = {_FREE: 1}
            rest = part
        return rest

    def _loop(self, node: Repeat, done: int, copies: int) -> _Part:
        outer = self._rounds
        rounds = inf if node.most is None else node.most - done
        self._rounds = max(outer, rounds)
        body = self._part(node.body, copies)
        self._rounds = outer
        to_do = node.least - done
        # Mandatory rounds may be empty, so there is more than one way to make them.
        self._join(body.last, body.first, 2 if body.empty and to_do > 1 else 1)
        if to_do > 1 or node.most is not None:
            self._made.conditional = True
        if to_do > 1:  # the end of a round need not be the end of the loop
            body.last = {(place, how | _OTHER): ways for (place, how), ways in body.last.items()}
        if to_do <= 0:
            body.empty = {_FREE: 1}
        return body


def _either(parts: list[_Part]) -> _Part:
    whole = _Part({}, {}, {})
    for part in parts:
        for key, ways in part.first.items():
            _add(whole.first, key, ways)
        for key, ways in part.last.items():
            _add(whole.last, key, ways)
        for condition, ways in part.empty.items():
            _add(whole.empty, condition, ways)
    return whole


def _merge_optional_runs(items: tuple[Node, ...]) -> list[Node]:
    """Return the items with every long run such as ``a?b?c?…`` as one loop over its members."""
    merged: list[Node] = []
    for optional, run in groupby(items, _is_optional):
        members = tuple(run)
        if optional and len(members) > SMALL:
            members = (Repeat(Alternation(members), 0, None),)
        merged += members
    return merged


def _is_optional(node: Node) -> bool:
    return isinstance(node, Repeat) and node.least == 0 and node.most is not None
