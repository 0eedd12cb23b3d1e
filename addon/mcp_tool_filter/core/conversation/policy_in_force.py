"""The policy that one listener uses now, and what it tells its observers. All open streams look
here for each message.

No stream keeps its own snapshot, so an edit of the patterns applies at once, even to streams and
sockets that were opened before it. Observers are told what a message was, its verdict, and the
basis of the decision (``Judged``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Protocol

from mcp_tool_filter.core.conversation.declared import ALL_CAPABILITIES, canonical
from mcp_tool_filter.core.conversation.kinds import Kinds
from mcp_tool_filter.core.conversation.lists import listings_in
from mcp_tool_filter.core.conversation.memory import Fetched, HeldRequests, JudgedLists
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits, OverLimit
from mcp_tool_filter.core.messages.messages import (
    INVALID_REQUEST,
    Message,
    Single,
    ids_guessed_in,
    ids_in,
    render_error,
)
from mcp_tool_filter.core.messages.tool_requests import ListRequest
from mcp_tool_filter.core.messages.tools import Listing
from mcp_tool_filter.core.policy.chain import join_reported, refusal
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import Deciding, at_once
from mcp_tool_filter.core.policy.situation import Client, Direction, Link, RpcExchange
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Reply, Verdict, Why, is_for_nobody

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INVALID_ANSWER = "The server sent an invalid response"
LOST_ANSWER = "Upstream connection lost"
_DEEPEST_READ = 5000  # levels; we read so deep only to find the id of a message that is too deep
FORWARD = Forward()


@dataclass(slots=True, eq=False)
class Judged:
    """One message and its verdict. This is what observers get."""

    direction: Direction
    message: Message | None
    """None if it could not be read."""
    verdict: Verdict
    client: Client
    snapshot: Snapshot
    """The snapshot that it was judged by."""
    exchange: RpcExchange | None = None
    """The request that this message is, or answers."""
    size: int = 0
    """Bytes received."""
    origin: object = None
    """The host's own object for the message, such as mitmproxy's flow."""
    members: tuple[Judged, ...] = ()
    """The members of a batch, each with its own verdict."""
    would: Verdict | None = None
    """What would have happened, if the policy only reports it (``shadow``, ``mode: audit``)."""
    audited: list[Verdict] | None = None
    """The verdicts of rules that only report."""
    sent: Message | None = None
    """What the upstream gets if edits change it. ``message`` has its names then, and not the values
    that edits put into it, which may be secret."""
    refusal: Verdict | None = None
    """The refusal of an edit, which also holds if the policy only reports."""
    in_force: Snapshot | None = None
    """The snapshot in force at that time; it differs from ``snapshot`` for a page of an unfinished
    list."""

    def member(self, message: Single, exchange: RpcExchange | None) -> Judged:
        """Return the record of a member of this batch."""
        size = message.place.end - message.place.start
        return replace(self, message=message, verdict=FORWARD, exchange=exchange, size=size)

    def settle(self, verdict: Verdict, *, is_shadow: bool) -> Verdict:
        """Return what happens to the message, and note what would have happened."""
        self.verdict = verdict
        if self.audited:
            self.would = join_reported(self.audited)
        if not is_shadow or verdict is self.refusal:
            return self.verdict
        if not isinstance(verdict, Forward) and not is_for_nobody(verdict):
            self.verdict, self.would = self.refusal or FORWARD, verdict
            if self.exchange is not None and self.direction is Direction.FROM_CLIENT:
                is_sent = self.refusal is None
                self.exchange.is_only_shadowed = is_sent and isinstance(verdict, Reply)
        return self.verdict

    @property
    def each(self) -> tuple[Judged, ...]:
        """The members of a batch, or this message."""
        return self.members or (self,)


class Arrival:
    """What a transport knows about a client's message besides its bytes."""

    __slots__ = ()
    announces = True
    """True if the transport announces messages (in headers), so that ``problem_in`` must be
    asked."""

    is_endpoint = True
    """False if it came elsewhere than at the MCP endpoint."""
    is_like_the_fetch = True
    """False if something beside the message may change the list that answers it."""

    def speaks(self, revision: str | None) -> bool:
        """Tell whether all that names a revision agrees with the one in the message's ``_meta``."""
        return True

    @property
    def can_list(self) -> bool:
        """Whether the host can ask the upstream for the list that this client would get."""
        return False

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Return a refusal if the transport announced a different message, else None."""
        return None

    def compare(self, asks: ListRequest) -> tuple[bool, bool]:
        """Tell of a tools/list whether our own fetch could have sent it, and whether the upstream
        would answer it with the list that we fetched."""
        return True, False

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Decide on a message that cannot be read. Observers are not told if it is forwarded."""
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        return refusal(raw, Why.MALFORMED, limits=limits, detail=str(error))


