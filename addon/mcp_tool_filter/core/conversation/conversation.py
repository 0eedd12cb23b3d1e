"""Read each message once, ask the policy, remember, and tell the observers.

HTTP bodies, events and stdio lines all enter here, as bytes; this module knows no transport. It
returns what happens to each:

>>> from mcp_tool_filter.core.conversation.memory import example
>>> from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
>>> from mcp_tool_filter.cli.parsing import parse_config
>>> policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
>>> conversation = Conversation(policy)
>>> call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
>>> conversation.from_client((call % "read").encode()).verdict
Forward()
>>> conversation.from_client((call % "rm").encode()).verdict.text
b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Tool not found: rm"}}'
>>> conversation.waiting
['1']

A decision that waits is a generator of effects that returns the same value; the module ``effects``
works with both.

``from_client`` judges the client's messages, ``from_upstream`` those of the upstream. Both use the
same requests in flight and the same kind of asker, so this is one class, although it is long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from mcp_tool_filter.core.conversation.declared import capabilities_in, program_in, revision_in
from mcp_tool_filter.core.conversation.edited import decide_edited, edited
from mcp_tool_filter.core.conversation.kinds import Kind
from mcp_tool_filter.core.conversation.list_first import (
    needs_list,
    refused_as_upstream,
    without_list,
)
from mcp_tool_filter.core.conversation.memory import JudgedLists
from mcp_tool_filter.core.conversation.policy_in_force import (
    FORWARD,
    INVALID_ANSWER,
    LOST_ANSWER,
    Arrival,
    Judged,
    PolicyInForce,
    oversized,
)
from mcp_tool_filter.core.conversation.subscriptions import (
    ACKNOWLEDGED,
    LIST_CHANGED,
    is_true,
    note_subscription,
    notice,
)
from mcp_tool_filter.core.errors import FetchFailed, ProtocolError
from mcp_tool_filter.core.messages.large import (
    ResultEnvelope,
    find_result_envelope,
    parse_in_steps,
    read_tool_result,
)
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    Batch,
    Message,
    Notification,
    Request,
    Response,
    Single,
    id_value,
    ids_guessed_in,
    parse_message,
    render_error,
    singles,
)
from mcp_tool_filter.core.messages.tool_requests import parse_list_request
from mcp_tool_filter.core.messages.tools import Listing, ShowsHidden, parse_listing, shows_tool
from mcp_tool_filter.core.policy.chain import (
    decide_accepted,
    decide_from_client,
    decide_from_upstream,
    join_from_client,
    join_from_upstream,
    judge_again,
    keep_space,
    refusal,
)
from mcp_tool_filter.core.policy.effects import (
    LET_OTHERS_GO_ON,
    CannotList,
    Deciding,
    Decision,
    FetchTools,
    at_once,
    begin,
    then,
    together,
    waits,
    with_pauses,
)
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Situation, Via
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.tool_filter import filter_from_client, filter_from_upstream
from mcp_tool_filter.core.policy.verdict import (
    VERDICTS,
    Drop,
    Forward,
    Reason,
    Reply,
    Rewrite,
    Verdict,
    Why,
)

# After anything else, even an answer to the upstream's question, it may list other tools.
_ONLY_READ = frozenset({
    "initialize", "notifications/initialized", "notifications/cancelled", "ping", "tools/list",
    "prompts/list", "prompts/get", "resources/list", "resources/read", "resources/templates/list",
    "resources/subscribe", "resources/unsubscribe", "subscriptions/listen", "completion/complete",
    "logging/setLevel", "server/discover", "notifications/progress",
})  # fmt: skip
_LONGEST_METHOD = 64  # characters; every method that matters to us is shorter
_CANCELLED = "notifications/cancelled"
_LIST = "tools/list"
_REQUEST_CANCELLED = -32800  # as in the Language Server Protocol
_PLAIN = Arrival()
_LIMITS = Limits()
_LONG = 256 * 1024  # bytes of a list; reading so many takes some ten milliseconds
_LONG_WITH_URIS = 4 * 1024  # bytes of a message that may have URIs: some take long to judge
_LEAST = 16 * 1024  # bytes of a tool's result: rules, and who reports errors, read a shorter one
_LONGEST_REVISION = 64  # characters


@dataclass(slots=True, eq=False, kw_only=True)
class Exchanges:
    """The requests that wait for a response, by the value of their id.

    We compare ids by value, because an upstream may write ``"\\u0061"`` as ``"a"``, but keep each
    as the client wrote it. Both the number and the bytes of these requests are bounded.
    """

    most: int = _LIMITS.exchanges
    most_bytes: int = _LIMITS.exchange_bytes
    lists: int = 0
    """How many of them ask for a tool list."""
    _size: int = 0
    _waiting: dict[str, RpcExchange] = field(default_factory=dict)
    """The oldest comes first."""

    def open(self, exchange: RpcExchange) -> None:
        """Remember a forwarded request; forget the oldest ones if there are too many."""
        id, waiting = exchange.id, self._waiting
        if id is None:
            return
        value = exchange.key = id if id.isdigit() else id_value(id)
        if exchange.method == _LIST and self.lists:
            self._doubt_lists(exchange)
        if value in waiting:
            self._forget(value)
        waiting[value] = exchange
        self.lists += exchange.method == _LIST
        self._size += _size_of(exchange)
        while len(waiting) > self.most or self._size > self.most_bytes:
            self._forget(next(iter(waiting)))

    def _doubt_lists(self, new: RpcExchange) -> None:
        """Learn from no list if several are asked for at once, unless all are the same.

        Under one id, an answer may be taken for that of another request.
        """
        asked = [new, *(one for one in self._waiting.values() if one.method == _LIST)]
        if any(one.is_unusual or one.cursor != new.cursor for one in asked):
            for one in asked:
                one.is_unusual = True

    def is_taken(self, exchange: RpcExchange) -> bool:
        """Tell whether this id belongs to another open request that rules want to see with its
        response.

        We could not tell which of the two a response answers.
        """
        if not self._waiting or exchange.id is None:
            return False
        before = self._waiting.get(id_value(exchange.id))
        if before is None or before.request is None:
            return False
        return exchange.request is None or before.request.place.raw != exchange.request.place.raw

    def answered_by(self, message: Message) -> RpcExchange | None:
        """Return the exchange that a response answers, if we know it."""
        if isinstance(message, Response) and (id := message.id) is not None:
            return self._waiting.get(id if id.isdigit() else id_value(id))
        return None

    def close(self, exchange: RpcExchange) -> None:
        """Forget an answered request, unless another one uses its id by now."""
        if self._waiting.get(exchange.key) is exchange:
            self._forget(exchange.key)

    @property
    def methods(self) -> Collection[str]:
        return [exchange.method for exchange in self._waiting.values()]

    @property
    def subscriptions(self) -> list[str]:
        """The upstream's id of each request for notifications of list changes."""
        return [one.subscription for one in self._waiting.values() if one.subscription]

    @property
    def ids(self) -> list[str]:
        """The ids of all waiting requests, as they were written, oldest first."""
        return [exchange.id for exchange in self._waiting.values() if exchange.id is not None]

    def take(self, ids: list[str]) -> list[str]:
        """Forget the waiting requests with these ids; return their ids as they were written."""
        taken = [self._forget(id_value(id)) for id in ids]
        return [one.id for one in taken if one is not None and one.id is not None]

    def take_all(self, *, besides: Collection[str] = ()) -> list[str]:
        """Forget all waiting requests except those with these methods; return their ids."""
        if besides:
            due = [one for one in self._waiting.values() if one.method not in besides]
            return self.take([one.id for one in due if one.id is not None])
        ids = self.ids
        self._waiting.clear()
        self._size = self.lists = 0
        return ids

    def _forget(self, value: str) -> RpcExchange | None:
        exchange = self._waiting.pop(value, None)
        if exchange is not None:
            self._size -= _size_of(exchange)
            self.lists -= exchange.method == _LIST
        return exchange

    def __len__(self) -> int:
        return len(self._waiting)


