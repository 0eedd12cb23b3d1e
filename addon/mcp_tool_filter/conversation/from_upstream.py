"""Read the upstream's messages, ask the policy, learn from them, and tell the observers."""

from __future__ import annotations

import json
from functools import partial

from mcp_tool_filter.conversation.both_sides import BothSides
from mcp_tool_filter.conversation.judged import (
    FORWARD,
    INVALID_ANSWER,
    NOT_LISTED,
    Judged,
)
from mcp_tool_filter.conversation.kind import Kind
from mcp_tool_filter.conversation.list_changed import (
    ACKNOWLEDGED,
    LIST_CHANGED,
    agreed_subscription,
)
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.chain import (
    decide_accepted,
    decide_from_upstream,
    join_from_upstream,
    keep_space,
)
from mcp_tool_filter.policy.effects import (
    Deciding,
    Decision,
    Delay,
    then,
    together,
    waits,
)
from mcp_tool_filter.policy.exchange import Direction, Exchange, Situation, Via
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.tool_filter import (
    decide_call,
    decide_in_steps,
    filter_from_upstream,
)
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
from mcp_tool_filter.protocol.large import (
    ResultEnvelope,
    find_result_envelope,
    read_in_steps,
    read_tool_result,
)
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    Batch,
    Message,
    Notification,
    Response,
    Single,
    ids_guessed_in,
    parse_message,
    render_error,
)
from mcp_tool_filter.protocol.tools import Listing, ToolCall, parse_listing, shows_tool

_LONG = 256 * 1024  # bytes of a list; reading so many takes some ten milliseconds
_LEAST = 16 * 1024  # bytes of a tool's result; for a shorter one the usual way is as quick
_LET_OTHERS_GO_ON = Delay(0.0)
_NOTHING = take_snapshot([], deny=[])
_LONGEST_REVISION = 64  # characters


