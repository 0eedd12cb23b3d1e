"""Steps of an exchange that are taken later: when a decision, a hook or another program is ready.

A step is taken once, and only while it counts: the exchange may be over by then, or may have taken
another course (we answered it ourselves, for example). Whatever a step raises ends this exchange
and no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.core.policy.effects import Deciding

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import ClientSide
    from mcp_tool_filter.core.engine.service import Service


class Steps(ABC):
    """What takes steps now or later."""

    service: Service
    down: ClientSide
    _course = 0
    """Changes when what was waited for no longer counts."""

    @property
    @abstractmethod
    def is_over(self) -> bool: ...

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """A step has raised. Never raises."""

    def guarded[*Args](self, step: Callable[[*Args], None], *args: *Args) -> None:
        """Take a step; if it raises, only this exchange ends."""
        try:
            step(*args)
        except Exception as error:
            self.fail(error)

    def when_ready(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return a function that takes a step with what it gets: an error, or what was waited
        for."""
        return partial(self._take_late, self._course, step)

    def once(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return a function that takes a step the first time it is called."""
        steps, take = [step], self.when_ready(lambda: steps.pop()())

        def go_on() -> None:
            if steps:
                take()

        return go_on

    def carry_out[T](self, decision: Deciding[T], step: Callable[[T], None]) -> None:
        """Take a step with what a decision that waits comes to."""
        self.service.effects.carry_out(decision, self.when_ready(step))

    def _take_late(self, course: int, step: Callable[..., None], *came: object) -> None:
        if course != self._course or self.is_over:
            return
        if came and isinstance(came[0], Exception):
            self.fail(came[0])
        else:
            self.guarded(step, *came)
        self.down.host.wake()
