"""Tell whether two consecutive loops can share a text in many ways.

They can if some text leads round the first, on to the second, and round that. But if repeating that
text makes the pattern match, a matcher never backtracks: ``.*a.*a.*a`` fails only on texts with at
most two a's, and those leave little to share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from itertools import product

from mcp_tool_filter.jsregex.positions import Automaton

type _Text = tuple[int, ...]  # the possible letters at each place, as bits

_MOST_STEPS = 500  # two loops count as sharing when judging them would need more than this
_FEW_STEPS = 12  # the same, where each step costs more
_MOST_ROUNDS = 30


def can_share(automaton: Automaton, loop: set[int], later: set[int]) -> bool:
    """Tell whether some text leads round one loop, on to a later one, and round that."""
    return any(_can_share_at(automaton, loop, later, start, end) for start in loop for end in later)


def _can_share_at(
    automaton: Automaton, loop: set[int], later: set[int], start: int, end: int
) -> bool:
    text = _find_text(automaton, loop, later, start, end)
    if text is None:
        return False
    if automaton.conditional or not automaton.succeeding or not _succeeds(automaton, start, text):
        return True
    return _can_share_and_fail(automaton, loop, later, start, end)


def _find_text(
    automaton: Automaton, loop: set[int], later: set[int], start: int, end: int
) -> _Text | None:
    """Return a shortest text that the loops can share."""
    letters, following = automaton.letters, automaton.following
    waiting: deque[tuple[int, int, int, _Text]] = deque([(start, start, end, ())])
    seen = {(start, start, end)}
    while waiting:
        one, between, other, text = waiting.popleft()
        if len(seen) > _MOST_STEPS:
            return text
        ones = [place for place in following[one] if place in loop]
        others = [place for place in following[other] if place in later]
        for triple in product(ones, following[between], others):
            common = letters[triple[0]] & letters[triple[1]] & letters[triple[2]]
            if triple == (start, end, end) and common:
                return (*text, common & -common)
            if common and triple not in seen:
                seen.add(triple)
                waiting.append((*triple, (*text, common & -common)))
    return None


def _can_share_and_fail(
    automaton: Automaton, loop: set[int], later: set[int], start: int, end: int
) -> bool:
    """Tell whether the loops can share a text whose repetition never makes the pattern match.

    Each repetition leads to more places, until there are no new ones. So we look for a text that
    leads from all these places back to the same places.
    """
    first = (start, frozenset({start}))
    waiting = [first]
    seen = {first}
    while waiting:
        one, places = waiting.pop()
        if len(seen) > _FEW_STEPS:
            return True
        if (
            one == start
            and end in places
            and _leads_back(automaton, loop, later, start, end, places)
        ):
            return True
        for bit in _letters(automaton):
            reached = _step(automaton, places, bit)
            if reached & automaton.succeeding:
                continue
            new = {(place, reached) for place in _go(automaton, one, loop, bit)} - seen
            seen |= new
            waiting += new
    return False


def _leads_back(
    automaton: Automaton,
    loop: set[int],
    later: set[int],
    start: int,
    end: int,
    places: frozenset[int],
) -> bool:
    """Tell whether some text that the loops can share leads from these places back to them."""
    first = (start, start, end, places)
    waiting = [first]
    seen = {first}
    while waiting:
        one, between, other, now = waiting.pop()
        if len(seen) > _FEW_STEPS:
            return True
        for bit in _letters(automaton):
            reached = _step(automaton, now, bit)
            if reached & automaton.succeeding:
                continue
            new = {
                (*step, reached)
                for step in product(
                    _go(automaton, one, loop, bit),
                    _go(automaton, between, reached, bit),
                    _go(automaton, other, later, bit),
                )
            }
            if (start, end, end, places) in new:
                return True
            new -= seen
            seen |= new
            waiting += new
    return False


def _letters(automaton: Automaton) -> list[int]:
    return [1 << letter for letter in range(automaton.alphabet.size)]


def _go(automaton: Automaton, place: int, within: Set[int], letter: int) -> list[int]:
    onward = automaton.following[place]
    return [to for to in onward if to in within and automaton.letters[to] & letter]


def _succeeds(automaton: Automaton, start: int, text: _Text) -> bool:
    """Tell whether repeating the text leads from a position to a successful match."""
    places = frozenset({start})
    before: set[frozenset[int]] = set()
    while places not in before and len(before) < _MOST_ROUNDS:
        before.add(places)
        for letter in text:
            places = _step(automaton, places, letter)
            if places & automaton.succeeding:
                return True
    return False


def _step(automaton: Automaton, places: frozenset[int], letter: int) -> frozenset[int]:
    onward = {place for start in places for place in automaton.following[start]}
    return frozenset(place for place in onward if automaton.letters[place] & letter)
