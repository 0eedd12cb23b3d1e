"""What all connections of one listener share, and what a host implements.

The engine asks the service; ``core/process`` fills it in, the same for both hosts. Everything
here is a value or a callable: the engine knows no event loop and no socket. A hook with ``go_on``
may call it at once or later. Until then the exchange waits; instead of going on, a hook may answer
the exchange itself.

A host carries out the engine's orders, and runs other addons: it moves bytes and decides nothing.
It creates an ``H1Client`` for each client connection, and gives it what comes:
``receive``, ``gone`` (also for a half-closed connection), ``held`` (the client reads slowly, or
again) and ``tick`` (every few seconds, for the time-outs). For each connection to an upstream it
creates an ``Upstream`` and calls its ``receive`` and ``lost``. The engine may order anything within
such a call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mcp_tool_filter.core.conversation.policy_in_force import needs_messages, needs_nothing
from mcp_tool_filter.core.engine.wire import DEFAULT_LIMITS, Fault, HttpLimits
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.effects import Deciding, OnDone

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.engine.upstream import Upstream
    from mcp_tool_filter.core.engine.wire import AnswerHead, RequestHead

log = logging.getLogger(__name__)

_SHARE_OF_ONE_THAT_NEVER_ASKED = 0.1

type GoOn = Callable[[], None]

"""Failures that are logged: more would fill the log."""


def nothing() -> None:
    """Do nothing: nobody wants to know."""


class EffectRunner(Protocol):
    """Carries out decisions that wait (``core/process/background.Effects``)."""

    def carry_out(self, decision: Deciding[Any], done: OnDone[Any]) -> Callable[[], None]: ...


class Silent(Protocol):
    """A client connection that can be closed because it says nothing."""

    @property
    def heard(self) -> float | None:
        """When it was heard last, if after it has entered; None while it waits for us."""

    @property
    def was_served(self) -> bool:
        """True once a whole request of it has come."""

    def close_silent(self) -> None: ...


class Silence:
    """How long a state has been the same, as the ticks have seen it."""

    def __init__(self) -> None:
        self._state: object = None
        self._since = 0.0

    def lasts(self, state: object, now: float) -> float:
        """Note the present state; return for how many seconds it has been the same."""
        if state != self._state:
            self._state, self._since = state, now
        return now - self._since


class Seats:
    """The clients that are connected, up to a limit.

    A client that has asked and waits for an answer keeps its seat. All others are silent: new ones,
    idle ones, those that send a request slowly. If all seats are taken, a newcomer gets that of a
    client that has been silent for ``patience`` seconds: of one that was never served if there is
    one, and of the one that has been silent longest. If there is none, the newcomer stands: its
    first request takes the seat of a client that was never served and is silent for a tenth of
    this time (or a crowd that only connects would keep all others out), or is answered with 503,
    and its connection is closed.

    Requests only note when they came: a newcomer looks at all clients, and only if there are too
    many.
    """

    def __init__(
        self,
        most: int,
        *,
        most_standing: int = 16,
        clock: Callable[[], float] = float,
        patience: float = 0.0,
        on_full: Callable[[], None] = nothing,
    ) -> None:
        """``on_full`` is called when a client gets no seat."""
        self.most = most
        self.clock = clock
        self._most_standing = most_standing
        self._patience, self._on_full = patience, on_full
        self._seated: dict[Silent, float] = {}
        """The clients, and when they have entered."""
        self.standing: dict[Silent, None] = {}
        """Those without a seat. Each request checks whether there are any."""

    def __len__(self) -> int:
        return len(self._seated)

    def enter(self, client: Silent) -> None:
        """Admit a client; another one may be closed for it."""
        if self._has_room() or self._has_room(served=True):
            self._seated[client] = self.clock()
            return
        self.standing[client] = None
        self._on_full()
        if len(self.standing) > self._most_standing:
            oldest = next(iter(self.standing))
            del self.standing[oldest]
            oldest.close_silent()

    def note_request(self, client: Silent) -> None:
        """Let a client that stands and asks take the seat of another, if it can."""
        if client in self.standing and self._has_room(share=_SHARE_OF_ONE_THAT_NEVER_ASKED):
            del self.standing[client]
            self._seated[client] = self.clock()

    def keep(self, client: Silent) -> None:
        """Let a client have its seat as long as it likes."""
        if client in self._seated:
            self._seated[client] = math.inf

    def leave(self, client: Silent) -> None:
        self._seated.pop(client, None)
        self.standing.pop(client, None)

    def silence_of(self, client: Silent) -> float:
        """Return for how many seconds a client that has never asked has been here."""
        return self.clock() - self._seated.get(client, self.clock())

    def _has_room(self, *, served: bool = False, share: float = 1.0) -> bool:
        """Tell whether a seat is free, perhaps now: the client that has been silent longest, of
        those that were ``served`` or of the others, loses its own after this share of our
        patience."""
        if len(self._seated) < self.most:
            return True
        longest, client = math.inf, None
        for one, entered in self._seated.items():
            heard = one.heard
            if heard is not None and one.was_served is served and max(heard, entered) < longest:
                longest, client = max(heard, entered), one
        if client is None or self.clock() - longest < self._patience * share:
            return False
        self.leave(client)
        client.close_silent()
        return True


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Service:
    """One listener as the engine sees it."""

    listener: Listener
    authority: bytes
    """The upstream's Host."""
    effects: EffectRunner
    name: str = ""
    """What the user calls the upstream, if there are several."""
    seats: Seats | None = None
    """The seats of all clients of the process, if they are limited."""
    shares_seats: bool = False
    """True if clients of other upstreams have seats there, too: a quarter is left for them."""
    limits: HttpLimits = DEFAULT_LIMITS
    open: set[Exchange] = field(default_factory=set)
    """The open exchanges that are whole; see ``exchanges``."""
    lanes: set[InLane] = field(default_factory=set)
    """The calls that go the short way."""
    take_lane: Callable[[Service, H1Client, RequestHead, bytes], InLane | None] | None = (
        needs_nothing(None)
    )
    """Returns the short way of a request that may be a plain call, given its bytes; None if it must
    go the whole way."""
    route: Callable[[RequestHead], Service] | None = needs_nothing(None)
    """If there are several upstreams: returns the service of a request, and makes its head the
    one for that upstream."""
    is_ending: bool = needs_messages(False)
    """True once the upstream is lost or removed: what is asked from now on is answered as lost."""
    is_draining: bool = False
    """True once the process ends: each answer is the last one on its connection."""
    learns_logins: bool = needs_messages(False)
    """True if somebody wants to know which paths belong to logins (``only_mcp`` always
    does)."""
    suspect: Callable[[], None] = needs_nothing(nothing)
    """Called when a connection to the upstream failed: is the upstream lost?"""
    note_end_of_stream: Callable[[], None] = needs_nothing(nothing)
    """Called at the clean end of a long stream: a restarting upstream ends it like this."""
    is_visit: Callable[[Exchange], bool] | None = needs_nothing(None)
    """Logins through us: tells whether a browser's navigation belongs to a login, so that a
    page of another site may cause it. Only ``before_judging`` may answer such a request."""
    may_be_login: Callable[[str], object] | None = needs_nothing(None)
    """Logins through us: tells by a target whether ``before_judging`` has to see a request."""
    before_judging: Callable[[Exchange, GoOn], None] | None = needs_nothing(None)
    """Logins through us: may answer the exchange or change its head and body; then goes on."""
    before_sending: Callable[[Exchange, GoOn], None] | None = needs_messages(None)
    """Our own login: adds its token (``exchange.add_field``), perhaps after it was renewed."""
    connect: Callable[[Exchange], Upstream | None] | None = needs_messages(None)
    """Instead of the host's, for an upstream that is no connection (a command)."""
    before_answering: Callable[[Exchange, GoOn], bool] | None = needs_messages(None)
    """Our own login, at an answer's head: True if a 401 is kept from the client. The request is
    sent again when the hook goes on, which it does after it has returned."""
    rewrite_refusal: Callable[[Exchange], None] | None = needs_nothing(None)
    """Logins through us: may change the fields of an answer that was judged, if it is a 401 or
    403."""
    rewrite_body: Callable[[Exchange], None] | None = needs_messages(None)
    """Logins through us: may change the body of an answer that was judged."""
    note_over: Callable[[Exchange], None] | None = needs_messages(None)
    """Called at the end of each exchange, if somebody follows them."""
    _told: set[object] = field(default_factory=set)

    @property
    def exchanges(self) -> set[Exchange]:
        """The open exchanges: losses, budgets, notices and the end of the process look here. A call
        in the lane becomes a whole exchange by that."""
        for lane in [*self.lanes]:
            lane.whole()
        return self.open

    @property
    def is_crowded(self) -> bool:
        """Whether so many clients wait for this upstream that those of others need the rest.

        Else calls to one that hangs would take all seats. Streams that have begun do not wait.
        """
        if not self.shares_seats or self.seats is None:
            return False
        most = self.seats.most - self.seats.most // 4
        if len(self.open) + len(self.lanes) <= most:  # as nearly always
            return False
        in_lanes = sum(lane.stream is None for lane in self.lanes)
        return in_lanes + sum(not one.has_begun for one in self.open) > most

    def see_head(
        self, exchange: Exchange, locations: Sequence[str], challenges: Sequence[str]
    ) -> None:
        """Learn from the head of an answer where clients log in, and let a refusal name us."""
        head, answer = exchange.head, exchange.answer
        if self.listener.policy.config.only_mcp or self.learns_logins:
            self.listener.logins.learn_head(head.method, head.target, locations, challenges)
        if self.rewrite_refusal is not None and answer is not None and answer.status in (401, 403):
            self.rewrite_refusal(exchange)

    def note_failure(self, error: Exception) -> None:
        """Log once why an exchange is refused: a peer's mistake, or a bug with its traceback."""
        key: object = str(error)
        is_mistake = isinstance(error, ProtocolError | Fault)
        if not is_mistake:
            last = error.__traceback__
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            key = type(error), last.tb_lineno if last is not None else 0
        if key in self._told or len(self._told) >= MANY:
            return
        self._told.add(key)
        if is_mistake:
            log.warning("Refused an answer: %s", error)
        else:
            log.error("internal error; an exchange was refused", exc_info=error)


