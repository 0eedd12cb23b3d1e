"""Judge messages by rules: they are a link of the chain, after the tool filter.

One policy judges both a request and its response, even if the rules file is edited in between. The
tool filter judges at once what a rule changes. A session is identified by MCP's session id, or if a
revision has none, by the client's credentials and address.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import cast

from jsregex.cost import Budget
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Place,
    Request,
    Response,
    Single,
    UnreadPlace,
    id_value,
    parse_message,
    render_error,
)
from mcp_tool_filter.core.messages.tools import parse_listing
from mcp_tool_filter.core.policy.chain import decide_from_upstream, judge_by_filter
from mcp_tool_filter.core.policy.effects import Deciding, Decision, waits
from mcp_tool_filter.core.policy.situation import Client, Direction, Situation
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.rooms.rules.actions import may_be_kept
from mcp_tool_filter.rooms.rules.carried import (
    ASKING,
    LISTEN,
    SUBSCRIBE,
    Carried,
    carried_requests,
    carried_responses,
    carried_subscriptions,
    shows_skill,
    with_changes,
)
from mcp_tool_filter.rooms.rules.chain import AtOnce, Stopwatch, answered, judge
from mcp_tool_filter.rooms.rules.credentials import identify
from mcp_tool_filter.rooms.rules.memory import AskedBefore, RuleSession, RuleSessions
from mcp_tool_filter.rooms.rules.policy import Policy
from mcp_tool_filter.rooms.rules.rule_effects import WriteCache
from mcp_tool_filter.rooms.rules.subject import (
    NOT_CLEAR,
    UNCLEAR,
    Circumstances,
    Refusal,
    RulesOutcome,
    Subject,
    passes,
)

_NOTE = "rules"
_NOBODY = Client()


@dataclass(slots=True)
class _Noted:
    """What we remember about a request until its response arrives."""

    policy: Policy
    session: RuleSession
    stores: list[WriteCache] = field(default_factory=list)


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
        self.policy = policy
        self.sessions = RuleSessions(policy.session_ttl)
        self.at_once, self.clock = at_once, clock
        self.upstream, self.operator = upstream, operator
        self.asked = AskedBefore(is_strict=True)
        self.asked_of_clients, self.asked_in_results = AskedBefore(), AskedBefore()
        self._copies = f'"{copies}' if copies else ""
        self._salt = salt
        self._numbers = count(1)
        self._batch: tuple[str, Budget] | None = None

    def adopt(self, policy: Policy) -> None:
        """Use another policy from now on; open requests keep the old one."""
        self.policy = policy
        self.sessions.ttl = policy.session_ttl

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        """Return a verdict, or a generator of effects if the message must wait."""
        if (
            isinstance(message, Response)
            and self._copies
            and situation.direction is Direction.FROM_UPSTREAM
            and message.id is not None
            and message.id.startswith(self._copies)
        ):
            return Drop(Reason(Why.STORED, detail="the answer to a copy of a request"))
        noted, budget = self._note(message, situation), self._budget_of_batch(message)
        return _Judge(self, situation, noted, budget).decide(message)

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

    # What we know besides the message

    def _note(self, message: Single, situation: Situation) -> _Noted:
        """Return what judges a message: for a response, the policy of its request."""
        exchange = situation.exchange
        if isinstance(message, Response):
            known = exchange.notes.get(_NOTE) if exchange is not None and exchange.notes else None
            if isinstance(known, _Noted):
                return known
        session = self._session_of(situation.client or _NOBODY, self.clock())
        noted = _Noted(self.policy, session)
        is_from_client = situation.direction is Direction.FROM_CLIENT
        if exchange is not None and is_from_client and not isinstance(message, Response):
            if exchange.notes is None:
                exchange.notes = {}
            exchange.notes[_NOTE] = noted
        return noted

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
        return self.sessions.get(who, partial(self._name, *who), None, now)

    def _name(self, address: str, identity: bytes) -> str:
        """Name a session that we know only by its client's address and credentials."""
        return f"client-{identify(self._salt, address.encode() + bytes(1) + identity)}"

    def sessions_at_work(self, most: int = 200) -> Iterator[tuple[str, float, int, int, float]]:
        """Yield id, age, messages, errors and mean latency, the most recently used session
        first."""
        now = self.clock()
        for session in islice(reversed(list(self.sessions)), most):
            mean = session.seconds / session.responses if session.responses else 0.0
            yield session.id, now - session.started, session.messages, session.errors, mean


