r"""Match any pattern without references in one pass over the text; captures are not kept.

We follow all places of the program at once. A set of places is a state, and each state remembers
where each letter led (a DFA built on the way). Conditions on the place in the text, ``^`` and
``\b``, are decided when the next letter is known. Each look-ahead and look-behind is scanned over
the whole text beforehand, so it costs one pass too.

The second matcher backtracks, with JavaScript's semantics, for patterns that refer back to a group.

It follows ECMA-262 to the letter: each round of a repetition forgets the captures of the round
before, an optional round must not be empty, a look-behind goes from right to left, and a reference
to a group without a capture matches the empty text.

A matcher that ``remembers`` never tries the same state twice: the same step, place in the text and
captures (those that are still referred to) failed before, so they would fail again. ``cost``
computes beforehand what this costs at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jsregex.automaton import Alphabet
from jsregex.cost import LONGEST_NAME, Budget, Registers, without
from jsregex.program import Op, Program, Step
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

_STEPS_AT_ONCE = 30  # paid for in advance
_PRICE = 200  # for these thirty; each takes as long as six or seven steps of the scan


@dataclass(slots=True)
class _Text:
    """What is matched, and what that may cost."""

    units: str
    letters: Sequence[int]
    budget: Budget
    paid: int = 0

    def count_step(self) -> None:
        if not self.paid:
            self.budget.spend(_PRICE)
            self.paid = _STEPS_AT_ONCE
        self.paid -= 1


class Backtracker:
    """Matches one program: that of the pattern, or of a look-ahead or look-behind in it."""

    def __init__(
        self,
        program: Program,
        alphabet: Alphabet,
        *,
        captures: int,
        anchored: bool = False,
        remembers: bool = False,
    ) -> None:
        self._program = program
        self._alphabet = alphabet
        self._captures = captures  # how many registers hold captures; they come first
        self._anchored = anchored
        self._remembers = remembers
        self._masks = [alphabet.mask(chars) for chars in program.sets]
        self._word = alphabet.mask(WORD)
        self._looks = [Backtracker(look, alphabet, captures=captures) for look in program.looks]

    def search(self, units: str, budget: Budget) -> bool:
        """Tell whether there is a match. Raises TooCostly."""
        text = self._read(units, budget)
        unset = (None,) * self._captures
        starts = 1 if self._anchored else len(units) + 1
        # States may be shared between starts: a match continues in the same way wherever it began.
        # For a long text the set would take too much memory.
        remembers = self._remembers and len(units) <= LONGEST_NAME
        seen: set[_Place] | None = set() if remembers else None
        return any(self._match(text, start, unset, seen) is not None for start in range(starts))

    def find(self, units: str, starts: Iterable[int], budget: Budget) -> Iterator[tuple[int, int]]:
        """Yield the matches that begin at these places, as ``matchAll`` does, without empty ones.

        The program must keep the whole match in its first two registers. Raises TooCostly.
        """
        text = self._read(units, budget)
        past = 0
        for start in starts:
            if start >= past and (found := self._match(text, start, (None,) * self._captures)):
                end = found[1]
                if end is not None and end > start:
                    past = end
                    yield start, past

    def _read(self, units: str, budget: Budget) -> _Text:
        budget.spend(len(units))
        return _Text(units, self._alphabet.read(units), budget)

    def _match(
        self, text: _Text, start: int, captures: Registers, seen: set[_Place] | None = None
    ) -> Registers | None:
        """Match from one place; return the registers after the match, or None."""
        program = self._program
        unset = (None,) * (program.registers - len(captures))
        ways: list[_Place] = [(0, start, captures + unset)]
        while ways:
            place, at, registers = ways.pop()
            while True:
                if seen is not None:
                    registers = without(registers, program.unneeded[place])
                    state = (place, at, registers)
                    if state in seen:
                        break
                    seen.add(state)
                text.count_step()
                step = program.code[place]
                op, a, b = step
                if op == Op.MATCH:
                    return registers
                if op == Op.SPLIT:
                    ways.append((b, at, registers))
                    place = a
                elif op == Op.JUMP:
                    place = a
                elif moved := self._step(text, step, at, registers, remembers=seen is not None):
                    place, (at, registers) = place + 1, moved
                else:
                    break
        return None

    def _step(
        self, text: _Text, step: Step, at: int, registers: Registers, *, remembers: bool
    ) -> tuple[int, Registers] | None:
        """Return the place in the text and the registers after a step; None if it fails."""
        op, a, b = step
        if op == Op.UNIT:
            before = at - self._program.backward
            if 0 <= before < len(text.units) and self._masks[a] >> text.letters[before] & 1:
                return (before if self._program.backward else at + 1), registers
            return None
        if op == Op.SAVE:
            return at, (*registers[:a], at, *registers[a + 1 :])
        if op == Op.CLEAR:
            return at, registers[:a] + (None,) * (b - a) + registers[b:]
        if op == Op.LOOK:
            captures = registers[: self._captures]
            found = self._looks[a]._match(text, at, captures, set() if remembers else None)
            if found is not None:
                registers = found[: self._captures] + registers[self._captures :]
            return (at, registers) if (found is None) == bool(b) else None
        if op == Op.REFERENCE:
            end = self._repeat(text, registers[2 * a : 2 * a + 2], at)
            return None if end is None else (end, registers)
        if op == Op.MOVED:
            return None if registers[a] == at else (at, registers)
        return (at, registers) if self._holds(text, op, at) else None

    def _repeat(self, text: _Text, captured: Registers, at: int) -> int | None:
        """Consume the captured text again; return where it ends."""
        start, end = captured
        if start is None or end is None:
            return at
        again = text.units[start:end]
        text.budget.spend(len(again))
        if self._program.backward:
            return at - len(again) if text.units.endswith(again, 0, at) else None
        return at + len(again) if text.units.startswith(again, at) else None

    def _holds(self, text: _Text, op: Op, at: int) -> bool:
        if op == Op.START:
            return at == 0
        if op == Op.END:
            return at == len(text.units)
        before = at > 0 and bool(self._word >> text.letters[at - 1] & 1)
        after = at < len(text.units) and bool(self._word >> text.letters[at] & 1)
        return (before != after) == (op == Op.WORD)