class FromUpstream(BothSides):
    """Decides on the upstream's answers, notifications and requests."""

    __slots__ = ()

    def from_upstream(self, raw: bytes, origin: object = None) -> Decision[Judged]:
        """Decide on a message on its way to the client.

        Raises ProtocolError if it cannot be read.
        """
        policy = self.policy
        before = policy.kinds.start.snapshot
        judged = Judged(
            Direction.FROM_UPSTREAM, None, FORWARD, self.client, before, None, len(raw), origin
        )
        may_be_list = self.exchanges.lists > 0 and not policy.links
        known = self._recall(raw, judged) if may_be_list else None
        if known is None and len(raw) >= _LEAST and (envelope := find_result_envelope(raw)):
            known = self._accept(raw, envelope, judged)
        if known and judged.exchange and not policy.links:  # it teaches us nothing new
            self.exchanges.close(judged.exchange)
            return self._tell_answer(judged, known)
        if may_be_list and len(raw) >= _LONG and policy.reads_in_steps:
            return self._from_upstream_in_steps(raw, judged)
        return self._read_from_upstream(raw, judged)

    def _read_from_upstream(self, raw: bytes, judged: Judged) -> Decision[Judged]:
        policy = self.policy
        is_accepted = judged.message is not None
        message = judged.message = judged.message or parse_message(raw, policy.config.limits)
        if isinstance(message, Batch):
            return self._batch_from_upstream(message, judged)
        asked = judged.exchange = self.exchanges.answered_by(message)
        kind = policy.kinds.of(self.client, asked.capabilities if asked else None)
        decision = self._decide_for_upstream(message, judged, kind, is_accepted=is_accepted)
        if not isinstance(decision, VERDICTS):
            return then(decision, partial(self._waited_for_upstream, judged))
        if isinstance(decision, Rewrite):
            decision = keep_space(message.place.text, decision)
        if asked and asked.method == "tools/list" and not policy.links:
            self._remember_list(raw, judged, kind, decision)
        return self._decided_for_upstream(judged, decision, kind)

    def _from_upstream_in_steps(self, raw: bytes, judged: Judged) -> Deciding[Judged]:
        """Read and decide on a possibly long list in steps, so that other clients are served
        meanwhile.

        The patterns in force at the end decide.
        """
        policy = self.policy
        try:
            found = None
            for found in read_in_steps(raw, policy.config.limits):
                if found is None:
                    yield _LET_OTHERS_GO_ON
            asked = self.exchanges.answered_by(found.response) if found else None
            kind = self._kind_of(asked)
            if not kind.is_settled or not (found and asked and asked.method == "tools/list"):
                decision = self._read_from_upstream(raw, judged)
                return (yield from decision) if waits(decision) else decision
            judged.message, judged.exchange = found.response, asked
            decided = yield from self._decide_in_steps(judged, found.listing)
        except ProtocolError as error:
            return self.unreadable_from_upstream(raw, str(error), origin=judged.origin)
        verdict = keep_space(found.response.place.text, decided)
        if self._may_learn_of(kind) and not asked.is_unusual:
            kind.learn(asked.cursor, found.listing)
        elif isinstance(verdict, Forward | Rewrite):  # always true here
            policy.judged.remember(raw, verdict, judged.snapshot)
        return self._decided_for_upstream(judged, verdict)

    def _decide_in_steps(self, judged: Judged, listing: Listing) -> Deciding[Verdict]:
        while True:
            judged.snapshot = self._kind_of(judged.exchange).snapshot
            for verdict in decide_in_steps(listing, judged.snapshot):
                if verdict is None:
                    yield _LET_OTHERS_GO_ON
                elif judged.snapshot is self._kind_of(judged.exchange).snapshot:
                    return verdict

    def judge_from_upstream(self, raw: bytes, origin: object = None) -> Decision[Judged]:
        """Decide on a message; if it cannot be judged, the waiting client gets an error."""
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
        """Replace a message that cannot be judged by errors for the requests that it may answer.

        The first error is the verdict's text, the others are what it owes. ``is_cut`` means that we
        have only the beginning. ``ids`` are the ids that it may answer, if the caller knows them.
        """
        ids = self.exchanges.take(ids_guessed_in(beginning) if ids is None else ids)
        if not ids and len(self.exchanges) == 1 and (is_cut or b'"id"' in beginning):
            ids = self.exchanges.take_all()  # it can only answer this one
        return self.fail(ids, detail, origin=origin)

    def fail(self, ids: list[str], detail: str, *, origin: object = None) -> Judged:
        """Tell the observers about an invalid answer; return the errors for the waiting
        requests."""
        errors = [render_error(id, INTERNAL_ERROR, INVALID_ANSWER) for id in ids]
        reason = Reason(Why.INVALID, detail=detail)
        verdict = Rewrite(errors[0], reason, tuple(errors[1:])) if errors else Drop(reason)
        return self._tell_answer(self._judged(Direction.FROM_UPSTREAM, 0, origin), verdict)

    def _batch_from_upstream(self, batch: Batch, judged: Judged) -> Decision[Judged]:
        members = [judged.member(one, self.exchanges.answered_by(one)) for one in batch.members]
        decisions = [
            self._decide_for_upstream(member, each, self._kind_of(each.exchange))
            for member, each in zip(batch.members, members, strict=True)
        ]

        def decided(verdicts: list[Verdict]) -> Judged:
            for each, verdict in zip(members, verdicts, strict=True):
                self._settle_for_upstream(each, self._by_policy_now(each, verdict))
            return self._tell_answer(
                judged, join_from_upstream(batch, [one.verdict for one in members])
            )

        judged.members = tuple(members)
        return together(decisions, decided)

    def _decide_for_upstream(
        self, message: Single, judged: Judged, kind: Kind, *, is_accepted: bool = False
    ) -> Decision[Verdict]:
        """Decide by the snapshot of the kind of asker that gets the message; pin its first list."""
        policy, asked = self.policy, judged.exchange
        if asked and asked.is_for_list and isinstance(message, Response) and message.result:
            return self._replace_list(message, kind, asked)
        judged.in_force = judged.snapshot = kind.snapshot
        if not kind.is_settled:
            judged.snapshot = self._snapshot_for(message, kind, judged.exchange)
        situation = Situation(
            snapshot=judged.snapshot,
            direction=Direction.FROM_UPSTREAM,
            client=self.client,
            exchange=judged.exchange,
            links=policy.links,
            limits=policy.config.limits,
            origin=judged.origin,
        )
        if not policy.links:
            return filter_from_upstream(message, situation)
        decide = decide_accepted if is_accepted else decide_from_upstream
        return decide(message, situation)

    def _replace_list(self, answer: Response, kind: Kind, asked: Exchange) -> Verdict:
        """Learn the list that came in the place of a call's answer, and answer the call by it."""
        if self._may_learn_of(kind) and (listing := parse_listing(answer)):
            kind.snapshot_for([listing])
            kind.learn(None, listing)
        call = ToolCall(asked.tool or "", asked.id)
        snapshot = kind.snapshot if kind.is_listed else _NOTHING
        verdict = decide_call(call, snapshot)
        if isinstance(verdict, Reply):
            return Rewrite(verdict.text, verdict.reason)
        reason = Reason(Why.INVALID, detail="a list in the place of a call's answer")
        return Rewrite(render_error(asked.id, INTERNAL_ERROR, NOT_LISTED), reason)

    def _waited_for_upstream(self, judged: Judged, verdict: Verdict) -> Judged:
        verdict = self._by_policy_now(judged, verdict)
        if isinstance(judged.message, Response) and isinstance(verdict, Rewrite):
            verdict = keep_space(judged.message.place.text, verdict)
        return self._decided_for_upstream(judged, verdict)

    def _decided_for_upstream(
        self, judged: Judged, verdict: Verdict, kind: Kind | None = None
    ) -> Judged:
        self._settle_for_upstream(judged, verdict, kind)
        return self._tell_answer(judged, verdict)

    def _tell_answer(self, judged: Judged, verdict: Verdict) -> Judged:
        judged.verdict = verdict
        policy = self.policy
        policy.observe(judged)
        if policy.propagate and not isinstance(judged.message, Response):
            judged.verdict = policy.propagate(judged)
        return judged

    def _settle_for_upstream(
        self, judged: Judged, verdict: Verdict, kind: Kind | None = None
    ) -> None:
        """Learn from an answer, and close its exchange.

        ``kind`` is the kind of asker, if nothing has happened since it was looked up.
        """
        judged.verdict = verdict
        message, exchange = judged.message, judged.exchange
        if isinstance(message, Response):
            if exchange is not None:
                if message.result is not None:
                    self._learn(message, exchange, kind)
                self.exchanges.close(exchange)
        elif isinstance(message, Notification):
            if message.method == LIST_CHANGED:
                self.policy.kinds.note_change(self.client)
            elif message.method == ACKNOWLEDGED:
                self._note_subscription(message)
        elif isinstance(verdict, Reply) and self.client.via in (Via.HTTP, Via.LEGACY_SSE):
            # Over HTTP we cannot reply on the stream that the upstream's request came on.
            self.policy.answer_upstream(verdict.text, judged.origin, self.client)

    def _remember_list(self, raw: bytes, judged: Judged, kind: Kind, verdict: Verdict) -> None:
        """Remember the verdict on a list, because the upstream will send the same list again."""
        is_list = judged.message is not None and _is_list(judged.message, judged.exchange, kind)
        if is_list and isinstance(verdict, Forward | Rewrite):
            self.policy.judged.remember(raw, verdict, judged.snapshot)

    def _recall(self, raw: bytes, judged: Judged) -> Verdict | None:
        """Return the verdict on a list that the upstream has sent before."""
        if len(raw) > self.policy.config.limits.message:
            return None
        kind = self.policy.kinds.of(self.client)
        known = self.policy.judged.recall(raw, kind.snapshot)
        if known is None:
            return None
        message, verdict = known
        asked = self.exchanges.answered_by(message)
        if not _is_list(message, asked, kind):
            return None
        judged.message, judged.exchange, judged.snapshot = message, asked, kind.snapshot
        return verdict

    def _accept(self, raw: bytes, envelope: ResultEnvelope, judged: Judged) -> Verdict | None:
        """Accept the long result of a tool without parsing it, if it certainly may pass."""
        asked = self.exchanges.answered_by(Response(envelope.id))
        if asked is None or asked.method != "tools/call" or asked.is_for_list:
            return None
        found = read_tool_result(raw, envelope, self.policy.config.limits)
        snapshot = self._kind_of(asked).snapshot
        if found is None or shows_tool(found.rest, snapshot.denied):
            return None
        judged.message, judged.exchange, judged.snapshot = found.response, asked, snapshot
        return FORWARD

    def _learn(self, message: Response, asked: Exchange, kind: Kind | None) -> None:
        """Keep what an answer says about its session and about the tools of its kind of asker."""
        if asked.method == "initialize" and (session := self.client.session) and message.result:
            version = message.result.get("protocolVersion")
            said = version.text if version else None
            session.revision = said[:_LONGEST_REVISION] if said else None
            session.capabilities = asked.capabilities
            session.declares_changes = _declares_changes(message)
        elif asked.method == "tools/list" and not asked.is_unusual:
            kind = kind or self._kind_of(asked)
            if self._may_learn_of(kind) and (listing := parse_listing(message)):
                kind.learn(asked.cursor, listing)

    def _may_learn_of(self, kind: Kind) -> bool:
        """Tell whether a list may contain something new for its kind of asker."""
        is_known = kind.is_listed and not kind.is_stale and kind.envelope is not None
        return not is_known or self.policy.config.judges_new_tools

    def _note_subscription(self, message: Notification) -> None:
        """Note that the upstream will tell the client about list changes, if the message says
        so."""
        if id := agreed_subscription(message):
            for spelling in (id, id.strip('"')):  # some upstreams write a number as a string
                asked = self.exchanges.answered_by(Response(spelling)) if spelling else None
                if asked is not None and asked.method == "subscriptions/listen":
                    asked.subscription = id
                    return


def _is_list(message: Message, asked: Exchange | None, kind: Kind) -> bool:
    """Tell whether this answers a tools/list and teaches us nothing new."""
    if not isinstance(message, Response) or message.result is None or asked is None:
        return False
    is_asked = asked.method == "tools/list" and asked.capabilities is None
    return is_asked and kind.is_listed and not kind.is_stale


def _declares_changes(answer: Response) -> bool:
    """Tell whether an answer to initialize says ``"tools":{"listChanged":true}``."""
    declared = answer.result.get("capabilities") if answer.result else None
    try:
        capabilities = json.loads(answer.place.cut(declared)) if declared else None
    except (ValueError, RecursionError):
        return False
    tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
    return isinstance(tools, dict) and tools.get("listChanged") is True