def oversized(beginning: bytes, detail: str, ids: list[str] | None = None) -> Reply:
    """Refuse a message that is too large or too deep; ``beginning`` is the part that we have."""
    if ids is None:
        anything = Limits(message=max(1, len(beginning)), depth=_DEEPEST_READ)
        ids = ids_in(beginning, anything) or list(dict.fromkeys(ids_guessed_in(beginning)))
    text = f"Request too large: {detail}"
    reply = render_error(ids[0] if len(ids) == 1 else None, INVALID_REQUEST, text)
    return Reply(reply, Reason(Why.OVERSIZED, detail=text))


type Observer = Callable[[Judged], None]
"""Called for each message after the decision; cannot change anything."""


class PlainCall(Protocol):
    """A call in the lane (``rooms/lane``): these of its properties are seen, and nothing else."""

    tool: str
    meta: bytes
    """The ``_meta`` by which a client without a session says who it is; or empty."""
    body: bytes
    answer: bytes
    """Empty until the result has come."""
    asked_at: float
    sent_at: float

    @property
    def id(self) -> str:
        """The id as it was written."""

    @property
    def client(self) -> Client: ...


class PlainObserver(Protocol):
    """Observes plain calls: those that are forwarded unchanged, and so are their results."""

    def plain_begins(self, call: PlainCall) -> None:
        """It is sent."""

    def plain_ends(self, call: PlainCall) -> None:
        """Its result is sent to the client."""

    def plain_leaves(self, call: PlainCall, exchange: RpcExchange, origin: object) -> None:
        """It goes on as this exchange: from now on its messages are observed."""


@dataclass(frozen=True, slots=True)
class Watch:
    """An observer, with what it needs to see."""

    of_messages: Observer
    of_plain_calls: PlainObserver | None
    """What observes plain calls in its place. None if it needs their messages: then each call goes
    the whole way, which takes about twice as long."""


_NEEDS = "needs messages"


def needs_messages[T](unset: T) -> T:
    """Declare a hook, or a link, that may see or change what is plain: while it is set, no call
    takes the lane."""
    return field(default=unset, metadata={_NEEDS: True})


def needs_nothing[T](unset: T) -> T:
    """Declare a hook that concerns no plain call, or that the lane asks itself."""
    return field(default=unset, metadata={_NEEDS: False})


def needs_of(kind: type[DataclassInstance]) -> dict[str, bool]:
    """Return the hooks that a class declares, and whether each needs messages."""
    return {one.name: one.metadata[_NEEDS] for one in fields(kind) if _NEEDS in one.metadata}


type Propagate = Callable[[Judged], Verdict]
"""Returns the verdict on a message with the trace's parent replaced by our span."""


@dataclass(frozen=True, slots=True)
class SessionAtWork:
    """What the rules remember about one client."""

    id: str
    seconds: float
    """Since the session began."""
    messages: int
    errors: int
    mean_latency: float
    """Seconds from a request to its response."""


