r"""Reads each message once, asks the policy, remembers, and tells the observers.

HTTP bodies, events, WebSocket messages and lines of stdio all enter here, as bytes; this module
knows of no transport. What it returns says what becomes of them:

>>> from mcp_tool_filter.conversation.fetched import example
>>> from mcp_tool_filter.policy.config import parse_config
>>> policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
>>> conversation = Conversation(policy)
>>> call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
>>> conversation.from_client((call % "read").encode()).verdict
Forward()
>>> conversation.from_client((call % "rm").encode()).verdict.text
b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Tool not found: rm"}}'
>>> conversation.waiting
['1']

A decision that waits is a generator of effects that returns the same; ``effects`` says how to go on
with either.

It is one module because every way in shares one memory: who waits for which answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from mcp_tool_filter.conversation.kinds import Kind, capabilities_in
from mcp_tool_filter.conversation.list_changed import (
    ACKNOWLEDGED,
    LIST_CHANGED,
    agreed_subscription,
    notice,
)
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.conversation.session import Exchanges, exchange_for, refuse_taken
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.chain import (
    Situation,
    decide_accepted,
    decide_from_client,
    decide_from_upstream,
    join_from_client,
    join_from_upstream,
    judge_again,
    keep_space,
    refusal,
)
from mcp_tool_filter.policy.effects import (
    CannotList,
    Deciding,
    Decision,
    Delay,
    FetchTools,
    begin,
    then,
    together,
    waits,
)
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Via
from mcp_tool_filter.policy.list_from import ListFrom
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.tool_filter import decide_in_steps
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.long_lists import read_in_steps
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    Batch,
    Message,
    Notification,
    Request,
    Response,
    Single,
    ids_guessed_in,
    ids_in,
    parse_message,
    render_error,
)
from mcp_tool_filter.protocol.tool_results import Envelope, find_envelope, read_tool_result
from mcp_tool_filter.protocol.tools import Listing, parse_listing, parse_tool_call, shows_tool

INVALID_ANSWER = "The server sent an invalid response"
LOST_ANSWER = "Upstream connection lost"
_DEEPEST_READ = 5000  # levels, to find the id of a message that is too deep
_LONG = 256 * 1024  # bytes of a list; to read so many takes some ten milliseconds
_LET_OTHERS_GO_ON = Delay(0.0)
_LONGEST_REVISION = 64  # characters


@dataclass(slots=True, eq=False)
class Judged:
    """One message and what becomes of it; this is what observers get."""

    direction: Direction
    message: Message | None
    """None if it could not be read."""
    verdict: Verdict
    client: Client
    snapshot: Snapshot
    """What it was judged by."""
    exchange: Exchange | None = None
    """The request that this is, or answers."""
    size: int = 0
    """Bytes that came."""
    origin: object = None
    """What the host gave with the message, such as mitmproxy's flow."""
    members: tuple[Judged, ...] = ()
    """Those of a batch, each with its own verdict."""
    in_force: Snapshot | None = None
    """What was in force when it was judged; a page of an unfinished list has one of its own."""

    @property
    def each(self) -> tuple[Judged, ...]:
        """The members of a batch, or this one."""
        return self.members or (self,)


class Arrival:
    """What a transport knows of a client's message that the message itself does not say."""

    __slots__ = ()

    @property
    def can_list(self) -> bool:
        """Can the host ask the upstream for the list that this client would get?"""
        return False

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Refuse a message that the transport announced as another."""
        return None

    def may_use_snapshot(self, request: Request) -> bool:
        """Tell whether the upstream would answer this tools/list with the list it gave us."""
        return False

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Decide on what cannot be read; nobody is told of what is forwarded unread."""
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        refused = refusal(raw, Why.MALFORMED, limits=limits)
        return Reply(refused.text, Reason(Why.MALFORMED, detail=str(error)))


def oversized(beginning: bytes, detail: str, ids: list[str] | None = None) -> Reply:
    """Answer what is too large or too deep; ``beginning`` is what is there of it."""
    if ids is None:
        anything = Limits(message=max(1, len(beginning)), depth=_DEEPEST_READ)
        ids = ids_in(beginning, anything) or list(dict.fromkeys(ids_guessed_in(beginning)))
    text = f"Request too large: {detail}"
    reply = render_error(ids[0] if len(ids) == 1 else None, INVALID_REQUEST, text)
    return Reply(reply, Reason(Why.OVERSIZED, detail=text))