# Hosts


class Address(NamedTuple):
    """Where a request goes if not to the listener's upstream."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> bytes:
        """The value of Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.is_tls else 80)
        return (host if usual else f"{host}:{self.port}").encode()


class Asking(Protocol):
    """A request, as connections see it: an ``Exchange``, or one that passes unread."""

    head: RequestHead
    up: Upstream | None
    address: Address | None
    most_idle: float
    """Seconds for which a connection may have been idle, unless the request ``may_use_any``."""
    size: int
    """Bytes of the message that comes now."""

    @property
    def service(self) -> Service: ...
    @property
    def down(self) -> Any: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def may_use_any(self) -> bool: ...
    @property
    def stream(self) -> object: ...
    @property
    def flow(self) -> object: ...

    def take(self, data: bytes) -> None: ...
    def end_of_request(self) -> None: ...
    def client_left(self) -> None: ...
    def connected(self, up: Upstream) -> None: ...
    def unreachable(self, why: str) -> None: ...
    def upstream_is_slow(self, on: bool) -> None: ...
    def upstream_lost(self, *, was_idle: bool) -> None: ...
    def on_answer(self, head: AnswerHead, body: bytes) -> None: ...
    def on_head(self, head: AnswerHead) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def cut(self, why: str) -> None: ...
    def fail(self, error: Exception) -> None: ...


