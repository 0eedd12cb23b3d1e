r"""A parsed pattern as a tree of values, and the sets of characters in it.

The only characters that a JavaScript regex without flags knows are UTF-16 code units. A set is a
tuple of inclusive ranges, sorted, with a gap between each and the next:

>>> union(DIGIT, single("a"))
((48, 57), (97, 97))
>>> invert(DIGIT)
((0, 47), (58, 65535))
>>> to_units("a😀") == "a\ud83d\ude00"
True

Upper and lower case as the flag ``i`` of JavaScript sees it (ECMA-262, Canonicalize).

Two characters are the same if their capitals are. A letter stays as it is if its capital has more
than one character, or if it is not ASCII and its capital is:

>>> fold_text("Delete_\u00df_\u017f") == "DELETE_\u00df_\u017f", fold_set(((97, 99), (95, 95)))
(True, ((65, 67), (95, 95)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

type CharSet = tuple[tuple[int, int], ...]

LAST_UNIT = 0xFFFF


def union(*sets: CharSet) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for parts in sets for part in parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def invert(chars: CharSet) -> CharSet:
    gaps = []
    start = 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST_UNIT:
        gaps.append((start, LAST_UNIT))
    return tuple(gaps)


def single(char: str) -> CharSet:
    return ((ord(char), ord(char)),)


def to_units(text: str) -> str:
    """Return the text with each astral character as the two surrogates JavaScript sees."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    raw = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(raw).cast("H")))


EVERYTHING: CharSet = ((0, LAST_UNIT),)
DIGIT: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: CharSet = union(  # ECMA-262, WhiteSpace and LineTerminator
    ((0x09, 0x0D), (0x2000, 0x200A)),
    *map(single, " \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
)
NO_LINE_END: CharSet = invert(union(*map(single, "\n\r\u2028\u2029")))  # what a dot matches


_LAST_ASCII = 0x7F


def fold_text(units: str) -> str:
    """Return the text with each UTF-16 code unit as its capital."""
    if units.isascii():
        return units.upper()
    return "".join([chr(_fold(ord(char))) for char in units])


@lru_cache(maxsize=512)
def fold_set(chars: CharSet) -> CharSet:
    """Return the capitals of a set."""
    codes = {_fold(code) for low, high in chars for code in range(low, high + 1)}
    return union(tuple([(code, code) for code in codes]))


@lru_cache(maxsize=0x10000)
def _fold(code: int) -> int:
    capital = chr(code).upper()
    if len(capital) != 1 or ord(capital) > 0xFFFF:
        return code
    return code if code > _LAST_ASCII >= ord(capital) else ord(capital)


class Edge(Enum):
    """A place between two characters."""

    START = "^"
    END = "$"
    WORD = r"\b"
    NOT_WORD = r"\B"


@dataclass(frozen=True, slots=True)
class Unit:
    """One UTF-16 code unit out of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: Node
    least: int
    most: int | None  # None: without end
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A capturing group, kept only where the pattern may refer back to one."""

    body: Node
    number: int


@dataclass(frozen=True, slots=True)
class Look:
    """Look-ahead or look-behind."""

    body: Node
    behind: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """Matches again what a group has captured."""

    number: int


type Node = Unit | Sequence | Alternation | Repeat | Group | Look | Reference | Edge

EMPTY = Sequence(())


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(parts) | Alternation(parts):
            return parts
        case Repeat(body) | Group(body) | Look(body):
            return (body,)
        case _:
            return ()


def groups_referred_to(root: Node) -> frozenset[int]:
    return frozenset(node.number for node in walk(root) if isinstance(node, Reference))


def without_other_groups(node: Node, kept: frozenset[int]) -> Node:
    """Return the tree with only these groups: a capture that nothing refers to is useless.

    It recurses, so the tree must not be deeper than that of a safe pattern.
    """
    match node:
        case Sequence(items):
            return Sequence(tuple(without_other_groups(item, kept) for item in items))
        case Alternation(options):
            return Alternation(tuple(without_other_groups(option, kept) for option in options))
        case Repeat(body, least, most, lazy):
            return Repeat(without_other_groups(body, kept), least, most, lazy)
        case Look(body, behind, negated):
            return Look(without_other_groups(body, kept), behind, negated)
        case Group(body, number):
            inner = without_other_groups(body, kept)
            return Group(inner, number) if number in kept else inner
        case _:
            return node


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all below it. It does not recurse, because patterns may be deep."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)


def branches(node: Node) -> Iterator[Node]:
    """Yield what ``walk`` yields except single units: in a list of names they are nearly all."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in children(node) if type(child) is not Unit]


def visit[State](seen: set[State], onward: Callable[[State], Iterable[State]]) -> Iterator[State]:
    """Yield what can be reached from these states, each once. It adds new ones to the set."""
    waiting = list(seen)
    while waiting:
        state = waiting.pop()
        yield state
        new = set(onward(state)) - seen
        seen |= new
        waiting += new


def depth(node: Node) -> int:
    """Return the depth of the tree. It does not recurse either."""
    deepest = 0
    level = [node]
    while level:
        deepest += 1
        level = [child for parent in level for child in children(parent) if type(child) is not Unit]
    return deepest


def as_word(node: Node) -> str | None:
    """Return the only text that the node matches, if it is made of single characters; else None."""
    items = node.items if isinstance(node, Sequence) else (node,)
    chars = []
    for item in items:
        if type(item) is not Unit or len(item.chars) != 1:
            return None
        low, high = item.chars[0]
        if low != high:
            return None
        chars.append(chr(low))
    return "".join(chars)


def least_length(node: Node) -> int:
    """Return a lower bound on the length of a match, in units."""
    match node:
        case Unit():
            return 1
        case Sequence(items):
            return sum([least_length(item) for item in items])
        case Alternation(options):
            return min([least_length(option) for option in options])
        case Repeat(body, least):
            return least and least * least_length(body)
        case Group(body):
            return least_length(body)
        case _:
            return 0


def anchored(node: Node) -> bool:
    """Tell whether a match can only begin at the start of the text."""
    match node:
        case Edge.START:
            return True
        case Sequence(items):
            for item in items:
                if anchored(item):
                    return True
                if not isinstance(item, Look | Edge):
                    return False
            return False
        case Alternation(options):
            return all(anchored(option) for option in options)
        case Group(body):
            return anchored(body)
        case Repeat(body, least):
            return least > 0 and anchored(body)
        case _:
            return False
