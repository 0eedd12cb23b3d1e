r"""How much matching a pattern can cost at most, computed before any name is seen.

>>> from jsregex.program import captures_of, compile_program
>>> from jsregex.syntax import parse_regex
>>> regex = parse_regex(r"(?:(a)|b)*\1c")
>>> program = compile_program(regex.root, for_scan=False, groups=regex.groups)
>>> most_steps(program, captures=captures_of(regex.groups), anchored=False) < MOST_STEPS
True

A matcher that remembers passes at most once through each state: a step of the program, a place in
the text, and the captures. We count the states that are possible in a text as long as the longest
name whose characters fit every set: a real text has no others. Where a match may begin anywhere,
only the distance to the captures matters, not the place; so we count the states for one place and
multiply.

At each letter, the scan visits every place of the program that the letter can lead to, and the
places that follow without consuming anything. So the letter that leads to most places bounds the
cost of a name.

What matching may cost: an upstream or a client may choose names that are slow to match.

Each name gets its own steps, so costly names in a long list leave the next name as many. No
accepted pattern needs more steps for a name that may be exposed (see ``cost``); for a longer text
the result may be "too costly", but never a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

from jsregex.automaton import Alphabet
from jsregex.program import Op, Program, Step, steps_after
from jsregex.tree import visit

LONGEST_NAME = 256  # UTF-16 code units of a name that may be exposed
FOR_A_NAME = 1_000_000
FOR_A_MESSAGE = 10_000_000  # for all patterns and texts of a message: about half a second
_QUICK = 256  # so many short texts of a message may go to Python's ``re``, which counts no steps


class TooCostly(Exception):
    """The match was given up."""


class Budget:
    """What one search may spend; or all patterns together, on all texts of one message."""

    def __init__(self, steps: int = FOR_A_MESSAGE, quick: int = _QUICK) -> None:
        self.steps = steps
        self.known: dict[tuple[str, bool, str], bool] = {}
        """Earlier results for long texts: a chain may ask for the same one again."""
        self._quick = quick

    def spend(self, steps: int) -> None:
        """Count steps that are about to be made. Raises TooCostly if they cannot be afforded."""
        if steps > self.steps:
            raise TooCostly
        self.steps -= steps

    def may_be_quick(self, price: int) -> bool:
        """Tell whether one more short text may be matched without counting its steps."""
        if price > self._quick:
            return False
        self._quick -= price
        return True


MOST_STEPS = 20_000
"""For one name: about 30 ms."""

type Registers = tuple[int | None, ...]
"""The places in the text that a program has kept, such as those of captures; None if unset."""
type _State = tuple[int, int, Registers]


def most_steps(program: Program, *, captures: int, anchored: bool) -> int:
    """Return a bound on the steps for one name; MOST_STEPS + 1 stands for "too many"."""
    counter = _Counter(captures, anchored=anchored)
    try:
        counter.follow(program, 0, (None,) * captures, is_whole=True)
    except _TooMany:
        return MOST_STEPS + 1
    return counter.steps


def most_scan_steps(program: Program, alphabet: Alphabet, *, anchored: bool = False) -> int:
    """Return a bound on the scan's steps for one name, including its look-aheads."""
    first = set() if anchored else {0}
    most = len(_without_consuming(program, {0}))
    masks = [alphabet.mask(chars) for chars in program.sets]
    units = [(place, masks[a]) for place, (op, a, _) in enumerate(program.code) if op == Op.UNIT]
    for letter in range(alphabet.size):
        reached = {place + 1 for place, mask in units if mask >> letter & 1}
        most = max(most, len(_without_consuming(program, first | reached)))
    looks = sum(most_scan_steps(look, alphabet) for look in program.looks)
    return LONGEST_NAME + (LONGEST_NAME + 1) * most + looks


def _without_consuming(program: Program, places: set[int]) -> set[int]:
    """Return these places and all that can be reached from them without consuming anything."""

    def onward(place: int) -> tuple[int, ...]:
        step = program.code[place]
        return () if step[0] == Op.UNIT else steps_after(place, step)

    return set(visit(set(places), onward))


class _TooMany(Exception):
    pass


class _Counter:
    def __init__(self, captures: int, *, anchored: bool) -> None:
        self._captures = captures
        self._anchored = anchored
        self._weight = 1 if anchored else LONGEST_NAME + 1
        self._least = 0 if anchored else -LONGEST_NAME
        self.steps = 0

    def follow(
        self, program: Program, start: int, captures: Registers, *, is_whole: bool = False
    ) -> set[Registers]:
        """Count all states that can follow; return the possible captures at the end."""
        # If the match may begin anywhere, we follow it from one place only, which we call 0
        # throughout.
        stays = is_whole and not self._anchored

        def onward(state: _State) -> Iterator[_State]:
            place, at, registers = state
            step = program.code[place]
            for moved, after in self._step(program, step, at, registers):
                where = at + moved
                if stays:
                    after, where = tuple([one if one is None else one - moved for one in after]), 0
                is_in_text = all(one is None or one >= -LONGEST_NAME for one in after)
                if is_in_text and self._least <= where <= LONGEST_NAME:
                    for next_place in steps_after(place, step):
                        yield next_place, where, without(after, program.unneeded[next_place])

        finals: set[Registers] = set()
        unset = (None,) * (program.registers - len(captures))
        for place, _, registers in visit({(0, start, captures + unset)}, onward):
            self.steps += self._weight * (1 + len(registers) // 16)
            if self.steps > MOST_STEPS:
                raise _TooMany
            if program.code[place][0] == Op.MATCH:
                finals.add(registers[: self._captures])
        return finals

    def _step(
        self, program: Program, step: Step, at: int, registers: Registers
    ) -> list[tuple[int, Registers]]:
        """Return, for each way, how far it moves and the registers after it."""
        op, a, b = step
        direction = -1 if program.backward else 1
        match op:
            case Op.UNIT:
                return [(direction, registers)]
            case Op.SAVE:
                return [(0, (*registers[:a], at, *registers[a + 1 :]))]
            case Op.CLEAR:
                return [(0, registers[:a] + (None,) * (b - a) + registers[b:])]
            case Op.MOVED:
                return [] if registers[a] == at else [(0, registers)]
            case Op.START if self._anchored:
                return [(0, registers)] if at == 0 else []
            case Op.REFERENCE:
                start, end = registers[2 * a : 2 * a + 2]
                if start is None or end is None:
                    return [(0, registers)]
                return [(direction * (end - start), registers)]
            case Op.LOOK:
                captures = registers[: self._captures]
                found = self.follow(program.looks[a], at, captures)
                rest = registers[self._captures :]
                return [(0, registers)] if b else [(0, after + rest) for after in found]
            case _:
                return [(0, registers)]


def without(registers: Registers, unneeded: tuple[int, ...]) -> Registers:
    """Return the registers with those unset that nothing reads."""
    for register in unneeded:
        if registers[register] is not None:
            registers = (*registers[:register], None, *registers[register + 1 :])
    return registers