_PLAIN = Arrival()


class Conversation:
    """What one client and the upstream say to each other, on one stream or over one connection."""

    __slots__ = ("client", "exchanges", "policy")

    def __init__(
        self,
        policy: PolicyInForce,
        client: Client | None = None,
        exchanges: Exchanges | None = None,
    ) -> None:
        limits = policy.config.limits
        self.policy = policy
        self.client = client or Client()
        if exchanges is None:  # not "or": it may be empty
            exchanges = Exchanges(most=limits.exchanges, most_bytes=limits.exchange_bytes)
        self.exchanges = exchanges

    # What a client says

    def from_client(
        self, raw: bytes, origin: object = None, arrival: Arrival = _PLAIN
    ) -> Decision[Judged]:
        """Decide on a message on its way to the upstream."""
        policy = self.policy
        limits = policy.config.limits
        told = self._judged(Direction.FROM_CLIENT, len(raw), origin)
        try:
            message = parse_message(raw, limits)
        except ProtocolError as error:
            verdict = arrival.judge_unreadable(raw, error, limits)
            return told if isinstance(verdict, Forward) else self._tell(told, verdict)
        if problem := arrival.problem_in(message, raw, limits):
            return self._tell(told, problem)
        try:
            told.message = message
            if isinstance(message, Batch):
                return self._batch_from_client(message, told, arrival)
            told.exchange = exchange_for(message, len(raw), policy.clock())
            decision = self._decide_for_client(message, told, arrival)
        except ProtocolError as error:
            told.message = told.exchange = None
            refused = refusal(raw, Why.MALFORMED, limits=limits)
            return self._tell(told, Reply(refused.text, Reason(Why.MALFORMED, detail=str(error))))
        if waits(decision):
            return then(decision, partial(self._waited_for_client, told))
        return self._decided_for_client(told, decision)

    def oversized_from_client(self, beginning: bytes, detail: str, origin: object = None) -> Judged:
        """Refuse what is too large to be read; ``beginning`` is what is there of it."""
        return self.refuse_from_client(oversized(beginning, detail), len(beginning), origin)

    def refuse_from_client(self, verdict: Verdict, size: int = 0, origin: object = None) -> Judged:
        """Tell the observers of a message that the transport has refused unread."""
        return self._tell(self._judged(Direction.FROM_CLIENT, size, origin), verdict)

    def _batch_from_client(self, batch: Batch, told: Judged, arrival: Arrival) -> Decision[Judged]:
        members = [
            Judged(
                told.direction,
                member,
                _FORWARD,
                told.client,
                told.snapshot,
                exchange_for(member, member.place.end - member.place.start, self.policy.clock()),
                member.place.end - member.place.start,
                told.origin,
            )
            for member in batch.members
        ]
        decisions = [
            self._decide_for_client(member, each, arrival)
            for member, each in zip(batch.members, members, strict=True)
        ]

        def decided(verdicts: list[Verdict]) -> Judged:
            for each, verdict in zip(members, verdicts, strict=True):
                self._settle_for_client(each, self._by_policy_now(each, verdict))
            return self._tell(told, join_from_client(batch, [one.verdict for one in members]))

        told.members = tuple(members)
        return together(decisions, decided)

    def _decide_for_client(
        self, message: Single, told: Judged, arrival: Arrival
    ) -> Decision[Verdict]:
        """Decide by the snapshot of the kind of asker that this is."""
        exchange = told.exchange
        if exchange is not None and exchange.id is not None:
            exchange.capabilities = capabilities_in(message)
        kind = self.policy.kinds.of(self.client, exchange.capabilities if exchange else None)
        told.snapshot = told.in_force = kind.snapshot
        if not kind.is_listed and self._needs_list(message, kind):
            if arrival.can_list:
                return begin(self._list_first(message, told, kind, arrival))
            if self.policy.kinds.start.is_listed:  # the next best, where we cannot ask
                told.snapshot = self.policy.snapshot
        return decide_from_client(message, self._situation(message, told, kind, arrival))

    def _needs_list(self, message: Single, kind: Kind) -> bool:
        """Tell whether only the asker's list says if there is the tool that is called."""
        if isinstance(message, Response) or message.method != "tools/call":
            return False
        name = parse_tool_call(message).tool_name
        if name in kind.snapshot.denied:
            return False
        # Who says no revision shows no session either: the upstream will mostly refuse that itself.
        return self.client.revision is not None or name not in self.policy.snapshot.allowed

    def _list_first(
        self, message: Single, told: Judged, kind: Kind, arrival: Arrival
    ) -> Deciding[Verdict]:
        """Ask the upstream for the asker's list while the call waits."""
        try:
            pages = yield FetchTools(kind, arrival, message)
            if not kind.is_listed:
                kind.take(cast("tuple[bytes, ...]", pages))
                if faults := kind.snapshot.faults:
                    self.policy.tell_hidden(faults, told)
        except (CannotList, FetchFailed):
            pass  # the upstream answers the call itself: it may want a login first
        told.snapshot = told.in_force = kind.snapshot
        decision = decide_from_client(message, self._situation(message, told, kind, arrival))
        return (yield from decision) if waits(decision) else decision

    def _situation(self, message: Single, told: Judged, kind: Kind, arrival: Arrival) -> Situation:
        policy = self.policy
        situation = Situation(
            snapshot=told.snapshot,
            client=self.client,
            exchange=told.exchange,
            links=policy.links,
            limits=policy.config.limits,
            origin=told.origin,
        )
        if isinstance(message, Request) and message.method == "tools/list":
            situation.list_from = policy.config.tools_list
            situation.envelope = kind.envelope
            if not kind.can_answer:
                situation.list_from = ListFrom.UPSTREAM
            else:
                situation.may_use_cache = arrival.may_use_snapshot(message)
        return situation

    def _waited_for_client(self, told: Judged, verdict: Verdict) -> Judged:
        return self._decided_for_client(told, self._by_policy_now(told, verdict))

    def _by_policy_now(self, told: Judged, verdict: Verdict) -> Verdict:
        """Judge again what has waited while the policy was edited."""
        kind, message = self._kind_of(told.exchange), told.message
        if kind.snapshot is told.in_force or message is None or isinstance(message, Batch):
            return verdict
        told.in_force = kind.snapshot
        is_answer = told.direction is Direction.FROM_UPSTREAM
        told.snapshot = self._snapshot_for(message, kind) if is_answer else kind.snapshot
        situation = self._answer_situation(told)
        situation.direction = told.direction
        return judge_again(message, verdict, situation)

    def _decided_for_client(self, told: Judged, verdict: Verdict) -> Judged:
        self._settle_for_client(told, verdict)
        return self._tell(told, told.verdict)

    def _settle_for_client(self, told: Judged, verdict: Verdict) -> None:
        """Remember a request that goes on, unless its id is taken."""
        told.verdict = verdict
        exchange = told.exchange
        if exchange is not None and isinstance(verdict, Forward | Rewrite):
            if self.policy.keeps_requests and isinstance(told.message, Request):
                exchange.request = self._as_forwarded(told.message, verdict)
            if self.policy.links and self.exchanges.is_taken(exchange):
                told.verdict = refuse_taken(exchange)
            else:
                self.exchanges.open(exchange)

    def _as_forwarded(self, message: Request, verdict: Forward | Rewrite) -> Request:
        if isinstance(verdict, Forward):
            return message
        changed = parse_message(verdict.text, self.policy.config.limits)
        return changed if isinstance(changed, Request) else message

    # What the upstream says

    def from_upstream(self, raw: bytes, origin: object = None) -> Decision[Judged]:
        """Decide on a message on its way to the client. Raises ProtocolError if it is none."""
        policy = self.policy
        told = self._judged(Direction.FROM_UPSTREAM, len(raw), origin)
        may_be_list = self.exchanges.lists > 0 and not policy.links
        known = self._recall(raw, told) if may_be_list else None
        if known is None and (envelope := find_envelope(raw)):
            known = self._accept(raw, envelope, told)
        if known and not policy.links:
            return self._decided_for_upstream(told, known)
        if may_be_list and len(raw) >= _LONG and policy.reads_in_steps:
            return self._from_upstream_in_steps(raw, told)
        return self._read_from_upstream(raw, told)

    def _read_from_upstream(self, raw: bytes, told: Judged) -> Decision[Judged]:
        policy = self.policy
        is_accepted = told.message is not None
        message = told.message = told.message or parse_message(raw, policy.config.limits)
        if isinstance(message, Batch):
            return self._batch_from_upstream(message, told)
        told.exchange = self.exchanges.answered_by(message)
        kind = self._kind_of(told.exchange)
        decision = self._decide_for_upstream(message, told, kind, is_accepted=is_accepted)
        if waits(decision):
            return then(decision, partial(self._waited_for_upstream, told))
        if isinstance(decision, Rewrite):
            decision = keep_space(message.place.text, decision)
        if not policy.links and isinstance(decision, Forward | Rewrite):
            self._remember_list(raw, told, kind, decision)
        return self._decided_for_upstream(told, decision)

    def _from_upstream_in_steps(self, raw: bytes, told: Judged) -> Deciding[Judged]:
        """Read and decide on what may be a long list, so that others are served meanwhile.

        The patterns that are in force at the end count.
        """
        policy = self.policy
        try:
            found = None
            for found in read_in_steps(raw, policy.config.limits):
                if found is None:
                    yield _LET_OTHERS_GO_ON
            asked = self.exchanges.answered_by(found.response) if found else None
            kind = self._kind_of(asked)
            usual = not kind.is_listed or policy.config.judges_new_tools
            if usual or not (found and asked and asked.method == "tools/list"):
                judged = self._read_from_upstream(raw, told)
                return (yield from judged) if waits(judged) else judged
            told.message, told.exchange = found.response, asked
            decided = yield from self._decide_in_steps(told, found.listing)
        except ProtocolError as error:
            return self.unreadable_from_upstream(raw, str(error), origin=told.origin)
        verdict = keep_space(found.response.place.text, decided)
        if not kind.can_answer or kind.envelope is None or policy.config.judges_new_tools:
            kind.learn(asked.cursor, found.listing)
        elif isinstance(verdict, Forward | Rewrite):  # which it is
            policy.judged.remember(raw, verdict, told.snapshot)
        return self._decided_for_upstream(told, verdict)

    def _decide_in_steps(self, told: Judged, listing: Listing) -> Deciding[Verdict]:
        while True:
            told.snapshot = self._kind_of(told.exchange).snapshot
            for verdict in decide_in_steps(listing, told.snapshot):
                if verdict is None:
                    yield _LET_OTHERS_GO_ON
                elif told.snapshot is self._kind_of(told.exchange).snapshot:
                    return verdict

    def judge_from_upstream(self, raw: bytes, origin: object = None) -> Decision[Judged]:
        """Decide on a message; whoever waits for one that cannot be judged gets an error."""
        try:
            return self.from_upstream(raw, origin)
        except ProtocolError as error:
            return self.unreadable_from_upstream(raw, str(error), origin=origin)

    def unreadable_from_upstream(
        self,
        beginning: bytes,
        detail: str,
        *,
        is_cut: bool = False,
        ids: list[str] | None = None,
        origin: object = None,
    ) -> Judged:
        """Replace what cannot be judged by errors for those who wait for it, if any do.

        The errors are the text of the verdict and what it owes; ``is_cut`` tells that only the
        beginning is there. ``ids`` are those that it may answer, where they are known better.
        """
        ids = self.exchanges.take(ids_guessed_in(beginning) if ids is None else ids)
        if not ids and len(self.exchanges) == 1 and (is_cut or b'"id"' in beginning):
            ids = self.exchanges.take_all()  # it can only have been for this one
        return self.fail(ids, detail, origin=origin)

    def fail(self, ids: list[str], detail: str, *, origin: object = None) -> Judged:
        """Tell the observers of an invalid answer; return the errors for those who waited."""
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in ids]
        reason = Reason(Why.INVALID, detail=detail)
        verdict = Rewrite(errors[0], reason, tuple(errors[1:])) if errors else Drop(reason)
        return self._tell(self._judged(Direction.FROM_UPSTREAM, 0, origin), verdict)

    def _batch_from_upstream(self, batch: Batch, told: Judged) -> Decision[Judged]:
        members = [
            Judged(
                told.direction,
                member,
                _FORWARD,
                told.client,
                told.snapshot,
                self.exchanges.answered_by(member),
                member.place.end - member.place.start,
                told.origin,
            )
            for member in batch.members
        ]
        decisions = [
            self._decide_for_upstream(member, each, self._kind_of(each.exchange))
            for member, each in zip(batch.members, members, strict=True)
        ]

        def decided(verdicts: list[Verdict]) -> Judged:
            for each, verdict in zip(members, verdicts, strict=True):
                self._settle_for_upstream(each, self._by_policy_now(each, verdict))
            return self._tell(told, join_from_upstream(batch, [one.verdict for one in members]))

        told.members = tuple(members)
        return together(decisions, decided)

    def _decide_for_upstream(
        self, message: Single, told: Judged, kind: Kind, *, is_accepted: bool = False
    ) -> Decision[Verdict]:
        """Decide by the snapshot of the kind of asker that gets this; pin its first list."""
        told.in_force = kind.snapshot
        told.snapshot = self._snapshot_for(message, kind)
        decide = decide_accepted if is_accepted else decide_from_upstream
        return decide(message, self._answer_situation(told))

    def _snapshot_for(self, message: Single, kind: Kind) -> Snapshot:
        if kind.is_listed and not self.policy.config.judges_new_tools:
            return kind.snapshot
        return kind.snapshot_for(list(_lists_in(message)))

    @property
    def kind(self) -> Kind:
        """What kind of asker the client is, as far as its messages do not say themselves."""
        return self.policy.kinds.of(self.client)

    def _kind_of(self, exchange: Exchange | None) -> Kind:
        return self.policy.kinds.of(self.client, exchange.capabilities if exchange else None)

    def _answer_situation(self, told: Judged) -> Situation:
        return Situation(
            snapshot=told.snapshot,
            direction=Direction.FROM_UPSTREAM,
            client=self.client,
            exchange=told.exchange,
            links=self.policy.links,
            limits=self.policy.config.limits,
            origin=told.origin,
        )

    def _waited_for_upstream(self, told: Judged, verdict: Verdict) -> Judged:
        verdict = self._by_policy_now(told, verdict)
        if isinstance(told.message, Response) and isinstance(verdict, Rewrite):
            verdict = keep_space(told.message.place.text, verdict)
        return self._decided_for_upstream(told, verdict)

    def _decided_for_upstream(self, told: Judged, verdict: Verdict) -> Judged:
        self._settle_for_upstream(told, verdict)
        return self._tell(told, verdict)

    def _settle_for_upstream(self, told: Judged, verdict: Verdict) -> None:
        """Learn from an answer; nobody waits for it any more."""
        told.verdict = verdict
        message, exchange = told.message, told.exchange
        if isinstance(message, Response):
            if exchange is not None and message.result is not None:
                self._learn(message, exchange)
            self.exchanges.close(message)
        elif isinstance(message, Notification):
            if message.method == LIST_CHANGED:
                self.policy.kinds.note_change(self.client)
            elif message.method == ACKNOWLEDGED:
                self._note_subscription(message)
        elif isinstance(verdict, Reply) and self.client.via in (Via.HTTP, Via.LEGACY_SSE):
            # Over HTTP nothing goes back on the stream that a request of the upstream came on.
            self.policy.answer_upstream(verdict.text, told.origin, self.client)

    def _remember_list(
        self, raw: bytes, told: Judged, kind: Kind, verdict: Forward | Rewrite
    ) -> None:
        """Remember what becomes of a list: the upstream will say it again."""
        if told.message is not None and _is_list(told.message, told.exchange, kind):
            self.policy.judged.remember(raw, verdict, told.snapshot)

    def _recall(self, raw: bytes, told: Judged) -> Verdict | None:
        """Return what became of a list that the upstream has said before."""
        if len(raw) > self.policy.config.limits.message:
            return None
        kind = self.kind
        known = self.policy.judged.recall(raw, kind.snapshot)
        if known is None:
            return None
        message, verdict = known
        asked = self.exchanges.answered_by(message)
        if not _is_list(message, asked, kind):
            return None
        told.message, told.exchange, told.snapshot = message, asked, kind.snapshot
        return verdict

    def _accept(self, raw: bytes, envelope: Envelope, told: Judged) -> Verdict | None:
        """Read the long result of a tool, not opened, if it is known that it may pass."""
        asked = self.exchanges.answered_by(Response(envelope.id))
        if asked is None or asked.method != "tools/call":
            return None
        found = read_tool_result(raw, envelope, self.policy.config.limits)
        snapshot = self._kind_of(asked).snapshot
        if found is None or shows_tool(found.rest, snapshot.denied):
            return None
        told.message, told.exchange, told.snapshot = found.response, asked, snapshot
        return _FORWARD

    def _learn(self, message: Response, asked: Exchange) -> None:
        """Keep what an answer says of its session and of the tools of its kind."""
        if asked.method == "initialize" and (session := self.client.session) and message.result:
            version = message.result.get("protocolVersion")
            said = version.text if version else None
            session.revision = said[:_LONGEST_REVISION] if said else None
            session.capabilities = asked.capabilities
            session.declares_changes = _declares_changes(message)
        elif asked.method == "tools/list":
            kind = self._kind_of(asked)
            is_known = kind.can_answer and kind.envelope is not None
            is_known = is_known and not self.policy.config.judges_new_tools
            if not is_known and (listing := parse_listing(message)):
                kind.learn(asked.cursor, listing)

    def _note_subscription(self, message: Notification) -> None:
        """Note that the upstream tells the client of each change of the list, if it says so."""
        if id := agreed_subscription(message):
            for spelling in (id, id.strip('"')):  # some write a number as a text
                asked = self.exchanges.answered_by(Response(spelling)) if spelling else None
                if asked is not None and asked.method == "subscriptions/listen":
                    asked.subscription = id
                    return

    def list_changed_notices(self, *, in_session: bool) -> list[bytes]:
        """Return what tells the client that its list has changed; nothing if it expects none.

        ``in_session`` says that notifications of the whole session reach it here.
        """
        session = self.client.session
        notices = [notice(id) for id in self.exchanges.subscriptions]
        if in_session and session is not None and session.declares_changes:
            notices.append(notice())
        return notices

    # Who waits

    @property
    def waiting(self) -> list[str]:
        """The ids of all requests in flight, as the client wrote them."""
        return self.exchanges.ids

    def lose(self) -> list[bytes]:
        """Return an error for each request in flight: the upstream is gone."""
        return [render_error(id, UPSTREAM_LOST, LOST_ANSWER) for id in self.exchanges.take_all()]

    def _judged(self, direction: Direction, size: int, origin: object) -> Judged:
        """Begin to judge a message of which nothing is known yet."""
        snapshot = self.policy.kinds.start.snapshot
        return Judged(direction, None, _FORWARD, self.client, snapshot, None, size, origin)

    def _tell(self, told: Judged, verdict: Verdict) -> Judged:
        told.verdict = verdict
        policy = self.policy
        policy.observe(told)
        if policy.propagate and told.direction is Direction.FROM_CLIENT:
            exchanges = [one.exchange for one in told.each]
            told.verdict = policy.propagate(told.message, exchanges, verdict)
        return told


_FORWARD = Forward()


def _is_list(message: Message, asked: Exchange | None, kind: Kind) -> bool:
    """Tell whether this answers a tools/list, and there is nothing else to learn from it."""
    if not isinstance(message, Response) or message.result is None or asked is None:
        return False
    return asked.method == "tools/list" and asked.capabilities is None and kind.can_answer


def _declares_changes(answer: Response) -> bool:
    """Tell whether an answer to initialize says ``"tools":{"listChanged":true}``."""
    declared = answer.result.get("capabilities") if answer.result else None
    try:
        capabilities = json.loads(answer.place.cut(declared)) if declared else None
    except (ValueError, RecursionError):
        return False
    tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
    return isinstance(tools, dict) and tools.get("listChanged") is True


def _lists_in(message: Single) -> Iterator[Listing]:
    """Yield the tool list that a message carries, if it looks like one."""
    if isinstance(message, Request) and message.method == "sampling/createMessage":
        return  # its tools are the model's, for that one request
    with suppress(ProtocolError):  # the decision says whether it matters
        listing = parse_listing(message)
        if listing and (
            isinstance(message, Response) or any(one.is_like_a_tool for one in listing.definitions)
        ):
            yield listing