@dataclass(slots=True)
class _Judge:
    """Decides on one message, and on those that it carries."""

    link: RulesLink
    situation: Situation
    noted: _Noted
    budget: Budget | None

    def decide(self, message: Single) -> Decision[Verdict]:
        try:
            carried = self._carried(message)
        except ProtocolError as error:
            refusal = Refusal(UNCLEAR, NOT_CLEAR, None, "", "error", str(error))
            return RulesOutcome(message, refusal=refusal).to_verdict()
        if not carried:
            return self._decide_alone(message)
        self.budget = self.budget or Budget()
        return self._begun(self._decide_with(carried, message))

    def _decide_alone(self, message: Single) -> Decision[Verdict]:
        """Decide on a message without those that it carries."""
        if isinstance(message, Response):
            return self._decide_response(message)
        if self.noted.policy.reads_requests:
            judging = self._judging(message)
            if judging is not None:
                if self.situation.is_shadow:
                    self._remember(message)
                return self._begun(self._request_decided(judging))
        self._remember(message)
        return Forward()

    def _begun(self, deciding: Deciding[Verdict]) -> Decision[Verdict]:
        """Run a decision; what is left of it has an effect that may have to wait."""
        try:
            effect = next(deciding)
        except StopIteration as made:
            return cast("Verdict", made.value)
        return answered(deciding, self.link.at_once, lambda: effect)

    def _judging(
        self, message: Single, request: Request | None = None, about: Circumstances | None = None
    ) -> Deciding[RulesOutcome] | None:
        """Return how the rules judge a message; None if nothing in them concerns it."""
        policy, clock = self.noted.policy, self.link.clock
        watch = Stopwatch(clock, policy.chain.timeout, clock())
        subject = Subject(message, about, request, self.budget, watch)
        if not policy.concerns(subject):
            return None
        if about is None:
            subject.about = self._about()
        return self._judged(subject)

    def _judged(self, subject: Subject) -> Deciding[RulesOutcome]:
        judged = yield from judge(self.noted.policy, subject, self.link.clock)
        self.link.hits.update(judged.matched)
        if judged.audited and self.situation.audited is not None:
            self.situation.audited += judged.audited
        return judged

    def _about(self) -> Circumstances:
        link, situation, session = self.link, self.situation, self.noted.session
        client = situation.client or _NOBODY
        return Circumstances(
            from_client=situation.direction is Direction.FROM_CLIENT,
            session_id=session.id,
            claimed_session_id=client.claimed_session,
            session_started=session.started,
            session=session.custom,
            credentials=client.identity,
            operator=link.operator,
            asker=lambda: f"{client.revision or ''}\0".encode() + client.asker(),
            upstream=link.upstream,
            filter=partial(judge_by_filter, situation=situation),
            limits=situation.limits,
            is_answered=situation.is_answered,
            is_shadow=situation.is_shadow,
            origin=situation.origin,
        )

    # Carried messages

    def _carried(self, message: Single) -> list[Carried]:
        """Return the carried messages that rules could concern. Raises ProtocolError."""
        policy, limits = self.noted.policy, self.situation.limits
        if self.situation.direction is Direction.FROM_UPSTREAM:
            if isinstance(message, Response) and policy.may_judge(*ASKING):
                return carried_requests(message, limits)
            return []
        carried: list[Carried] = []
        if isinstance(message, Request) and policy.reads_responses:
            carried += carried_responses(message, limits)
        if (
            not isinstance(message, Response)
            and message.method == LISTEN
            and policy.may_judge(SUBSCRIBE)
        ):
            carried += carried_subscriptions(message, limits)
        return carried

    def _decide_with(self, carried: list[Carried], message: Single) -> Deciding[Verdict]:
        """Decide on the carried messages first; one that is refused refuses their carrier."""
        changes: list[tuple[Carried, Single]] = []
        rules: list[str] = []
        policy, session = self.noted.policy, self.noted.session
        for message_within in carried:
            judged = yield from self._judge_carried(message_within)
            if judged.refusal is not None:
                return replace(judged, message=message).to_verdict()
            if judged.is_changed:
                changes.append((message_within, judged.message))
                rules += judged.done
            if (
                policy.reads_responses
                and isinstance(judged.message, Request)
                and message_within.key
            ):
                self.link.asked_in_results.note(session.id, message_within.key, judged.message)
        text, carrier = b"", message
        if changes:
            text = with_changes(message.place, changes)
            changed = parse_message(text, self.situation.limits)
            assert not isinstance(changed, Batch)
            carrier = changed
        decision = self._decide_alone(carrier)
        verdict = (yield from decision) if waits(decision) else decision
        if not changes or not isinstance(verdict, Forward):
            return verdict
        return Rewrite(text, Reason(Why.CHANGED, rule=", ".join(dict.fromkeys(rules))))

    def _judge_carried(self, carried: Carried) -> Deciding[RulesOutcome]:
        """Judge a carried message as if it was sent alone; its carrier's default is enough."""
        is_answer = isinstance(carried.message, Response)
        known = self.link.asked_in_results
        asked = known.find(self.noted.session.id, carried.key) if is_answer else None
        is_listening = isinstance(carried.message, Request) and carried.message.method == SUBSCRIBE
        about = replace(
            self._about(),
            from_client=is_listening or is_answer,
            filter=passes,
            is_answered=True,
            is_carried=True,
        )
        judging = self._judging(carried.message, asked, about)
        return RulesOutcome(carried.message) if judging is None else (yield from judging)

    # Requests and notifications

    def _request_decided(self, judging: Deciding[RulesOutcome]) -> Deciding[Verdict]:
        judged = yield from judging
        verdict, final = judged.to_verdict(), judged.message
        if self.situation.is_shadow:
            return verdict
        if isinstance(verdict, Reply) and isinstance(final, Request):
            refusal = judged.refusal
            is_of_rule = refusal is not None and refusal.action != "error"
            if is_of_rule and self.noted.policy.reads_responses:
                return (yield from self._judge_own_error(verdict, final))
        if not isinstance(verdict, Forward | Rewrite):
            return verdict
        self._remember(final)
        if judged.cached is not None and isinstance(final, Request):
            response = self._stored_response(final, judged.cached)
            if not (self.situation.snapshot.is_open and parse_listing(response)):
                return (yield from self._answer_stored(response))
            # These are tools that this asker has not seen: only a list that comes is pinned.
        self.noted.stores = judged.stores
        return verdict

    def _judge_own_error(self, reply: Reply, request: Request) -> Deciding[Verdict]:
        """Return the response rules' verdict on an error with which a rule answers."""
        text = reply.text.decode()
        id = None if request.id == "null" else request.id
        error = Response(id, place=Place(text, 0, len(text)))
        answer = replace(self.situation, direction=self.situation.direction.opposite)
        judge = replace(self, situation=answer)
        judging = judge._judging(error, request, replace(judge._about(), is_own_error=True))
        if judging is None:
            return reply
        told = yield from judging
        verdict = told.to_verdict()
        if not isinstance(verdict, Rewrite):
            return reply if isinstance(verdict, Forward) else verdict
        return Reply(verdict.text, verdict.reason if told.refusal else reply.reason)

    def _stored_response(self, message: Request, stored: bytes) -> Response:
        head = f'{{"jsonrpc":"2.0","id":{message.id},"result":'.encode()
        response = parse_message(b"".join([head, stored, b"}"]), self.situation.limits)
        assert isinstance(response, Response)
        return response

    def _answer_stored(self, response: Response) -> Deciding[Verdict]:
        """Answer with a stored result, after the tool filter and the response rules have judged
        it."""
        answer = replace(self.situation, direction=Direction.FROM_UPSTREAM)
        decision = decide_from_upstream(response, answer)
        verdict = (yield from decision) if waits(decision) else decision
        if isinstance(verdict, Rewrite):
            return Reply(verdict.text, verdict.reason)
        return Reply(response.place.raw, Reason(Why.STORED))

    def _remember(self, message: Single) -> None:
        """Keep a request as it is forwarded, for the rules that judge its response."""
        if not isinstance(message, Request) or not self.noted.policy.reads_responses:
            return
        asked = self.link.asked
        if self.situation.direction is Direction.FROM_UPSTREAM:
            asked = self.link.asked_of_clients
        elif self.situation.exchange is not None:
            self.situation.exchange.request = message
        asked.note(self.noted.session.id, id_value(message.id), message)

    # Responses

    def _decide_response(self, message: Response) -> Decision[Verdict]:
        policy, session, exchange = self.noted.policy, self.noted.session, self.situation.exchange
        is_from_upstream = self.situation.direction is Direction.FROM_UPSTREAM
        if exchange is not None and is_from_upstream:
            session.responses += 1
            session.errors += message.result is None
            session.seconds += max(0.0, self.link.clock() - exchange.asked_at)
        stores, self.noted.stores = self.noted.stores, []
        if not stores and not policy.reads_responses:
            return Forward()
        request = self._request_of(message)
        needs_request = policy.reads_requests_of_responses and message.result is not None
        if request is None and is_from_upstream and needs_request:
            reason = Reason(Why.MALFORMED, detail="the request for this answer is not known")
            return Rewrite(render_error(message.id, UNCLEAR, NOT_CLEAR), reason)
        judging = self._judging(message, request)
        if judging is None and not stores:
            return Forward()
        return self._begun(self._response_decided(message, judging, stores, request))

    def _response_decided(
        self,
        message: Response,
        judging: Deciding[RulesOutcome] | None,
        stores: list[WriteCache],
        request: Request | None,
    ) -> Deciding[Verdict]:
        result = message.result
        if stores and result is not None and may_be_kept(message.place.text, result):
            for store in stores:
                yield replace(store, value=message.place.cut(result).encode())
        if judging is None:
            return Forward()
        judged = yield from judging
        if judged.is_changed and judged.refusal is None and shows_skill(message, request):
            rule = (judged.done or [""])[-1]
            judged.refusal = Refusal.of_rule("A rule would change a file of a skill", rule, "skill")
        return judged.to_verdict()

    def _request_of(self, message: Response) -> Request | None:
        """Return the request that a response answers, as it was forwarded, if we know it."""
        if message.id is None:
            return None
        id, session = id_value(message.id), self.noted.session.id
        if self.situation.direction is Direction.FROM_CLIENT:
            return self.link.asked_of_clients.find(session, id)
        exchange = self.situation.exchange
        known = exchange.request if exchange is not None else None
        return known or self.link.asked.find(session, id)
