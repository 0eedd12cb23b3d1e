"""Effects: what a decision may need before it can be made. They are values; the host carries them
out.

A decision that needs no effect is a plain value and costs nothing. A decision that must wait is a
generator: it yields effects, is sent the result of each, and returns the decision.

>>> def decide() -> Deciding[str]:
...     yield Delay(1.0)
...     return "decided"
>>> waiting = then(begin(decide()), str.upper)
>>> next(waiting)
Delay(seconds=1.0)

``InOrder`` keeps messages in their order of arrival, although some are decided later. It holds only
the message that waits and the messages behind it in the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from mcp_tool_filter.core.policy.verdict import RefusedBy


from collections import deque


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before going on; only this message waits."""

    seconds: float


LET_OTHERS_GO_ON = Delay(0.0)
"""Yielded between the steps of long work, a few milliseconds each."""


@dataclass(frozen=True, slots=True)
class Together:
    """Make several decisions at the same time; the outcomes are sent back in the same order."""

    decisions: tuple[Deciding[Any], ...]


@dataclass(frozen=True, slots=True)
class FetchTools:
    """Ask the upstream for the complete tool list, as the message's client would get it.

    The host sends back the unchanged pages, or throws CannotList into the decision. Decisions that
    wait for the list of the same kind of asker share one fetch.
    """

    kind: object
    arrival: object
    """What the transport knows about the message."""
    message: object


class CannotList(Exception):
    """The upstream did not list its tools. ``str()`` says why."""

    def __init__(
        self,
        why: str,
        *,
        is_refusal: bool = False,
        is_lost: bool = False,
        answer: RefusedBy | None = None,
    ) -> None:
        """``is_refusal`` says that the upstream refuses this client, and its answers say why."""
        super().__init__(why)
        self.is_refusal, self.is_lost, self.answer = is_refusal, is_lost, answer


class RoomEffect:
    """What a decision of a room needs; the room's own host carries it out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WriteLog(RoomEffect):
    """Write a rule's entry to the logs."""

    level: str
    message: str
    rule: str
    session: str = field(default="", compare=False)
    """The id of the session."""
    method: str | None = field(default=None, compare=False)
    tool: str | None = field(default=None, compare=False)
    id: str | None = field(default=None, compare=False)
    """The id of the message, as it was written."""
    shadow: bool = False
    """True if the rule is only evaluated."""


type Effect = Delay | Together | FetchTools | RoomEffect
type Deciding[Outcome] = Generator[Effect, object, Outcome]
type Decision[Outcome] = Outcome | Deciding[Outcome]
"""A decision that has been made, or one that must wait."""


def waits[Outcome](decision: Decision[Outcome]) -> TypeIs[Deciding[Outcome]]:
    """Tell whether a decision must wait for something."""
    return type(decision) is GeneratorType


def at_once[Outcome](steps: Deciding[Outcome]) -> Outcome:
    """Do long work, which needs nothing from the host, without letting others go on meanwhile."""
    try:
        while True:
            next(steps)
    except StopIteration as made:
        return cast("Outcome", made.value)


def with_pauses[Outcome](steps: Generator[None, None, Outcome]) -> Deciding[Outcome]:
    """Do long work in steps; other clients are served after each."""
    while True:
        try:
            next(steps)
        except StopIteration as made:
            return cast("Outcome", made.value)
        yield LET_OTHERS_GO_ON


def begin[Outcome](decision: Decision[Outcome]) -> Decision[Outcome]:
    """Run a decision up to its first effect; return the outcome if it needs none."""
    if not waits(decision):
        return decision
    try:
        effect = next(decision)
    except StopIteration as made:
        return cast("Outcome", made.value)
    return driven(decision, _yielded, lambda: effect)


def then[Outcome](
    decision: Decision[Any], go_on: Callable[[Any], Decision[Outcome]]
) -> Decision[Outcome]:
    """Continue with the outcome: at once, or when the decision has been made."""
    if waits(decision):
        return _then(decision, go_on)
    return go_on(decision)


