"""Match a pattern that refers back to a group, by backtracking, with JavaScript's semantics.

It follows ECMA-262 to the letter: each round of a repetition forgets the captures of the round
before, an optional round must not be empty, a look-behind goes from right to left, and a reference
to a group without a capture matches the empty text.

A matcher that ``remembers`` never tries the same state twice: the same step, place in the text and
captures (those that are still referred to) failed before, so they would fail again. ``cost``
computes beforehand what this costs at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jsregex.automaton import Alphabet
from jsregex.cost import LONGEST_NAME, Budget, Registers, without
from jsregex.program import Op, Program, Step
from jsregex.scan import _Place
from jsregex.tree import WORD

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
