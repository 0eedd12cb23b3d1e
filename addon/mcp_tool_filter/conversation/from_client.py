"""Read a client's messages, ask the policy, remember requests, and tell the observers."""

from __future__ import annotations

from functools import partial
from typing import cast

from mcp_tool_filter.conversation.both_sides import BothSides
from mcp_tool_filter.conversation.capabilities import capabilities_in
from mcp_tool_filter.conversation.judged import (
    FORWARD,
    Arrival,
    Judged,
    oversized,
)
from mcp_tool_filter.conversation.kind import Kind
from mcp_tool_filter.conversation.session import refuse_taken
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.chain import decide_from_client, join_from_client, refusal
from mcp_tool_filter.policy.config import ListFrom
from mcp_tool_filter.policy.effects import (
    CannotList,
    Deciding,
    Decision,
    FetchTools,
    begin,
    then,
    together,
    waits,
)
from mcp_tool_filter.policy.exchange import Direction, Exchange, Situation, Via
from mcp_tool_filter.policy.tool_filter import filter_from_client
from mcp_tool_filter.policy.verdict import (
    VERDICTS,
    Drop,
    Forward,
    Reason,
    Reply,
    Rewrite,
    Verdict,
    Why,
)
from mcp_tool_filter.protocol.messages import (
    Batch,
    Notification,
    Request,
    Response,
    Single,
    parse_message,
    render_error,
)
from mcp_tool_filter.protocol.tools import parse_list_request, parse_tool_call

_LONGEST_METHOD = 64  # characters; every method that matters to us is shorter
_CANCELLED = "notifications/cancelled"
_REQUEST_CANCELLED = -32800  # as in the Language Server Protocol
_PLAIN = Arrival()


