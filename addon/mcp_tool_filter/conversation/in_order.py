"""Keep messages in their order of arrival, although some are decided later.

It holds only the message that waits and the messages behind it in the same stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mcp_tool_filter.policy.effects import Deciding

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
        """Bytes held."""
        return self._size

    def add(self, piece: Piece, size: int) -> None:
        """Hold a decided piece behind an undecided one."""
        self._hold(_Held(piece, size))

    def wait[Outcome](
        self,
        decision: Deciding[Outcome],
        size: int,
        render: Callable[[Outcome | Exception], Piece],
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
            self._size -= self.held.popleft().size
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
        self._size += held.size
        if self._size > self._most:
            raise OverflowError(f"more than {self._most} bytes are held back")
