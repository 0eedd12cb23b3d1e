r"""Match any pattern without references in one pass over the text; captures are not kept.

We follow all places of the program at once. A set of places is a state, and each state remembers
where each letter led (a DFA built on the way). Conditions on the place in the text, ``^`` and
``\b``, are decided when the next letter is known. Each look-ahead and look-behind is scanned over
the whole text beforehand, so it costs one pass too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jsregex.automaton import Alphabet
from jsregex.cost import LONGEST_NAME, Budget, Registers
from jsregex.program import Op, Program
from jsregex.tree import WORD

_MOST_STATES = 500


@dataclass(slots=True, eq=False)
class _State:
    places: frozenset[int]
    first: bool = False  # nothing has been consumed yet
    word: bool = False  # what was consumed last is a word character
    matched: bool = False  # a match was possible before that
    stop: bool = False  # no need to read on
    moves: dict[int, _State] = field(default_factory=dict)


class Scan:
    """Scans for one program: that of the pattern, or of a look-ahead or look-behind in it."""

    def __init__(
        self,
        program: Program,
        alphabet: Alphabet,
        *,
        anchored: bool = False,
        tabulates: bool = False,
    ) -> None:
        self._code = program.code
        self._backward = program.backward
        self._alphabet = alphabet
        self._anchored = anchored
        self._tabulates = tabulates
        self._masks = [alphabet.mask(chars) for chars in program.sets]
        self._word_letters = alphabet.mask(WORD)
        self._end = alphabet.size  # the letter after the last
        self._looks = [Scan(look, alphabet, tabulates=True) for look in program.looks]
        self._forget()

    def search(self, letters: Sequence[int], budget: Budget) -> bool:
        """Tell whether there is a match. Raises TooCostly."""
        state = self._initial
        for key in self._keys(letters, budget):
            state = state.moves.get(key) or self._move(state, key, budget)
            if state.stop:
                return state.matched
        return state.matched

    def table(self, letters: Sequence[int], budget: Budget) -> list[bool]:
        """Return for each place in the text, the last included, whether a match ends there.

        Raises TooCostly.
        """
        state = self._initial
        table = []
        for key in self._keys(letters, budget):
            state = state.moves.get(key) or self._move(state, key, budget)
            table.append(state.matched)
        return table[::-1] if self._backward else table

    def _keys(self, letters: Sequence[int], budget: Budget) -> list[int]:
        """Return what the moves depend on: the next letter, and which looks succeed before it."""
        budget.spend(len(letters))
        if len(letters) > LONGEST_NAME and not isinstance(letters, bytes):
            budget.spend(len(letters))  # to read what is not ASCII takes as long again
        keys = [*(reversed(letters) if self._backward else letters), self._end]
        weight = self._end + 1
        for look in self._looks:
            table = look.table(letters, budget)
            if self._backward:
                table.reverse()
            keys = [key + weight * succeeds for key, succeeds in zip(keys, table, strict=True)]
            weight *= 2
        return keys

    def _move(self, state: _State, key: int, budget: Budget) -> _State:
        looks, letter = divmod(key, self._end + 1)
        places, matched = self._step(state, letter, looks, budget)
        word = bool(self._word_letters >> letter & 1)
        known = (places, word, matched)
        following = self._states.get(known)
        if following is None:
            if len(self._states) >= _MOST_STATES:
                self._forget()
            dead = self._anchored and not places
            stop = (matched and not self._tabulates) or dead
            following = _State(places, word=word, matched=matched, stop=stop)
            self._states[known] = following
        state.moves[key] = following
        return following

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], bool, bool], _State] = {}
        self._initial = _State(frozenset(), first=True)

    def _step(
        self, state: _State, letter: int, looks: int, budget: Budget
    ) -> tuple[frozenset[int], bool]:
        """Return the places after the letter, and whether a match was possible before it."""
        last = letter == self._end
        at_start, at_end = (last, state.first) if self._backward else (state.first, last)
        at_boundary = state.word != bool(self._word_letters >> letter & 1)
        waiting = list(state.places)
        if state.first or not self._anchored:
            waiting.append(0)
        seen = set(waiting)
        reached = set()
        matched = False
        while waiting:
            place = waiting.pop()
            op, a, b = self._code[place]
            onward: tuple[int, ...] = ()
            if op == Op.UNIT:
                if self._masks[a] >> letter & 1:
                    reached.add(place + 1)
            elif op == Op.SPLIT:
                onward = (a, b)
            elif op == Op.JUMP:
                onward = (a,)
            elif op == Op.MATCH:
                matched = True
            elif (
                (op == Op.START and at_start)
                or (op == Op.END and at_end)
                or (op == Op.WORD and at_boundary)
                or (op == Op.NOT_WORD and not at_boundary)
                or (op == Op.LOOK and (looks >> a & 1) != b)
            ):
                onward = (place + 1,)
            for place in onward:
                if place not in seen:
                    seen.add(place)
                    waiting.append(place)
        budget.spend(len(seen))
        return frozenset(reached), matched


type _Place = tuple[int, int, Registers]