@dataclass(frozen=True, slots=True)
class RulesAtWork:
    """What the rules have done so far."""

    hits: tuple[tuple[str, int], ...] = ()
    """Each rule, in order of evaluation, and how often it has matched."""
    metrics: tuple[tuple[str, float], ...] = ()
    """What the rules have counted, by name."""
    sessions: tuple[SessionAtWork, ...] = ()
    """The most recently used one comes first."""


type AnswerUpstream = Callable[[bytes, object, Client], None]
"""Called with the reply, the host's object for the request, and the client whose stream it came
on."""


type TellHidden = Callable[[tuple[str, ...], Judged], None]
"""Called with the faults of tools in a list that was fetched for this message's client."""


def _ignore(*_told: object) -> None:
    """Do nothing."""


@dataclass(slots=True, kw_only=True)
class PolicyInForce:
    """The configuration, the result of the start-up fetch, and the snapshots made of both."""

    config: Config
    fetched: Fetched
    observe: Observer = needs_nothing(_ignore)
    observe_plain: PlainObserver | None = needs_nothing(None)
    """Observes the calls in the lane; None if some observer needs their messages."""
    propagate: Propagate | None = needs_messages(None)
    """Set if requests are traced. Observers see the verdict before this changes it."""
    clock: Callable[[], float] = time.monotonic
    links: tuple[Link, ...] = needs_messages(())
    """The chain after the tool filter."""
    answer_upstream: AnswerUpstream = needs_nothing(_ignore)
    """Sends the upstream our reply to a request that came on a stream. (Only links reply.)"""
    tell_hidden: TellHidden = needs_nothing(_ignore)
    rules_at_work: Callable[[], RulesAtWork] = needs_nothing(RulesAtWork)
    keeps_requests: bool = needs_messages(False)
    """True if a link wants to see a request together with its response."""
    reads_in_steps: bool = True
    """True if a long list is read in steps, so that other clients are served meanwhile."""
    held: HeldRequests = field(default_factory=HeldRequests)
    kinds: Kinds = field(init=False)
    judged: dict[str, JudgedLists] = field(init=False)
    """The judged lists of each method that lists something, while this configuration holds."""
    _whole: tuple[object, Snapshot] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.config.refuse_unread()
        self._forget_judged()
        self.kinds = Kinds(self.config, self.clock)
        at_once(self.take(self.fetched))

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of our own fetch, with what it says of the catalog."""
        snapshot, catalog = self.kinds.start.snapshot, self.config.catalog
        if catalog is None or not self.fetched.others:
            return snapshot
        basis = snapshot, catalog, self.fetched
        if self._whole is None or self._whole[0] != basis:
            listed, unmatched = catalog.survey(self.fetched.others)
            unmatched = [*snapshot.unmatched, *unmatched]
            self._whole = basis, replace(snapshot, catalog=listed, unmatched=tuple(unmatched))
        return self._whole[1]

    def take(self, fetched: Fetched) -> Deciding[None]:
        """Make this the snapshot of the start. If it raises, nothing has changed."""
        kinds = self.kinds
        if fetched.is_listed:
            yield from kinds.start.take(fetched.pages)
        self.fetched = fetched
        kinds.same_for_all = fetched.is_for_all
        kinds.start_key = fetched.revision, canonical(ALL_CAPABILITIES)

    @property
    def listings(self) -> Iterator[Listing]:
        """The fetched pages of the tool list. (Parsed each time: parsed lists take much memory.)"""
        return filter(None, listings_in(self.fetched.pages))

    def adopt(self, config: Config) -> None:
        """Use another configuration from now on, also for tools that were listed before."""
        config.refuse_unread()
        self.kinds.adopt(config, same_choice=config.choice == self.config.choice)
        self.config = config
        self._forget_judged()

    def _forget_judged(self) -> None:
        self.judged = {method: JudgedLists() for method in ("tools/list", "prompts/list")}
