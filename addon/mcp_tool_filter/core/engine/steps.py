"""Steps of an exchange that are taken now or later, and what it orders for its client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.core.engine.wire import NOT_IMPLEMENTED, Fault
from mcp_tool_filter.core.http.head import Fields, text_of
from mcp_tool_filter.core.messages.messages import INVALID_REQUEST, render_error
from mcp_tool_filter.core.policy.effects import Deciding

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.service import Host, Service

INVALID_HTTP = render_error(None, INVALID_REQUEST, "Invalid Request")
NO_UPGRADE = render_error(
    None, INVALID_REQUEST, "Only HTTP/1.1 passes here: no upgrade (WebSocket, h2c), no CONNECT"
)


class Outcome(Enum):
    """How an exchange has ended."""

    ANSWERED = auto()
    """By the upstream, by another addon, or by ourselves."""
    CLIENT_LEFT = auto()
    UPSTREAM_FAILED = auto()
    """It could not be reached, or disconnected too early."""
    CUT = auto()
    """By ourselves, after the answer had begun."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer on its way to the client. Other addons may change it before it is sent."""

    status: int
    reason: bytes | None = None
    """None for the usual one."""
    fields: Fields = ()
    """Without those that frame it."""
    body: bytes = b""
    length: int | None = None
    """The length that the upstream has announced; it counts if there is no body to measure."""

    def get(self, name: bytes) -> str:
        """Return the value of a field; several are joined."""
        return text_of(self.fields, name)


def answer_to(fault: Fault) -> Answer:
    """Return our answer to bytes that are not HTTP as we accept it."""
    fields = ((b"content-type", b"application/json"), *fault.fields)
    said = NO_UPGRADE if fault.status == NOT_IMPLEMENTED else INVALID_HTTP
    return Answer(fault.status, None, fields, said)


class ClientSide(Protocol):
    """What an exchange orders for its client."""

    host: Host
    is_slow: bool
    """True while the client does not read what we send."""

    @property
    def lacks_seat(self) -> bool:
        """Whether there are too many clients to serve this one."""

    def go_ahead(self) -> None: ...
    def respond(self, answer: Answer, *, is_bare: bool) -> None:
        """Send a whole answer, and turn to the next request."""

    def stream(self, data: bytes, *, head: Answer | None = None, is_last: bool = False) -> None:
        """Send a piece of an answer: the first with its head, behind the last the turn ends."""

    def cut(self, exchange: Exchange) -> None: ...


class Steps(ABC):
    """Steps that are taken now, or later: when a decision, a hook or another program is ready.

    A step is taken once, and only while it counts: the exchange may be over by then, or may have
    taken another course (we answered it ourselves, for example). Whatever a step raises ends this
    exchange and no other.
    """

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