class FromClient(BothSides):
    """Decides on a client's requests, notifications and responses."""

    __slots__ = ()

    def from_client(
        self, raw: bytes, origin: object = None, arrival: Arrival = _PLAIN
    ) -> Decision[Judged]:
        """Decide on a message on its way to the upstream."""
        policy = self.policy
        limits = policy.config.limits
        before = policy.kinds.start.snapshot
        judged = Judged(
            Direction.FROM_CLIENT, None, FORWARD, self.client, before, None, len(raw), origin
        )
        try:
            message = parse_message(raw, limits)
        except ProtocolError as error:
            verdict = arrival.judge_unreadable(raw, error, limits)
            return judged if isinstance(verdict, Forward) else self._tell(judged, verdict)
        if arrival.announces and (problem := arrival.problem_in(message, raw, limits)):
            return self._tell(judged, problem)
        try:
            judged.message = message
            if isinstance(message, Batch):
                return self._batch_from_client(message, judged, arrival)
            judged.exchange = exchange_for(message, len(raw), policy.clock())
            decision = self._decide_for_client(message, judged, arrival)
        except ProtocolError as error:
            judged.message = judged.exchange = None
            refused = refusal(raw, Why.MALFORMED, limits=limits)
            return self._tell(judged, Reply(refused.text, Reason(Why.MALFORMED, detail=str(error))))
        if isinstance(decision, VERDICTS):
            return self._decided_for_client(judged, decision)
        return then(decision, partial(self._waited_for_client, judged))

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
        members = [judged.member(*one) for one in zip(batch.members, begun, strict=True)]
        decisions = [
            self._decide_for_client(member, each, arrival)
            for member, each in zip(batch.members, members, strict=True)
        ]

        def decided(verdicts: list[Verdict]) -> Judged:
            for each, verdict in zip(members, verdicts, strict=True):
                self._settle_for_client(each, self._by_policy_now(each, verdict))
            return self._tell(judged, join_from_client(batch, [one.verdict for one in members]))

        judged.members = tuple(members)
        return together(decisions, decided)

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
        decision = self._decide_by_snapshot(message, judged, arrival)
        if not waits(decision) or exchange is None:
            return decision
        self.policy.held.add(self.client, exchange)
        return self._held(decision, exchange)

    def _held(self, decision: Deciding[Verdict], exchange: Exchange) -> Deciding[Verdict]:
        try:
            return (yield from decision)
        except BaseException:  # nobody settles it
            self.policy.held.remove(exchange)
            raise

    def _decide_by_snapshot(
        self, message: Single, judged: Judged, arrival: Arrival
    ) -> Decision[Verdict]:
        """Decide by the snapshot of this kind of asker."""
        exchange, capabilities = judged.exchange, None
        if exchange is not None and isinstance(message, Request) and message.params is not None:
            capabilities = exchange.capabilities = capabilities_in(message)
        kind = self.policy.kinds.of(self.client, capabilities)
        judged.snapshot = judged.in_force = kind.snapshot
        if not kind.is_listed and not isinstance(message, Response) and self._needs_list(message):
            if arrival.can_list:
                return begin(self._list_first(message, judged, kind, arrival))
            if self.policy.kinds.start.is_listed:  # the next best choice, because we cannot ask
                judged.snapshot = self.policy.snapshot
        decide = decide_from_client if self.policy.links else filter_from_client
        return decide(message, self._situation(message, judged, kind, arrival))

    def _needs_list(self, message: Request | Notification) -> bool:
        """Tell whether we need the asker's list: to know whether the called tool exists, or as what
        it gets if it asks in an unusual way for a list that then must not be pinned.

        A denied name waits for the list as an unknown one does: both get the same answer in the
        same time.
        """
        if isinstance(message, Request) and message.method == "tools/list":
            return not parse_list_request(message).is_usual
        if message.method != "tools/call":
            return False
        name = parse_tool_call(message).tool_name
        if self.client.revision is not None or self.client.claimed_session is not None:
            return True
        # A client that states no revision has no session either: the upstream usually refuses it.
        start = self.policy.kinds.start
        return start.is_listed and name not in start.snapshot.allowed

    def _list_first(
        self, message: Request | Notification, judged: Judged, kind: Kind, arrival: Arrival
    ) -> Deciding[Verdict]:
        """Ask the upstream for the asker's list while the call waits."""
        try:
            pages = yield FetchTools(kind, arrival, message)
            if not kind.is_listed:
                kind.take(cast("tuple[bytes, ...]", pages))
                if faults := kind.snapshot.faults:
                    self.policy.tell_hidden(faults, judged)
        except (CannotList, FetchFailed):
            if message.method == "tools/call":
                return ask_for_list_instead(message, judged)
        judged.snapshot = judged.in_force = kind.snapshot
        decision = decide_from_client(message, self._situation(message, judged, kind, arrival))
        return (yield from decision) if waits(decision) else decision

    def _situation(
        self, message: Single, judged: Judged, kind: Kind, arrival: Arrival
    ) -> Situation:
        policy = self.policy
        situation = Situation(
            snapshot=judged.snapshot,
            client=self.client,
            exchange=judged.exchange,
            links=policy.links,
            limits=policy.config.limits,
            origin=judged.origin,
        )
        if isinstance(message, Request) and message.method == "tools/list":
            situation.list_from = policy.config.tools_list
            situation.envelope = kind.envelope
            asks_anew = kind.is_stale or policy.config.judges_new_tools
            is_forced = situation.list_from is ListFrom.CACHE and not kind.is_stale
            if not kind.is_listed or (asks_anew and not is_forced):
                situation.list_from = ListFrom.UPSTREAM
            else:
                situation.may_use_cache = arrival.may_use_snapshot(message)
        return situation

    def _waited_for_client(self, judged: Judged, verdict: Verdict) -> Judged:
        return self._decided_for_client(judged, self._by_policy_now(judged, verdict))

    def _decided_for_client(self, judged: Judged, verdict: Verdict) -> Judged:
        self._settle_for_client(judged, verdict)
        return self._tell(judged, judged.verdict)

    def _tell(self, judged: Judged, verdict: Verdict) -> Judged:
        judged.verdict = verdict
        policy = self.policy
        policy.observe(judged)
        if policy.propagate:
            judged.verdict = policy.propagate(judged)
        return judged

    def _settle_for_client(self, judged: Judged, verdict: Verdict) -> None:
        """Remember a request that we forward, unless its id is in use."""
        judged.verdict = verdict
        exchange = judged.exchange
        if exchange is not None and exchange.held is not None:
            self.policy.held.remove(exchange)
        if exchange is not None and isinstance(verdict, Forward | Rewrite):
            if exchange.is_cancelled:
                judged.verdict = self._cancelled(exchange)
                return
            if self.policy.keeps_requests and isinstance(judged.message, Request):
                exchange.request = self._as_forwarded(judged.message, verdict)
            if self.policy.links and self.exchanges.is_taken(exchange):
                judged.verdict = refuse_taken(exchange)
            else:
                self.exchanges.open(exchange)

    def _cancelled(self, exchange: Exchange) -> Verdict:
        """Return the verdict on a request that was cancelled in time, or on its cancellation."""
        reason = Reason(Why.CANCELLED, detail="cancelled while it waited")
        if exchange.id is None or self.client.via is not Via.HTTP:  # nobody waits for an answer
            return Drop(reason)
        return Reply(render_error(exchange.id, _REQUEST_CANCELLED, "Request cancelled"), reason)

    def _as_forwarded(self, message: Request, verdict: Forward | Rewrite) -> Request:
        if isinstance(verdict, Forward):
            return message
        changed = parse_message(verdict.text, self.policy.config.limits)
        return changed if isinstance(changed, Request) else message


def ask_for_list_instead(message: Request | Notification, judged: Judged) -> Verdict:
    """Send a request for the list in the place of a call whose asker's list we could not fetch.

    So the upstream says what is wrong (log in first, the session has ended), and says the same for
    every name.
    """
    name = parse_tool_call(message).tool_name
    why = Why.DENIED if name in judged.snapshot.denied else Why.UNKNOWN
    reason = Reason(why, (name,), detail="the tool list could not be fetched")
    if not isinstance(message, Request) or judged.exchange is None:
        return Drop(reason)
    judged.exchange.is_for_list = True
    judged.exchange.tool = name
    meta = message.params.named.get("_meta") if message.params else None
    params = f'{{"_meta":{message.place.cut(meta)}}}' if meta else "{}"
    text = f'{{"jsonrpc":"2.0","id":{message.id},"method":"tools/list","params":{params}}}'
    return Rewrite(text.encode(), reason)


def exchange_for(message: Single, size: int, now: float) -> Exchange | None:
    """Begin an exchange for a client's message; a response begins none."""
    if isinstance(message, Response):
        return None
    id = message.id if isinstance(message, Request) else None
    return Exchange(message.method[:_LONGEST_METHOD], id, None, now, size)