def together[Outcome](
    decisions: Sequence[Decision[Any]], go_on: Callable[[list[Any]], Decision[Outcome]]
) -> Decision[Outcome]:
    """Continue when all decisions have been made; they wait at the same time."""
    if any(map(waits, decisions)):
        return _together(decisions, go_on)
    return go_on(list(decisions))


def driven[Outcome](
    decision: Deciding[Outcome],
    carry_out: Callable[[Effect], Deciding[object]],
    resume: Callable[[], Effect] | None = None,
) -> Deciding[Outcome]:
    """Make a decision whose effects another one carries out. ``resume`` returns its next effect,
    if it has begun."""
    resume = resume or partial(next, decision)
    while True:
        try:
            effect = resume()
        except StopIteration as made:
            return cast("Outcome", made.value)
        try:
            came = yield from carry_out(effect)
        except GeneratorExit:
            decision.close()
            raise
        except BaseException as error:  # the effect's failure, for the decision
            resume = partial(decision.throw, error)
        else:
            resume = partial(decision.send, came)


def _yielded(effect: Effect) -> Deciding[object]:
    return (yield effect)


def _then[Outcome](
    decision: Deciding[Any], go_on: Callable[[Any], Decision[Outcome]]
) -> Deciding[Outcome]:
    following = go_on((yield from decision))
    return (yield from following) if waits(following) else following


def _together[Outcome](
    decisions: Sequence[Decision[Any]], go_on: Callable[[list[Any]], Decision[Outcome]]
) -> Deciding[Outcome]:
    waiting = tuple(decision for decision in decisions if waits(decision))
    made = iter(cast("list[object]", (yield Together(waiting))))
    following = go_on([next(made) if waits(decision) else decision for decision in decisions])
    return (yield from following) if waits(following) else following


type OnDone[Outcome] = Callable[[Outcome | Exception], None]
type CarryOut = Callable[[Deciding[object], OnDone[object]], Callable[[], None]]
"""Carries out the effects of a decision, then reports what was decided or raised.

It returns a function that cancels this.
"""


@dataclass(slots=True, eq=False)
class _Held[Piece]:
    piece: Piece | None
    size: int
    cancel: Callable[[], None] | None = None


_OF_A_PIECE = 256
"""Bytes that a held piece takes besides its own: many small ones are not free."""


class InOrder[Piece]:
    """The queue of one direction of a stream. It calls ``wake`` when there is more to take."""

    def __init__(self, carry_out: CarryOut, wake: Callable[[], None], *, most: int) -> None:
        self._carry_out = carry_out
        self._wake = wake
        self._most = most
        self.held: deque[_Held[Piece]] = deque()
        self._size = 0

    @property
    def is_waiting(self) -> bool:
        """Whether anything has not been taken yet."""
        return bool(self.held)

    @property
    def size(self) -> int:
        """Bytes held, with what the pieces take besides."""
        return self._size

    def add(self, piece: Piece, size: int) -> None:
        """Hold a decided piece behind an undecided one."""
        self._hold(_Held(piece, size))

    def wait[Outcome](
        self, decision: Deciding[Outcome], size: int, render: Callable[[Outcome | Exception], Piece]
    ) -> None:
        """Hold a place for a decision until it is made."""
        held = _Held[Piece](None, size)
        self._hold(held)

        def done(outcome: Outcome | Exception) -> None:
            held.cancel = None
            held.piece = render(outcome)
            self._wake()

        held.cancel = self._carry_out(decision, done)  # type: ignore[arg-type]  # any outcome

    def take(self) -> list[Piece]:
        """Return the pieces that may leave now, oldest first."""
        taken: list[Piece] = []
        while self.held and (piece := self.held[0].piece) is not None:
            self._size -= self.held.popleft().size + _OF_A_PIECE
            taken.append(piece)
        return taken

    def abandon(self) -> None:
        """Drop everything and cancel the decisions: the receiver is gone."""
        held, self.held = self.held, deque()
        for one in held:
            if one.cancel:
                one.cancel()

    def _hold(self, held: _Held[Piece]) -> None:
        self.held.append(held)
        self._size += held.size + _OF_A_PIECE
        if self._size > self._most:
            raise OverflowError(f"more than {self._most} bytes are held back")
