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

from mcp_tool_filter.jsregex.automaton import Alphabet
from mcp_tool_filter.jsregex.cost import LONGEST_NAME, Allowance
from mcp_tool_filter.jsregex.program import Op, Program
from mcp_tool_filter.jsregex.tree import WORD

_MOST_STATES = 500


class _State:
    __slots__ = ("first", "matched", "moves", "places", "stop", "word")

    def __init__(
        self, places: frozenset[int], *, first: bool, word: bool, matched: bool, stop: bool
    ) -> None:
        self.places = places
        self.first = first  # nothing has been consumed yet
        self.word = word  # what was consumed last is a word character
        self.matched = matched  # a match was possible before that
        self.stop = stop  # no need to read on
        self.moves: dict[int, _State] = {}


class Scan:
    """Scans for one program: that of the pattern, or of a look-ahead or look-behind in it."""

    def __init__(
        self,
        program: Program,
        alphabet: Alphabet,
        allowance: Allowance,
        *,
        anchored: bool = False,
        tabulates: bool = False,
    ) -> None:
        self._code = program.code
        self._backward = program.backward
        self._alphabet = alphabet
        self._allowance = allowance
        self._anchored = anchored
        self._tabulates = tabulates
        self._masks = [alphabet.mask(chars) for chars in program.sets]
        self._word_letters = alphabet.mask(WORD)
        self._end = alphabet.size  # the letter after the last
        self._looks = [Scan(look, alphabet, allowance, tabulates=True) for look in program.looks]
        self._forget()

    def search(self, letters: Sequence[int]) -> bool:
        state = self._initial
        for key in self._keys(letters):
            state = state.moves.get(key) or self._move(state, key)
            if state.stop:
                return state.matched
        return state.matched

    def table(self, letters: Sequence[int]) -> list[bool]:
        """Return for each place in the text, the last included, whether a match ends there."""
        state = self._initial
        table = []
        for key in self._keys(letters):
            state = state.moves.get(key) or self._move(state, key)
            table.append(state.matched)
        return table[::-1] if self._backward else table

    def _keys(self, letters: Sequence[int]) -> list[int]:
        """Return what the moves depend on: the next letter, and which looks succeed before it."""
        self._allowance.spend(len(letters))
        if len(letters) > LONGEST_NAME and not isinstance(letters, bytes):
            self._allowance.spend(len(letters))  # to read what is not ASCII takes as long again
        keys = [*(reversed(letters) if self._backward else letters), self._end]
        weight = self._end + 1
        for look in self._looks:
            table = look.table(letters)
            if self._backward:
                table.reverse()
            keys = [key + weight * succeeds for key, succeeds in zip(keys, table, strict=True)]
            weight *= 2
        return keys

    def _move(self, state: _State, key: int) -> _State:
        looks, letter = divmod(key, self._end + 1)
        places, matched = self._step(state, letter, looks)
        word = bool(self._word_letters >> letter & 1)
        known = (places, word, matched)
        following = self._states.get(known)
        if following is None:
            if len(self._states) >= _MOST_STATES:
                self._forget()
            dead = self._anchored and not places
            stop = (matched and not self._tabulates) or dead
            following = self._states[known] = _State(
                places, first=False, word=word, matched=matched, stop=stop
            )
        state.moves[key] = following
        return following

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], bool, bool], _State] = {}
        self._initial = _State(frozenset(), first=True, word=False, matched=False, stop=False)

    def _step(self, state: _State, letter: int, looks: int) -> tuple[frozenset[int], bool]:
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
        self._allowance.spend(len(seen))
        return frozenset(reached), matched


type Registers = tuple[int, ...]
type _Place = tuple[int, int, Registers]

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
        seen: set[_Place] | None = set() if remembers else None
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
        self, program: Program, start: int, captures: Registers, seen: set[_Place] | None = None
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
