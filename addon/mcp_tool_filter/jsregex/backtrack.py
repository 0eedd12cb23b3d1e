"""A backtracking matcher with JavaScript's semantics, for patterns that refer back to a group.

It follows ECMA-262 to the letter: each round of a repetition forgets the captures of the round
before, an optional round must not be empty, a look-behind goes from right to left, and a reference
to a group without a capture matches the empty text.

A matcher that ``remembers`` never tries the same state twice: the same step, place in the text and
captures (those that are still referred to) failed before, so they would fail again. ``cost``
computes beforehand what this costs at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcp_tool_filter.jsregex.allowance import LONGEST_NAME, Allowance
from mcp_tool_filter.jsregex.alphabet import Alphabet
from mcp_tool_filter.jsregex.charset import WORD
from mcp_tool_filter.jsregex.program import Op, Program

type Registers = tuple[int, ...]
type _State = tuple[int, int, Registers]

_UNSET = -1
_STEPS_AT_ONCE = 30  # paid for in advance
_PRICE = 200  # for these thirty; each takes as long as six or seven steps of the scan


class Backtracker:
    def __init__(
        self,
        program: Program,
        alphabet: Alphabet,
        allowance: Allowance,
        *,
        captures: int,
        anchored: bool = False,
        remembers: bool = False,
    ) -> None:
        self._program = program
        self._remembers = remembers
        self._captures = captures  # how many registers hold captures; they come first
        self._alphabet = alphabet
        self._allowance = allowance
        self._anchored = anchored

    def search(self, text: str) -> bool:
        attempt = _Attempt(text, self._alphabet, self._allowance, self._captures)
        unset = (_UNSET,) * self._captures
        starts = 1 if self._anchored else len(text) + 1
        # States may be shared between starts: a match continues in the same way wherever it began.
        # For a long text the set would take too much memory.
        remembers = self._remembers and len(text) <= LONGEST_NAME
        seen: set[_State] | None = set() if remembers else None
        return any(
            attempt.match(self._program, start, unset, seen) is not None for start in range(starts)
        )

    def find(self, text: str, starts: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the matches that begin at these places, as ``matchAll`` does, without empty ones.

        The program must keep the whole match in its first two registers.
        """
        attempt = _Attempt(text, self._alphabet, self._allowance, self._captures)
        unset = (_UNSET,) * self._captures
        past = 0
        for start in starts:
            found = attempt.match(self._program, start, unset) if start >= past else None
            if found is not None and found[1] > start:
                past = found[1]
                yield start, past


class _Attempt:
    """One text, and the steps that it may cost."""

    def __init__(
        self,
        text: str,
        alphabet: Alphabet,
        allowance: Allowance,
        captures: int,
    ) -> None:
        self._text = text
        self._captures = captures
        self._alphabet = alphabet
        self._allowance = allowance
        allowance.spend(len(text))
        self._letters = alphabet.read(text)
        self._word = alphabet.mask(WORD)
        self._paid = 0

    def match(
        self, program: Program, start: int, captures: Registers, seen: set[_State] | None = None
    ) -> Registers | None:
        """Match from one place; return the registers after the match, or None."""
        code = program.code
        masks = [self._alphabet.mask(chars) for chars in program.sets]
        unset = (_UNSET,) * (program.registers - len(captures))
        ways = [(0, start, captures + unset)]
        while ways:
            place, at, registers = ways.pop()
            while True:
                if seen is not None:
                    for register in program.unneeded[place]:
                        if registers[register] != _UNSET:
                            registers = (*registers[:register], _UNSET, *registers[register + 1 :])
                    state = (place, at, registers)
                    if state in seen:
                        break
                    seen.add(state)
                self._count_step()
                op, a, b = code[place]
                place += 1
                if op == Op.UNIT:
                    following = self._consume(masks[a], at, backward=program.backward)
                elif op == Op.SPLIT:
                    ways.append((b, at, registers))
                    place = a
                    continue
                elif op == Op.JUMP:
                    place = a
                    continue
                elif op == Op.SAVE:
                    registers = (*registers[:a], at, *registers[a + 1 :])
                    continue
                elif op == Op.CLEAR:
                    registers = registers[:a] + (_UNSET,) * (b - a) + registers[b:]
                    continue
                elif op == Op.MATCH:
                    return registers
                elif op == Op.LOOK:
                    found = self.match(
                        program.looks[a],
                        at,
                        registers[: self._captures],
                        None if seen is None else set(),
                    )
                    following = at if (found is None) == bool(b) else None
                    if found is not None:
                        registers = found[: self._captures] + registers[self._captures :]
                elif op == Op.MOVED:
                    following = None if registers[a] == at else at
                elif op == Op.REFERENCE:
                    captured = registers[2 * a : 2 * a + 2]
                    following = self._repeat(captured, at, backward=program.backward)
                else:
                    following = at if self._holds(op, at) else None
                if following is None:
                    break
                at = following
        return None

    def _count_step(self) -> None:
        if not self._paid:
            self._allowance.spend(_PRICE)
            self._paid = _STEPS_AT_ONCE
        self._paid -= 1

    def _consume(self, mask: int, at: int, *, backward: bool) -> int | None:
        if backward:
            return at - 1 if at and mask >> self._letters[at - 1] & 1 else None
        return at + 1 if at < len(self._text) and mask >> self._letters[at] & 1 else None

    def _repeat(self, captured: Registers, at: int, *, backward: bool) -> int | None:
        """Consume the captured text again; return where it ends."""
        start, end = captured
        if start == _UNSET or end == _UNSET:
            return at
        again = self._text[start:end]
        self._allowance.spend(len(again))
        if backward:
            return at - len(again) if self._text.endswith(again, 0, at) else None
        return at + len(again) if self._text.startswith(again, at) else None

    def _holds(self, op: Op, at: int) -> bool:
        if op == Op.START:
            return at == 0
        if op == Op.END:
            return at == len(self._text)
        before = at > 0 and bool(self._word >> self._letters[at - 1] & 1)
        after = at < len(self._text) and bool(self._word >> self._letters[at] & 1)
        return (before != after) == (op == Op.WORD)