def _size_of(exchange: RpcExchange) -> int:
    size = len(exchange.id) if exchange.id else 0
    return size + len(exchange.request.place.text) if exchange.request else size


@dataclass(slots=True, eq=False)
class Conversation:
    """The messages between one client and the upstream, on one stream or one connection."""

    policy: PolicyInForce
    client: Client = field(default_factory=Client)
    exchanges: Exchanges = field(default_factory=Exchanges)
    ours: dict[str, Callable[[bytes], None]] | None = None
    """Requests of our own whose answers come on this stream, by id: what takes an answer."""

    @property
    def kind(self) -> Kind:
        """The kind of asker that the client is, unless a message declares its own capabilities."""
        return self.policy.kinds.of(self.client)

    def _kind_of(self, exchange: RpcExchange | None) -> Kind:
        return self.policy.kinds.of(self.client, exchange)

    def _snapshot_for(self, message: Single, kind: Kind, asked: RpcExchange | None) -> Snapshot:
        """Return the snapshot to judge an answer by; pin new tools in its list if that is
        configured, unless it answers another request: that may be another list."""
        if kind.is_settled:
            return kind.snapshot
        is_list = asked is None or asked.method == _LIST
        listing = _list_in(message, is_expected=is_list)
        # Nobody knows what an answer to nothing is: the whole list, or what one client asked for.
        is_usual = is_list and not (asked.is_unusual if asked else kind.is_shared)
        return at_once(kind.snapshot_for(listing, pins=is_usual)) if listing else kind.snapshot

    def _by_policy_now(self, judged: Judged, verdict: Verdict) -> Verdict:
        """Judge a message again if the policy was edited while it waited."""
        kind, message = self._kind_of(judged.exchange), judged.message
        if kind.snapshot is judged.in_force or message is None or isinstance(message, Batch):
            return verdict
        judged.in_force = kind.snapshot
        is_answer = judged.direction is Direction.FROM_UPSTREAM
        judged.snapshot = (
            self._snapshot_for(message, kind, judged.exchange) if is_answer else kind.snapshot
        )
        return judge_again(message, verdict, self._situation_of(judged))

    def _judged(self, direction: Direction, size: int, origin: object) -> Judged:
        """Return the record of a message about which we know nothing yet."""
        snapshot = self.policy.kinds.start.snapshot
        return Judged(direction, None, FORWARD, self.client, snapshot, None, size, origin)

    @property
    def waiting(self) -> list[str]:
        """The ids of all requests in flight, as the client wrote them."""
        return self.exchanges.ids

    def lose(self, *, besides: Collection[str] = ()) -> list[bytes]:
        """Return an error for each request in flight, except for those with these methods."""
        lost = self.exchanges.take_all(besides=besides)
        return [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in lost]

    def list_changed_notices(self, *, in_session: bool) -> list[bytes]:
        """Return the notices for a client whose list has changed; none if it expects none.

        ``in_session`` says that notifications of the whole session reach it here.
        """
        session = self.client.session
        notices = [notice(id) for id in self.exchanges.subscriptions]
        if in_session and session is not None and session.declares_changes:
            notices.append(notice())
        return notices

    # Our own requests on the client's stream

    def take_ours(self, raw: bytes) -> bool:
        """Keep a message from the client if it answers a request of our own."""
        if not self.ours:
            return False
        with suppress(ProtocolError):
            message = parse_message(raw, self.policy.config.limits)
            if isinstance(message, Response) and message.id is not None:
                take = self.ours.pop(message.id, None)
                if take is not None:
                    take(raw)
                return take is not None
        return False

    def lose_ours(self) -> None:
        """The stream has ended: our own requests get no answer."""
        ours, self.ours = self.ours or {}, None
        for take in ours.values():
            take(b"")

    # Messages of the client

    def from_client(
        self, raw: bytes, origin: object = None, arrival: Arrival = _PLAIN
    ) -> Decision[Judged]:
        """Decide on a message on its way to the upstream."""
        policy = self.policy
        limits = policy.config.limits
        judged = self._judged(Direction.FROM_CLIENT, len(raw), origin)
        try:
            message = parse_message(raw, limits)
        except ProtocolError as error:
            verdict = arrival.judge_unreadable(raw, error, limits)
            return judged if isinstance(verdict, Forward) else self._tell(judged, verdict)
        if arrival.announces and (problem := arrival.problem_in(message, raw, limits)):
            return self._tell(judged, problem)
        judged.message = message
        catalog = policy.config.catalog
        try:
            if catalog and len(raw) >= _LONG_WITH_URIS:
                catalog.judge_asked_ahead(message)
            if isinstance(message, Batch):
                return self._batch_from_client(message, judged, arrival)
            judged.exchange = exchange_for(message, len(raw), self.policy.clock())
            decision = self._decide_for_client(message, judged, arrival)
        except ProtocolError as error:
            judged.message = judged.exchange = None
            detail = str(error)
            return self._tell(judged, refusal(raw, Why.MALFORMED, limits=limits, detail=detail))
        return self._decided(judged, decision)

    def oversized_from_client(self, beginning: bytes, detail: str, origin: object = None) -> Judged:
        """Refuse a message that is too large to be read; ``beginning`` is the part that we have."""
        return self.refuse_from_client(oversized(beginning, detail), len(beginning), origin)

    def refuse_from_client(self, verdict: Verdict, size: int = 0, origin: object = None) -> Judged:
        """Tell the observers about a message that the transport has refused unread."""
        return self._tell(self._judged(Direction.FROM_CLIENT, size, origin), verdict)

    def _batch_from_client(
        self, batch: Batch, judged: Judged, arrival: Arrival
    ) -> Decision[Judged]:
        now = self.policy.clock()
        begun = [exchange_for(one, one.place.end - one.place.start, now) for one in batch.members]
        for exchange in filter(None, begun):  # our own fetch sends no batches
            exchange.is_unusual = len(begun) > 1
        members = [judged.member(*one) for one in zip(batch.members, begun, strict=True)]
        try:
            decisions = [
                self._decide_for_client(member, each, arrival)
                for member, each in zip(batch.members, members, strict=True)
            ]
        except ProtocolError:  # the whole batch is refused: nobody settles those that wait
            for exchange in filter(None, begun):
                self.policy.held.requests.pop(exchange, None)
            raise
        judged.members = tuple(members)
        return together(decisions, partial(self._decided_for_members, batch, judged))

    def _decided_for_members(self, batch: Batch, judged: Judged, verdicts: list[Verdict]) -> Judged:
        """Settle each member of a batch, and tell the observers what the batch becomes."""
        for each, verdict in zip(judged.members, verdicts, strict=True):
            self._settle(each, self._by_policy_now(each, verdict))
        is_ours = judged.direction is Direction.FROM_CLIENT
        if any(member.sent for member in judged.members):
            seen = tuple(cast("Single", member.message) for member in judged.members)
            sent = tuple(cast("Single", member.sent or member.message) for member in judged.members)
            judged.message, judged.sent = Batch(seen), Batch(sent)
            batch = judged.sent
        join = join_from_client if is_ours else join_from_upstream
        if any(member.would for member in judged.members):
            judged.would = join(
                batch, [member.would or member.verdict for member in judged.members]
            )
        return self._tell(judged, join(batch, [member.verdict for member in judged.members]))

    def _decide_for_client(
        self, message: Single, judged: Judged, arrival: Arrival
    ) -> Decision[Verdict]:
        """Decide on a message; one that is cancelled while the decision waits is never sent."""
        exchange = judged.exchange
        if isinstance(message, Notification) and message.method == _CANCELLED and exchange:
            named = message.params.get("requestId") if message.params else None
            exchange.is_cancelled = named is not None and self.policy.held.cancel(
                self.client, message.place.cut(named)
            )
        decide = partial(self._decide_by_snapshot, judged=judged, arrival=arrival)
        if (editor := self.policy.config.editor) is None:
            decision = decide(message)
        else:
            snapshot = self.policy.kinds.of(self.client).snapshot
            decision = decide_edited(
                editor, message, judged, snapshot, self.policy.config.limits, decide
            )
        if isinstance(decision, VERDICTS) or exchange is None:
            return decision
        self.policy.held.add(self.client, exchange)
        return _held(self.policy, decision, exchange)

    def _decide_by_snapshot(
        self, message: Single, judged: Judged, arrival: Arrival
    ) -> Decision[Verdict]:
        """Decide by the snapshot of this kind of asker."""
        kind = self.policy.kinds.of(self.client, judged.exchange)
        judged.snapshot = judged.in_force = kind.snapshot
        situation = self._situation(message, judged, kind, arrival)
        may_lack_list = not kind.is_listed or kind.is_stale
        if may_lack_list and needs_list(message, kind, situation, arrival, self.policy):
            if arrival.can_list and self.policy.clock() >= kind.unlisted_until:
                return begin(self._list_first(message, judged, kind, situation, arrival))
            judged.snapshot = without_list(self.policy, kind, judged, situation.call)
            situation.snapshot = judged.snapshot
        elif not kind.is_listed and judged.exchange and self.client.via is Via.STDIO:
            hides = not (kind.snapshot.choice.hides_nothing or self.policy.config.shadow)
            judged.exchange.is_on_trust = hides  # we do not ask which tools there are
        has_links = self.policy.links and judged.refusal is None  # they never see what edits refuse
        return (decide_from_client if has_links else filter_from_client)(message, situation)

    def _list_first(
        self, message: Single, judged: Judged, kind: Kind, situation: Situation, arrival: Arrival
    ) -> Deciding[Verdict]:
        """Ask the upstream for the asker's list while the call waits."""
        try:
            # What differs in the revisions that it names is an asker of its own, for this once.
            keeps = not kind.is_shared or _speaks(arrival, message)
            fetch = FetchTools(kind if keeps else object(), arrival, message)
            pages = cast("tuple[bytes, ...]", (yield fetch))
            while kind.is_taking:  # another call that shares our fetch reads it
                yield LET_OTHERS_GO_ON
            if not kind.lacks_list:
                judged.snapshot = kind.snapshot
            else:
                judged.snapshot = yield from kind.take(pages, keeps=keeps)
                if (faults := judged.snapshot.faults) and not self.policy.config.shadow:
                    self.policy.tell_hidden(faults, judged)
        except (CannotList, FetchFailed) as error:
            judged.snapshot = without_list(self.policy, kind, judged, situation.call, error)
            refused = refused_as_upstream(error, message, situation.call, judged.snapshot)
            if refused is not None:
                return refused
        judged.in_force, call = kind.snapshot, situation.call
        situation = self._situation(message, judged, kind, arrival)
        situation.call = call
        decide = filter_from_client if judged.refusal else decide_from_client
        decision = decide(message, situation)
        return (yield from decision) if waits(decision) else decision

    def _situation(
        self, message: Single, judged: Judged, kind: Kind, arrival: Arrival
    ) -> Situation:
        situation, config = self._situation_of(judged), self.policy.config
        if not isinstance(message, Request) or message.method != _LIST:
            return situation
        asks = situation.asks = parse_list_request(message)
        could_be_ours, gets_fetched_list = arrival.compare(asks)
        is_expected = could_be_ours and (asks.cursor is None or kind.expects(asks.cursor))
        if kind.is_shared and judged.exchange is not None and not is_expected:
            judged.exchange.is_unusual = True
        if not config.shadow:
            is_current = kind.is_listed and not kind.is_stale and not config.takes_news
            situation.envelope = kind.envelope
            situation.may_use_cache = gets_fetched_list and is_current
        return situation

    def _situation_of(self, judged: Judged) -> Situation:
        policy, config = self.policy, self.policy.config
        situation = Situation(  # by place: names would cost as much again
            judged.snapshot, judged.direction, self.client, judged.exchange,
            policy.links, config.limits, judged.origin, config.catalog,
        )  # fmt: skip
        if policy.links:
            situation.is_shadow = policy.config.shadow
            if judged.audited is None:
                judged.audited = []
            situation.audited = judged.audited
        return situation

    def _decided(
        self, judged: Judged, decision: Decision[Verdict], kind: Kind | None = None
    ) -> Decision[Judged]:
        """Settle a decision that has been made, or will be, and tell the observers.

        ``kind`` is the kind of asker of an answer, if nothing has happened since it was looked up.
        """
        if not isinstance(decision, VERDICTS):
            return then(decision, partial(self._waited, judged))
        return self._done(judged, decision, kind)

    def _waited(self, judged: Judged, verdict: Verdict) -> Judged:
        verdict = self._by_policy_now(judged, verdict)
        if judged.direction is Direction.FROM_UPSTREAM and isinstance(judged.message, Response):
            verdict = keep_space(judged.message.place.text, verdict)
        return self._done(judged, verdict)

    def _done(self, judged: Judged, verdict: Verdict, kind: Kind | None = None) -> Judged:
        self._settle(judged, verdict, kind)
        return self._tell(judged, judged.verdict)

    def _tell(self, judged: Judged, verdict: Verdict) -> Judged:
        judged.verdict = verdict
        policy = self.policy
        policy.observe(judged)
        if policy.config.editor is not None:
            judged.verdict = edited(judged, policy.config.editor, policy.config.limits)
        if policy.propagate and not isinstance(judged.message, Response):
            judged.verdict = policy.propagate(judged)
        return judged

    def _settled(self, judged: Judged, verdict: Verdict) -> Verdict:
        """Note the verdict; return what happens to the message."""
        is_shadow = self.policy.config.shadow
        if is_shadow or judged.audited:
            return judged.settle(verdict, is_shadow=is_shadow)
        judged.verdict = verdict
        return verdict

    def _settle(self, judged: Judged, verdict: Verdict, kind: Kind | None = None) -> None:
        verdict = self._settled(judged, verdict)
        if judged.direction is Direction.FROM_CLIENT:
            self._settle_for_client(judged, verdict)
        else:
            self._settle_for_upstream(judged, verdict, kind)

    def _settle_for_client(self, judged: Judged, verdict: Verdict) -> None:
        """Remember a request that we forward, unless its id is in use."""
        exchange, session = judged.exchange, self.client.session
        if session is not None and (exchange is None or exchange.method not in _ONLY_READ):
            session.has_acted = True
        if exchange is None:
            return
        policy = self.policy
        policy.held.requests.pop(exchange, None)
        if not isinstance(verdict, Forward | Rewrite):
            return
        if exchange.is_cancelled:
            judged.verdict = _cancelled(exchange, self.client)
            return
        if policy.keeps_requests and isinstance(judged.message, Request):
            exchange.request = judged.message
            if isinstance(verdict, Rewrite):
                changed = parse_message(verdict.text, policy.config.limits)
                exchange.request = changed if isinstance(changed, Request) else judged.message
        if policy.links and not policy.config.shadow and self.exchanges.is_taken(exchange):
            text = render_error(exchange.id, INVALID_REQUEST, "Invalid Request")
            why = "an id that another request waits under"
            judged.verdict = Reply(text, Reason(Why.MALFORMED, detail=why))
        else:
            self.exchanges.open(exchange)

    # Messages of the upstream

    def from_upstream(self, raw: bytes, origin: object = None) -> Decision[Judged]:
        """Decide on a message on its way to the client.

        Raises ProtocolError if it cannot be read; so does a decision that waits.
        """
        policy = self.policy
        judged = self._judged(Direction.FROM_UPSTREAM, len(raw), origin)
        if (len(raw) >= _LEAST or not policy.links) and (envelope := find_result_envelope(raw)):
            known = self._known(raw, envelope, judged)
            if known and judged.exchange and not policy.links:  # it teaches us nothing new
                self.exchanges.close(judged.exchange)
                return self._tell(judged, self._settled(judged, known))
        if judged.message is None and policy.reads_in_steps:
            is_long_list = len(raw) >= _LONG and self.exchanges.lists > 0
            if is_long_list or (policy.config.catalog and len(raw) >= _LONG_WITH_URIS):
                return begin(self._from_upstream_in_steps(raw, judged))
        return self._read_from_upstream(raw, judged, judged.message)

    def _read_from_upstream(
        self, raw: bytes, judged: Judged, message: Message | None
    ) -> Decision[Judged]:
        """Decide on a message, which may have been read already."""
        is_accepted = judged.message is not None
        judged.message = message = message or parse_message(raw, self.policy.config.limits)
        if isinstance(message, Batch):
            decisions = at_once(self._decisions_on(message, judged))
            return together(decisions, partial(self._decided_for_members, message, judged))
        asked = judged.exchange = self.exchanges.answered_by(message)
        kind = self._kind_of(asked)
        decision = self._decide_for_upstream(message, judged, kind, is_accepted=is_accepted)
        if isinstance(decision, VERDICTS):
            if isinstance(decision, Rewrite):
                decision = keep_space(message.place.text, decision)
            lists = self.policy.judged.get(asked.method) if asked else None
            if lists is not None and not self.policy.links:
                _remember(lists, raw, judged, kind, decision)
        return self._decided(judged, decision, kind)

    def _from_upstream_in_steps(self, raw: bytes, judged: Judged) -> Deciding[Judged]:
        """Read a possibly long list in steps, so that other clients are served meanwhile; then
        decide. (The patterns in force at the end do.)"""
        message = yield from with_pauses(parse_in_steps(raw, self.policy.config.limits))
        yield LET_OTHERS_GO_ON
        for one in singles(message):
            asked = self.exchanges.answered_by(one)
            if asked and not asked.is_unusual and isinstance(one, Response) and one.listing:
                yield from self._kind_of(asked).foresee(cast("Listing", one.listing))
        asked = self.exchanges.answered_by(message)
        if catalog := self.policy.config.catalog:
            yield from catalog.judge_ahead(message, asked.method if asked else "")
        if isinstance(message, Batch):
            judged.message = message
            decisions = yield from self._decisions_on(message, judged)
            decision = together(decisions, partial(self._decided_for_members, message, judged))
        else:
            decision = self._read_from_upstream(raw, judged, message)
        return (yield from decision) if waits(decision) else decision

    def unreadable_from_upstream(
        self, beginning: bytes, detail: str, *, is_cut: bool = False, origin: object = None
    ) -> Judged:
        """Replace a message that cannot be judged by errors for the requests that it may answer.

        The first error is the verdict's text, the others are what it owes. ``is_cut`` means that we
        have only the beginning.
        """
        ids = self.exchanges.take(ids_guessed_in(beginning))
        if not ids and len(self.exchanges) == 1 and (is_cut or b'"id"' in beginning):
            ids = self.exchanges.take_all()  # it can only answer this one
        return self.fail(ids, detail, origin=origin)

    def fail(self, ids: list[str], detail: str, *, origin: object = None) -> Judged:
        """Tell the observers about an invalid answer; return the errors for the waiting
        requests."""
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in ids]
        reason = Reason(Why.INVALID, detail=detail)
        verdict = Rewrite(errors[0], reason, tuple(errors[1:])) if errors else Drop(reason)
        return self._tell(self._judged(Direction.FROM_UPSTREAM, 0, origin), verdict)

    def _decisions_on(self, batch: Batch, judged: Judged) -> Deciding[list[Decision[Verdict]]]:
        """Decide on each member of a batch; others are served after each."""
        members = [judged.member(one, self.exchanges.answered_by(one)) for one in batch.members]
        judged.members = tuple(members)
        decisions: list[Decision[Verdict]] = []
        for member, each in zip(batch.members, members, strict=True):
            kind = self._kind_of(each.exchange)
            decisions.append(self._decide_for_upstream(member, each, kind))
            yield LET_OTHERS_GO_ON
        return decisions

    def _decide_for_upstream(
        self, message: Single, judged: Judged, kind: Kind, *, is_accepted: bool = False
    ) -> Decision[Verdict]:
        """Decide by the snapshot of the kind of asker that gets the message; pin its first list."""
        policy = self.policy
        judged.in_force = judged.snapshot = kind.snapshot
        if not kind.is_settled:
            judged.snapshot = self._snapshot_for(message, kind, judged.exchange)
        if judged.exchange is not None and judged.exchange.is_only_shadowed:
            return FORWARD  # without --shadow there would be no answer to judge
        situation = self._situation_of(judged)
        decide: Callable[[Single, Situation], Decision[Verdict]] = filter_from_upstream
        if policy.links:
            decide = decide_accepted if is_accepted else decide_from_upstream
        try:
            return decide(message, situation)
        except ShowsHidden as error:
            if not policy.config.shadow:
                raise
            return Drop(Reason(Why.INVALID, detail=str(error)))

    @property
    def hidden_names(self) -> Collection[str]:
        """The names of the hidden tools, as far as we know them."""
        return () if self.policy.config.shadow else self.kind.snapshot.hidden_names

    @property
    def never_shown(self) -> Collection[str]:
        """The names of tools that nothing from the upstream may show to the client."""
        return () if self.policy.config.shadow else self.kind.snapshot.never_shown

    def _settle_for_upstream(self, judged: Judged, verdict: Verdict, kind: Kind | None) -> None:
        """Learn from an answer, and close its exchange."""
        message, exchange = judged.message, judged.exchange
        if isinstance(message, Response):
            if exchange is not None:
                if message.result is not None:
                    self._learn(message, exchange, kind, judged)
                self.exchanges.close(exchange)
        elif isinstance(message, Notification):
            if message.method == LIST_CHANGED:
                self.policy.kinds.note_change(self.client)
            elif message.method == ACKNOWLEDGED:
                note_subscription(self.exchanges, message)
        elif isinstance(verdict, Reply) and self.client.via in (Via.HTTP, Via.LEGACY_SSE):
            # Over HTTP we cannot reply on the stream that the upstream's request came on.
            self.policy.answer_upstream(verdict.text, judged.origin, self.client)

    def _known(self, raw: bytes, envelope: ResultEnvelope, judged: Judged) -> Verdict | None:
        """Return the verdict if it is certain without parsing the result: on a list that the
        upstream has sent before, or on the result of a tool."""
        asked = self.exchanges.answered_by(Response(envelope.id))
        if asked is None or len(raw) > self.policy.config.limits.message:
            return None
        lists = self.policy.judged.get(asked.method)
        if lists is None and asked.method != "tools/call":
            return None
        if lists is not None and self.policy.config.editor is not None:
            return None  # it is edited, and for that it must be read
        snapshot = self.policy.kinds.unchanged_by(self.client, asked)
        if snapshot is None:
            return None
        if lists is not None:
            verdict = lists.recall(raw, envelope, snapshot)
        else:
            found = read_tool_result(raw, envelope, self.policy.config.limits)
            if found is None or (found.is_error and len(raw) < _LEAST):
                return None  # we read what a short error says
            if found.rest and shows_tool(found.rest, snapshot.never_shown):
                return None
            verdict = FORWARD
        if verdict is not None:
            judged.message, judged.exchange = envelope.response, asked
            judged.snapshot = snapshot
        return verdict

    def _learn(
        self, message: Response, asked: RpcExchange, kind: Kind | None, judged: Judged
    ) -> None:
        """Keep what an answer says about its session and about the tools of its kind of asker.

        Warn if the server's instructions are not those that the lock has.
        """
        place, result = message.place, message.result
        lock = self.policy.config.choice.lock
        if asked.method == _LIST and not asked.is_unusual:
            kind = kind or self._kind_of(asked)
            if kind.may_learn and (listing := parse_listing(message)):
                at_once(kind.learn(asked.cursor, listing))
        if result is None or asked.method not in ("initialize", "server/discover"):
            return
        if asked.method == "initialize" and (session := self.client.session):
            version = result.get("protocolVersion")
            session.revision = ((version and version.text) or "")[:_LONGEST_REVISION] or None
            session.capabilities, session.program = asked.capabilities, asked.program
            declared = result.get("capabilities")
            session.declares_changes = is_true(place, declared, "tools", "listChanged")
        if lock is not None:
            said = result.get("instructions")
            if warning := lock.problem_in(said.text if said else None):
                self.policy.tell_hidden((warning,), judged)