class InLane(Asking, Protocol):
    """A call that goes a shorter way than an ``Exchange``."""

    called: str

    def begin(self) -> None: ...
    def whole(self) -> Exchange:
        """Return the exchange that goes on in its place."""


class Host(Protocol):
    """What the engine orders for one client connection."""

    own: str
    """Our address to which the client has connected."""
    peer: str
    """The client's address."""
    port: int
    """The client's port."""
    is_tls: bool
    """True if the client uses TLS."""

    def send(self, data: bytes) -> None:
        """Send these bytes to the client. After ``abort`` or ``close`` this does nothing."""

    def close(self) -> None:
        """Close the connection when all is sent: half first, so that a client that still sends can
        read our answer; what it sends is thrown away, a few seconds and a few megabytes long."""

    def abort(self) -> None:
        """Close the connection so that the client notices that something is missing."""

    def hold(self, on: bool) -> None:
        """Stop reading from the client, or read on."""

    def connect(self, exchange: Asking) -> Upstream | None:
        """Return an idle connection for a request, or call its ``connected`` or ``unreachable``.

        An idle one is used if it has been idle for less than ``exchange.most_idle`` seconds, or if
        ``exchange.may_use_any``. If the exchange is over by then, the connection stays idle.
        """

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call this after other connections were served, or later; then wake."""

    def wake(self) -> None:
        """Carry out what was ordered: the engine was called from outside of the host's events."""
