r"""Compile a tree into a program of small steps for the two matchers.

``Scan`` follows all ways at once, without captures; ``Backtracker`` follows one way after the
other, as JavaScript does, and keeps captures. A count becomes that many copies:

>>> from jsregex.syntax import parse_regex
>>> for step in compile_program(parse_regex("a{2}|^").root, for_scan=True).code:
...     print(step)
(<Op.SPLIT: 1>, 1, 4)
(<Op.UNIT: 0>, 0, 0)
(<Op.UNIT: 0>, 0, 0)
(<Op.JUMP: 2>, 5, 0)
(<Op.START: 3>, 0, 0)
(<Op.MATCH: 12>, 0, 0)
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass, replace
from enum import IntEnum

from jsregex.automaton import bits_of
from jsregex.tree import (
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
    branches,
    groups_referred_to,
    least_length,
)


class Op(IntEnum):
    """Those of places between two characters are called as the ``Edge`` is."""

    UNIT = 0  # consume one unit of the set with number a
    SPLIT = 1  # go to a; if that fails, to b
    JUMP = 2
    START = 3
    END = 4
    WORD = 5
    NOT_WORD = 6
    LOOK = 7  # look number a must succeed, or fail if b
    SAVE = 8  # keep the position in register a
    CLEAR = 9  # forget the registers from a to b
    MOVED = 10  # fail if the position is still the one in register a
    REFERENCE = 11  # consume what group a captured
    MATCH = 12


LONGEST_COUNT = 1000  # so many copies of a repetition at most

type Step = tuple[Op, int, int]


@dataclass(frozen=True, slots=True)
class Program:
    code: tuple[Step, ...]
    sets: tuple[CharSet, ...]
    looks: tuple[Program, ...]
    backward: bool  # it consumes from right to left
    registers: int
    exact_up_to: int | None  # the program may judge longer texts wrongly
    unneeded: tuple[tuple[int, ...], ...] = ()
    """For each step, the registers that nothing reads before they are set again."""


def compile_program(
    root: Node,
    *,
    for_scan: bool,
    groups: int = 0,
    backward: bool = False,
    longest: int = LONGEST_COUNT,
) -> Program:
    """Return the program for one of the matchers; ``groups`` counts those of the whole pattern.

    The scan runs a look-ahead backward from the end of the text, and so learns for every place at
    once whether it succeeds there. JavaScript and ``Backtracker`` run a look-behind backward from
    the current place. A repetition gets no more copies than fit into a text of the ``longest``
    length.
    """
    kept = groups_referred_to(root)
    return _Compiler(for_scan, groups, backward, kept, longest).compile(root, is_look=False)


def captures_of(groups: int) -> int:
    """Return how many registers hold captures: two for each group and two for the whole match."""
    return 2 * groups + 2


def code_size(root: Node, *, longest: int = LONGEST_COUNT) -> int:
    """Return roughly how many steps a program for texts of that length has."""
    looks = [node.body for node in branches(root) if isinstance(node, Look)]
    return sum(_size(part, longest) for part in (root, *looks))


def _size(node: Node, longest: int) -> int:
    match node:
        case Sequence(items):
            return sum([1 if type(item) is Unit else _size(item, longest) for item in items])
        case Alternation(options):
            return sum([_size(option, longest) + 2 for option in options])
        case Repeat(body):
            least, most = _copies(node, longest)
            return (_size(body, longest) + 4) * (least + 1 if most is None else most)
        case Group(body):
            return _size(body, longest) + 2
        case _:
            return 1


def _copies(node: Repeat, longest: int) -> tuple[int, int | None]:
    """Return the least and the most copies.

    In a text of n units at most n copies consume anything, so n + 1 copies are enough.
    """
    enough = longest // max(1, least_length(node.body)) + 1
    most = None if node.most is None or node.most > enough else node.most
    return min(node.least, enough), most


def find_unneeded(
    code: collections.abc.Sequence[Step],
    looks: collections.abc.Sequence[Program],
    captures: int,
    lasting: int,
) -> tuple[tuple[int, ...], ...]:
    """Return, for each step, the registers that may be set but are not read before they are set
    again.

    Register sets are the bits of a number; ``lasting`` are those that are read after the match.
    """
    needed = [0] * len(code)
    changed = True
    while changed:
        changed = False
        for place in range(len(code) - 1, -1, -1):
            op, a, b = code[place]
            after = lasting if op == Op.MATCH else 0
            for onward in steps_after(place, code[place]):
                after |= needed[onward]
            if op == Op.SAVE:
                after &= ~(1 << a)
            elif op == Op.CLEAR:
                after &= ~((1 << b) - (1 << a))
            elif op == Op.MOVED:
                after |= 1 << a
            elif op == Op.REFERENCE:
                after |= 3 << 2 * a
            elif op == Op.LOOK:
                after |= _referred_to(looks[a])
            changed = changed or after != needed[place]
            needed[place] = after
    left_over = [0] * len(code)
    for place, (op, a, _) in enumerate(code):
        held = needed[place]
        if op == Op.SAVE:
            held |= 1 << a
        elif op == Op.LOOK:
            held |= captures
        for onward in steps_after(place, code[place]):
            left_over[onward] |= held & ~needed[onward]
    return tuple(tuple(bits_of(registers)) for registers in left_over)


def steps_after(place: int, step: Step) -> tuple[int, ...]:
    """Return where a program may go on after a step."""
    op, a, b = step
    if op == Op.SPLIT:
        return (a, b)
    if op == Op.JUMP:
        return (a,)
    return () if op == Op.MATCH else (place + 1,)


def _referred_to(program: Program) -> int:
    registers = 0
    for op, a, _ in program.code:
        if op == Op.REFERENCE:
            registers |= 3 << 2 * a
    for look in program.looks:
        registers |= _referred_to(look)
    return registers


@dataclass
class _Compiler:
    _for_scan: bool
    _groups: int
    _backward: bool
    _kept: frozenset[int]
    """The groups whose captures count: those that are referred to, and group 0, the whole match."""
    _longest: int

    def __post_init__(self) -> None:
        self._code: list[Step] = []
        self._sets: dict[CharSet, int] = {}
        self._looks: dict[int, tuple[int, Program]] = {}
        self._registers = captures_of(self._groups)
        self._is_cut = False

    def compile(self, root: Node, *, is_look: bool) -> Program:
        self._compile(root)
        self._emit(Op.MATCH)
        looks = tuple(program for _, program in self._looks.values())
        captures = sum(3 << 2 * number for number in self._kept)
        lasting = captures if is_look else 0  # read by the outer pattern after the match
        unneeded = () if self._for_scan else find_unneeded(self._code, looks, captures, lasting)
        return Program(
            tuple(self._code),
            tuple(self._sets),
            looks,
            self._backward,
            self._registers,
            self._longest if self._is_cut or any(look.exact_up_to for look in looks) else None,
            unneeded,
        )

    def _emit(self, op: Op, a: int = 0, b: int = 0) -> int:
        self._code.append((op, a, b))
        return len(self._code) - 1

    def _compile(self, node: Node) -> None:
        match node:
            case Unit(chars):
                self._emit(Op.UNIT, self._sets.setdefault(chars, len(self._sets)))
            case Sequence(items):
                for item in reversed(items) if self._backward else items:
                    self._compile(item)
            case Alternation(options):
                self._compile_choice(options)
            case Repeat():
                self._compile_repeat(node)
            case Group(body, number):
                self._compile_group(body, number)
            case Look():
                self._emit(Op.LOOK, self._look_number(node), node.negated)
            case Reference(number):
                self._emit(Op.REFERENCE, number)
            case Edge():
                self._emit(Op[node.name])

    def _compile_choice(self, options: tuple[Node, ...]) -> None:
        jumps = []
        for option in options[:-1]:
            split = self._emit(Op.SPLIT)
            self._compile(option)
            jumps.append(self._emit(Op.JUMP))
            self._code[split] = (Op.SPLIT, split + 1, len(self._code))
        self._compile(options[-1])
        for jump in jumps:
            self._code[jump] = (Op.JUMP, len(self._code), 0)

    def _compile_repeat(self, node: Repeat) -> None:
        least, most = _copies(node, self._longest)
        self._is_cut = self._is_cut or (least, most) != (node.least, node.most)
        for _ in range(least):
            self._compile_once(node.body)
        if most is None:
            split = self._emit(Op.SPLIT)
            self._compile_further(node.body)
            self._emit(Op.JUMP, split)
            self._aim([split], lazy=node.lazy)
        else:
            splits = []
            for _ in range(most - least):
                splits.append(self._emit(Op.SPLIT))
                self._compile_further(node.body)
            self._aim(splits, lazy=node.lazy)

    def _aim(self, splits: list[int], *, lazy: bool) -> None:
        """Make each split choose between another round and the end of the repetition."""
        out = len(self._code)
        for split in splits:
            self._code[split] = (Op.SPLIT, out, split + 1) if lazy else (Op.SPLIT, split + 1, out)

    def _compile_once(self, body: Node) -> None:
        """Compile one round of a repetition; it forgets the captures of the round before."""
        inside = {node.number for node in branches(body) if isinstance(node, Group)}
        if not self._for_scan and (groups := inside & self._kept):
            self._emit(Op.CLEAR, 2 * min(groups), 2 * max(groups) + 2)
        self._compile(body)

    def _compile_further(self, body: Node) -> None:
        """Compile an optional round, which must not be empty (ECMA-262, RepeatMatcher)."""
        if self._for_scan or least_length(body):
            self._compile_once(body)
            return
        register = self._registers
        self._registers += 1
        self._emit(Op.SAVE, register)
        self._compile_once(body)
        self._emit(Op.MOVED, register)

    def _compile_group(self, body: Node, number: int) -> None:
        if self._for_scan or (number and number not in self._kept):
            self._compile(body)
            return
        self._emit(Op.SAVE, 2 * number + self._backward)
        self._compile(body)
        self._emit(Op.SAVE, 2 * number + (not self._backward))

    def _look_number(self, look: Look) -> int:
        if id(look) not in self._looks:  # the copies of a repetition share it
            inner = replace(self, _backward=look.behind != self._for_scan)
            self._looks[id(look)] = (len(self._looks), inner.compile(look.body, is_look=True))
        return self._looks[id(look)][0]