def _list_in(message: Single, *, is_expected: bool) -> Listing | None:
    """Return the tool list that a message carries, if it looks like one."""
    if isinstance(message, Request) and message.method == "sampling/createMessage":
        return None  # these tools are for the model, in this one request
    with suppress(ProtocolError):  # the decision on the message finds out whether it matters
        listing = parse_listing(message)
        is_answer = is_expected and isinstance(message, Response)
        if listing and (is_answer or listing.has_definitions):
            return listing
    return None


def _speaks(arrival: Arrival, message: Single) -> bool:
    return isinstance(message, Response) or arrival.speaks(revision_in(message))


def exchange_for(message: Single, size: int, now: float) -> RpcExchange | None:
    """Begin an exchange for a client's message; a response begins none."""
    if isinstance(message, Response):
        return None
    id = message.id if isinstance(message, Request) else None
    exchange = RpcExchange(message.method[:_LONGEST_METHOD], id, None, now, size)
    if isinstance(message, Request) and _declares(message):
        exchange.capabilities = capabilities_in(message)
        exchange.program = program_in(message)
    return exchange


def _declares(message: Request) -> bool:
    """Tell whether a request may say something of its client."""
    params = message.params
    return params is not None and (message.method == "initialize" or "_meta" in params.named)


def _held(
    policy: PolicyInForce, decision: Deciding[Verdict], exchange: RpcExchange
) -> Deciding[Verdict]:
    try:
        return (yield from decision)
    except BaseException:  # nobody settles it
        policy.held.requests.pop(exchange, None)
        raise


def _cancelled(exchange: RpcExchange, client: Client) -> Verdict:
    """Return the verdict on a request that was cancelled in time, or on its cancellation."""
    reason = Reason(Why.CANCELLED, detail="cancelled while it waited")
    if exchange.id is None or client.via is not Via.HTTP:  # nobody waits for an answer
        return Drop(reason)
    return Reply(render_error(exchange.id, _REQUEST_CANCELLED, "Request cancelled"), reason)


def _remember(lists: JudgedLists, raw: bytes, judged: Judged, kind: Kind, verdict: Verdict) -> None:
    """Remember the verdict on a list, because the upstream will send the same list again."""
    if judged.snapshot is kind.snapshot and (found := find_result_envelope(raw)):
        lists.remember(raw, found, verdict, kind.snapshot)
