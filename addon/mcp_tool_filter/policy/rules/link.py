"""The rules as a link of the chain, after the tool filter.

One policy judges both a request and its response, even if the rules file is edited in between. The
tool filter judges at once what a rule changes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.jsregex.cost import Budget
from mcp_tool_filter.policy.chain import decide_from_upstream, judge_by_filter
from mcp_tool_filter.policy.effects import Deciding, Decision, waits
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Situation
from mcp_tool_filter.policy.rule_effects import WriteCache
from mcp_tool_filter.policy.rules.carried import (
    ASKING,
    LISTEN,
    SUBSCRIBE,
    Carried,
    carried_requests,
    carried_responses,
    carried_subscriptions,
    with_changes,
)
from mcp_tool_filter.policy.rules.chain import has_rules_for, judge
from mcp_tool_filter.policy.rules.driving import AtOnce, answered
from mcp_tool_filter.policy.rules.judgement import (
    NOT_CLEAR,
    UNCLEAR,
    Refusal,
    RulesOutcome,
    StoreOrder,
)
from mcp_tool_filter.policy.rules.keeping import may_be_kept
from mcp_tool_filter.policy.rules.memory import identify
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.sessions import AskedBefore, RuleSession, RuleSessions
from mcp_tool_filter.policy.rules.subject import Circumstances, Subject, Watch
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import (
    Batch,
    Request,
    Response,
    Single,
    UnreadPlace,
    id_value,
    parse_message,
    render_error,
)

_NOTE = "rules"
_NOBODY = Client()


@dataclass(slots=True)
class _Noted:
    """What we remember about a request until its response arrives."""

    policy: Policy
    session: RuleSession
    stores: list[StoreOrder] = field(default_factory=list)


def _passes(_message: Single) -> Verdict:
    return Forward()


def _unclear(message: Single, detail: str) -> Verdict:
    """Refuse a message whose carried messages cannot be judged."""
    outcome = RulesOutcome(message, refusal=Refusal(UNCLEAR, NOT_CLEAR, None, "", "error", detail))
    return outcome.to_verdict()


class RulesLink:
    """The rules of one listener; ``policy`` may be replaced at any time."""

    def __init__(
        self,
        policy: Policy,
        at_once: AtOnce,
        *,
        upstream: str = "",
        operator: Callable[[], bytes] = bytes,
        clock: Callable[[], float] = time.monotonic,
        salt: bytes = b"",
        copies: str = "",
    ) -> None:
        """``operator`` returns the credentials that the operator adds to messages.

        ``salt`` keys the names of sessions without an id.

        The ids of our own copies of requests begin with ``copies``.
        """
        self.hits: Counter[str] = Counter()
        """How often each rule has matched."""
        self._copies = f'"{copies}' if copies else ""
        self.sessions = RuleSessions(policy.session_ttl)
        self._policy = policy
        self._at_once = at_once
        self._upstream = upstream
        self._operator = operator
        self._clock = clock
        self._salt = salt
        self._numbers = count(1)
        self._asked = AskedBefore(is_strict=True)
        self._asked_of_clients = AskedBefore()
        self._asked_in_results = AskedBefore()
        self._batch: tuple[str, Budget] | None = None

    @property
    def policy(self) -> Policy:
        return self._policy

    def adopt(self, policy: Policy) -> None:
        """Use another policy from now on; open requests keep the old one."""
        self._policy = policy
        self.sessions.ttl = policy.session_ttl

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        """Return a verdict, or a generator of effects if the message must wait."""
        if isinstance(message, Response) and self._is_for_nobody(message, situation):
            return Drop(Reason(Why.STORED, detail="the answer to a copy of a request"))
        now = self._clock()
        noted = self._note_of(situation.exchange) if isinstance(message, Response) else None
        session = noted.session if noted else self._session_of(situation.client or _NOBODY, now)
        policy = noted.policy if noted else self._policy
        if not isinstance(message, Response):
            session.note_request(message.method)
            if situation.direction is Direction.FROM_CLIENT and situation.exchange is not None:
                noted = self._note(situation.exchange, policy, session)
        try:
            carried = self._carried(message, situation, policy)
        except ProtocolError as error:
            return _unclear(message, str(error))
        if not carried:
            return self._decide_alone(message, situation, policy, session, noted)
        return answered(
            self._decide_with(carried, message, situation, policy, session, noted), self._at_once
        )

    def _decide_alone(
        self,
        message: Single,
        situation: Situation,
        policy: Policy,
        session: RuleSession,
        noted: _Noted | None,
    ) -> Decision[Verdict]:
        """Decide on a message without those that it carries."""
        if isinstance(message, Response):
            return self._decide_response(message, situation, policy, session, noted)
        now = self._clock()
        subject = self._subject(message) if policy.reads_requests else None
        if subject is not None:
            subject.watch = Watch(self._clock, policy.chain.timeout, now)
        if subject is None or not has_rules_for(policy, subject):
            self._remember(message, situation, policy, session)
            return Forward()
        subject.about = self._about(situation, session)
        judging = judge(policy, subject, self._clock)
        return answered(
            self._request_decided(judging, situation, policy, session, noted),
            self._at_once,
        )

    # Carried messages

    def _carried(self, message: Single, situation: Situation, policy: Policy) -> list[Carried]:
        """Return the carried messages that rules could concern. Raises ProtocolError."""
        if situation.direction is Direction.FROM_UPSTREAM:
            if isinstance(message, Response) and policy.may_judge(*ASKING):
                return carried_requests(message, situation.limits)
            return []
        found: list[Carried] = []
        if isinstance(message, Request) and policy.reads_responses:
            found += carried_responses(message, situation.limits)
        if (
            not isinstance(message, Response)
            and message.method == LISTEN
            and policy.may_judge(SUBSCRIBE)
        ):
            found += carried_subscriptions(message, situation.limits)
        return found

    def _decide_with(
        self,
        carried: list[Carried],
        message: Single,
        situation: Situation,
        policy: Policy,
        session: RuleSession,
        noted: _Noted | None,
    ) -> Deciding[Verdict]:
        """Decide on the carried messages first; one that is refused refuses their carrier."""
        changes: list[tuple[Carried, Single]] = []
        rules: list[str] = []
        for one in carried:
            judged = yield from self._judge_carried(one, situation, policy, session)
            self.hits.update(judged.matched)
            if judged.refusal is not None:
                return replace(judged, message=message).to_verdict()
            if judged.is_changed:
                changes.append((one, judged.message))
                rules += [done.rule for done in judged.done]
            if policy.reads_responses and isinstance(judged.message, Request) and one.key:
                self._asked_in_results.note(session.id, one.key, judged.message)
        if not changes:
            decision = self._decide_alone(message, situation, policy, session, noted)
            return (yield from decision) if waits(decision) else decision
        text = with_changes(message.place, changes)
        changed = parse_message(text, situation.limits)
        assert not isinstance(changed, Batch)
        decision = self._decide_alone(changed, situation, policy, session, noted)
        verdict = (yield from decision) if waits(decision) else decision
        if not isinstance(verdict, Forward):
            return verdict
        return Rewrite(text, Reason(Why.CHANGED, rule=", ".join(dict.fromkeys(rules))))

    def _judge_carried(
        self, one: Carried, situation: Situation, policy: Policy, session: RuleSession
    ) -> Deciding[RulesOutcome]:
        """Judge a carried message as if it was sent alone; its carrier's default is enough."""
        asked = None
        if isinstance(one.message, Response):
            asked = self._asked_in_results.find(session.id, one.key)
        is_listening = isinstance(one.message, Request) and one.message.method == SUBSCRIBE
        about = self._about(situation, session)
        about = replace(
            about,
            from_client=is_listening or isinstance(one.message, Response),
            filter=_passes,
            is_answered=True,
            is_carried=True,
        )
        subject = Subject(one.message, about, asked)
        subject.watch = Watch(self._clock, policy.chain.timeout, self._clock())
        if not has_rules_for(policy, subject):
            return RulesOutcome(one.message)
        return (yield from judge(policy, subject, self._clock))

    def _subject(self, message: Single, request: Request | None = None) -> Subject:
        return Subject(message, None, request, self._budget_of_batch(message))

    def _budget_of_batch(self, message: Single) -> Budget | None:
        """Return the budget that all members of a batch share; None for any other message.

        Otherwise each member of a batch could keep all clients waiting.
        """
        place = message.place
        if not place.start or isinstance(place, UnreadPlace):
            self._batch = None
            return None
        if self._batch is None or self._batch[0] is not place.text:
            self._batch = place.text, Budget()
        return self._batch[1]

    def _is_for_nobody(self, message: Response, situation: Situation) -> bool:
        """Tell whether this answers our own copy of a request, sent by a rule."""
        return (
            bool(self._copies)
            and situation.direction is Direction.FROM_UPSTREAM
            and message.id is not None
            and message.id.startswith(self._copies)
        )

    # Requests and notifications

    def _request_decided(
        self,
        judging: Deciding[RulesOutcome],
        situation: Situation,
        policy: Policy,
        session: RuleSession,
        noted: _Noted | None,
    ) -> Deciding[Verdict]:
        judged = yield from judging
        self.hits.update(judged.matched)
        verdict = judged.to_verdict()
        if isinstance(verdict, Reply) and judged.is_answered_by_rule:
            return (yield from self._judge_own_error(verdict, judged, situation, policy, session))
        if not isinstance(verdict, Forward | Rewrite):
            return verdict
        final = judged.message
        self._remember(final, situation, policy, session)
        if judged.cached is not None and isinstance(final, Request):
            return (yield from self._answer_stored(final, judged.cached, situation))
        if noted:
            noted.stores = judged.stores
        return verdict

    def _judge_own_error(
        self,
        reply: Reply,
        judged: RulesOutcome,
        situation: Situation,
        policy: Policy,
        session: RuleSession,
    ) -> Deciding[Verdict]:
        """Return the response rules' verdict on an error with which a rule answers."""
        request = judged.message
        assert isinstance(request, Request)
        answer = replace(situation, direction=situation.direction.opposite)
        limits = replace(situation.limits, message=len(reply.text))
        error = parse_message(reply.text, limits)
        assert isinstance(error, Response)
        about = replace(self._about(answer, session), is_own_error=True)
        subject = Subject(error, about, request, self._batch and self._batch[1])
        if not has_rules_for(policy, subject):
            return reply
        told = yield from judge(policy, subject, self._clock)
        self.hits.update(told.matched)
        verdict = told.to_verdict()
        if not isinstance(verdict, Rewrite):
            return reply if isinstance(verdict, Forward) else verdict
        reason = verdict.reason if told.refusal else reply.reason
        return Reply(verdict.text, reason)

    def _answer_stored(
        self, message: Request, stored: bytes, situation: Situation
    ) -> Deciding[Verdict]:
        """Answer with a stored result, after the tool filter and the response rules have judged
        it."""
        head = f'{{"jsonrpc":"2.0","id":{message.id},"result":'.encode()
        text = b"".join([head, stored, b"}"])
        response = parse_message(text, situation.limits)
        assert not isinstance(response, Batch)
        answer = replace(situation, direction=Direction.FROM_UPSTREAM)
        decision = decide_from_upstream(response, answer)
        verdict = (yield from decision) if waits(decision) else decision
        if isinstance(verdict, Rewrite):
            return Reply(verdict.text, verdict.reason)
        return Reply(text, Reason(Why.STORED))

    def _remember(
        self, message: Single, situation: Situation, policy: Policy, session: RuleSession
    ) -> None:
        """Keep a request as it is forwarded, for the rules that judge its response."""
        if not isinstance(message, Request) or not policy.reads_responses:
            return
        if situation.direction is Direction.FROM_UPSTREAM:
            self._asked_of_clients.note(session.id, id_value(message.id), message)
            return
        if situation.exchange is not None:
            situation.exchange.request = message
        self._asked.note(session.id, id_value(message.id), message)

    # Responses

    def _decide_response(
        self,
        message: Response,
        situation: Situation,
        policy: Policy,
        session: RuleSession,
        noted: _Noted | None,
    ) -> Decision[Verdict]:
        exchange = situation.exchange
        if exchange is not None and situation.direction is Direction.FROM_UPSTREAM:
            seconds = max(0.0, self._clock() - exchange.asked_at)
            session.note_response(exchange.method, seconds, is_error=message.result is None)
        stores = noted.stores if noted else []
        if not stores and not policy.reads_responses:
            return Forward()
        if noted:
            noted.stores = []
        request = self._request_of(message, situation, session)
        if request is None and self._must_know_request(message, situation, policy):
            reason = Reason(Why.MALFORMED, detail="the request for this answer is not known")
            return Rewrite(render_error(message.id, UNCLEAR, NOT_CLEAR), reason)
        subject = self._subject(message, request)
        subject.watch = Watch(self._clock, policy.chain.timeout, self._clock())
        if not stores and not has_rules_for(policy, subject):
            return Forward()
        subject.about = self._about(situation, session)
        return answered(self._response_decided(subject, policy, stores), self._at_once)

    def _response_decided(
        self, subject: Subject, policy: Policy, stores: list[StoreOrder]
    ) -> Deciding[Verdict]:
        message = subject.message
        if isinstance(message, Response) and message.result is not None and stores:
            written = message.place.cut(message.result)
            if may_be_kept(message.place.text, message.result):
                for one in stores:
                    yield WriteCache(one.key, written.encode(), one.ttl, one.group, one.max_entries)
        judged = yield from judge(policy, subject, self._clock)
        self.hits.update(judged.matched)
        return judged.to_verdict()

    def _request_of(
        self, message: Response, situation: Situation, session: RuleSession
    ) -> Request | None:
        """Return the request that a response answers, as it was forwarded, if we know it."""
        if message.id is None:
            return None
        id = id_value(message.id)
        if situation.direction is Direction.FROM_CLIENT:
            return self._asked_of_clients.find(session.id, id)
        exchange = situation.exchange
        known = exchange.request if exchange is not None else None
        return known or self._asked.find(session.id, id)

    def _must_know_request(self, message: Response, situation: Situation, policy: Policy) -> bool:
        """Tell whether the rules for this result depend on its request."""
        is_from_upstream = situation.direction is Direction.FROM_UPSTREAM
        has_result = message.result is not None
        return is_from_upstream and has_result and policy.reads_requests_of_responses

    def sessions_at_work(self, most: int = 200) -> Iterator[tuple[str, float, int, int, float]]:
        """Yield id, age, messages, errors and mean latency, the most recently used session
        first."""
        now = self._clock()
        for session in islice(reversed(list(self.sessions)), most):
            all_stats = session.methods.values()
            answered = sum(stats.responses for stats in all_stats)
            seconds = sum(stats.seconds for stats in all_stats)
            errors = sum(stats.errors for stats in all_stats)
            age, mean = now - session.started, seconds / answered if answered else 0.0
            yield session.id, age, session.messages, errors, mean

    # What we know besides the message

    def _note(self, exchange: Exchange, policy: Policy, session: RuleSession) -> _Noted:
        noted = _Noted(policy, session)
        if exchange.notes is None:
            exchange.notes = {}
        exchange.notes[_NOTE] = noted
        return noted

    def _note_of(self, exchange: Exchange | None) -> _Noted | None:
        noted = exchange.notes.get(_NOTE) if exchange is not None and exchange.notes else None
        return noted if isinstance(noted, _Noted) else None

    def _session_of(self, client: Client, now: float) -> RuleSession:
        session = client.session
        if session is not None and session.id:
            return self.sessions.get(session.id, partial(str, session.id), session.started, now)
        claimed = client.claimed_session
        if claimed and client.upstream_has_sessions:
            return self.sessions.get(claimed, partial(str, claimed), None, now)
        if session is not None:  # a session of a transport without session ids
            known = session.notes.get(_NOTE)
            if not isinstance(known, str):
                known = session.notes[_NOTE] = f"session-{next(self._numbers)}"
            return self.sessions.get((known,), partial(str, known), session.started, now)
        who = client.address, client.identity
        known_session = self.sessions.find(who, now)
        return known_session or self.sessions.get(who, partial(self._name, *who), None, now)

    def _name(self, address: str, identity: bytes) -> str:
        """Name a session that we know only by its client's address and credentials."""
        return f"client-{identify(self._salt, address.encode() + bytes(1) + identity)}"

    def _about(self, situation: Situation, session: RuleSession) -> Circumstances:
        client = situation.client or _NOBODY
        ours = self._operator()
        return Circumstances(
            from_client=situation.direction is Direction.FROM_CLIENT,
            session_id=session.id,
            claimed_session_id=client.claimed_session,
            session_started=session.started,
            session=session.custom,
            credentials=b"\0".join([client.identity, ours]) if ours else client.identity,
            operator=ours,
            asker=client.asker,
            upstream=self._upstream,
            revision=client.revision or "",
            filter=partial(judge_by_filter, situation=situation),
            limits=situation.limits,
            is_answered=situation.is_answered,
            origin=situation.origin,
        )
