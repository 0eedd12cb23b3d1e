"""A parsed pattern as a tree of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mcp_tool_filter.jsregex.charset import CharSet


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
class Choice:
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


type Node = Unit | Sequence | Choice | Repeat | Group | Look | Reference | Edge

EMPTY = Sequence(())


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(parts) | Choice(parts):
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
        case Choice(options):
            return Choice(tuple(without_other_groups(option, kept) for option in options))
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
        case Choice(options):
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
        case Choice(options):
            return all(anchored(option) for option in options)
        case Group(body):
            return anchored(body)
        case Repeat(body, least):
            return least > 0 and anchored(body)
        case _:
            return False
