"""The rules as a link of the chain, after the tool filter, and what they remember.

One policy judges both a request and its response, even if the rules file is edited in between. The
tool filter judges at once what a rule changes. A session is identified by MCP's session id, or if a
revision has none, by the client's credentials and address. All memory is bounded in number, bytes
and time; the least recently used is forgotten first:

>>> memory = MemoryState(b"salt")
>>> [memory.count_use("a", ((2, 60.0),), now=float(second)) for second in (0, 10, 20, 60)]
[None, None, 40.0, None]
"""

from __future__ import annotations

import hmac
import time
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count, islice
from typing import cast

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.jsregex.cost import Budget
from mcp_tool_filter.policy.chain import decide_from_upstream, judge_by_filter
from mcp_tool_filter.policy.effects import Deciding, Decision, Effect, waits
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Situation
from mcp_tool_filter.policy.rule_effects import WriteCache
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import (
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
from mcp_tool_filter.rules.carried import (
    ASKING,
    LISTEN,
    SUBSCRIBE,
    Carried,
    carried_requests,
    carried_responses,
    carried_subscriptions,
    with_changes,
)
from mcp_tool_filter.rules.chain import has_rules_for, judge
from mcp_tool_filter.rules.perform import may_be_kept
from mcp_tool_filter.rules.policy import Policy
from mcp_tool_filter.rules.subject import (
    NOT_CLEAR,
    UNCLEAR,
    Circumstances,
    Refusal,
    RulesOutcome,
    StoreOrder,
    Subject,
    Watch,
)


class Later(Enum):
    LATER = "later"


type AtOnce = Callable[[Effect], object]
"""Returns the result of an effect, or LATER if it must wait; raises EffectFailed."""


def answered[Outcome](deciding: Deciding[Outcome], at_once: AtOnce) -> Deciding[Outcome]:
    """Yield only those effects of a decision that must wait."""
    resume: Callable[[], Effect] = partial(next, deciding)
    while True:
        try:
            effect = resume()
        except StopIteration as made:
            return cast("Outcome", made.value)
        try:
            came = at_once(effect)
            if came is Later.LATER:
                came = yield effect
        except GeneratorExit:
            deciding.close()
            raise
        except BaseException as error:  # the effect's failure, for the decision
            resume = partial(deciding.throw, error)
        else:
            resume = partial(deciding.send, came)


MOST_BYTES = 64 * 1024 * 1024
_MOST_KEYS = 100_000
_MOST_USES = 2_000_000
_PER_ENTRY = 200  # bytes that an entry costs besides its value


def identify(salt: bytes, credentials: bytes) -> str:
    """Return a short salted hash of credentials."""
    return hmac.digest(salt, credentials, "sha256").hex()[:16]


@dataclass(slots=True)
class _Entry:
    value: bytes
    expires: float
    group: str


@dataclass(slots=True)
class _Group:
    """The keys of one rule's entries, oldest first."""

    keys: OrderedDict[str, None] = field(default_factory=OrderedDict)


class MemoryState:
    def __init__(
        self,
        salt: bytes,
        *,
        most_bytes: int = MOST_BYTES,
        most_keys: int = _MOST_KEYS,
        most_uses: int = _MOST_USES,
    ) -> None:
        self.salt = salt
        self._most_bytes, self._most_keys, self._most_uses = most_bytes, most_keys, most_uses
        self._windows: OrderedDict[str, array[float]] = OrderedDict()
        self._uses = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._groups: dict[str, _Group] = {}
        self.bytes = 0

    def identify(self, credentials: bytes) -> str:
        return identify(self.salt, credentials)

    # Windows

    def count_use(
        self, key: str, limits: tuple[tuple[int, float], ...], now: float
    ) -> float | None:
        """Count a use; if that exceeds a limit, do not count it and return the seconds to wait."""
        uses = self._windows.get(key)
        if uses is None:
            uses = self._windows[key] = array("d")
        self._windows.move_to_end(key)
        wait = max((_wait(uses, limit, window, now) for limit, window in limits), default=0.0)
        longest = max((window for _, window in limits), default=0.0)
        past = bisect_right(uses, now - longest)
        del uses[:past]
        self._uses -= past
        if wait > 0:
            if not uses:  # a limit of 0: clients that choose keys must not fill the memory
                del self._windows[key]
            return wait
        uses.append(now)
        self._uses += 1
        self._forget_windows()
        return None

    def _forget_windows(self) -> None:
        while len(self._windows) > self._most_keys or self._uses > self._most_uses:
            if len(self._windows) == 1:
                return
            _, uses = self._windows.popitem(last=False)
            self._uses -= len(uses)

    # Cached results

    def read_cache(self, key: str, now: float) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= now:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def write_cache(
        self, key: str, value: bytes, ttl: float, group: str, max_entries: int, now: float
    ) -> None:
        if key in self._entries:
            self._remove(key)
        size = len(value) + _PER_ENTRY
        if size > self._most_bytes:
            return
        self._entries[key] = _Entry(value, now + ttl, group)
        keys = self._groups.setdefault(group, _Group()).keys
        keys[key] = None
        self.bytes += size
        while len(keys) > max_entries:
            self._remove(next(iter(keys)))
        while self.bytes > self._most_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key)
        self.bytes -= len(entry.value) + _PER_ENTRY
        keys = self._groups[entry.group].keys
        keys.pop(key, None)
        if not keys:
            self._groups.pop(entry.group, None)

    def clean_up(self, now: float) -> None:
        """Forget expired entries."""
        for key in [key for key, entry in self._entries.items() if entry.expires <= now]:
            self._remove(key)


def _wait(uses: array[float], limit: int, window: float, now: float) -> float:
    """Return the seconds until one more use is within a limit; 0 if it is now."""
    first = bisect_right(uses, now - window)
    count = len(uses) - first
    if count < limit:
        return 0.0
    if limit <= 0:
        return window
    return max(uses[len(uses) - limit] + window - now, 1e-9)


MOST_SESSIONS = 10_000
_MOST_METHODS = 100  # of one session
_MOST_REQUESTS = 10_000
_MOST_REQUEST_BYTES = 64 * 1024 * 1024
_CLEAN_EVERY = 60.0  # seconds


@dataclass(slots=True)
class MethodStats:
    """Statistics of the requests of one method."""

    requests: int = 0
    responses: int = 0
    errors: int = 0
    seconds: float = 0.0
    """The total time from requests to their responses."""
    slowest: float = 0.0


@dataclass(slots=True)
class RuleSession:
    """A session as rules see it."""

    id: str
    started: float
    used: float
    messages: int = 0
    methods: dict[str, MethodStats] = field(default_factory=dict)
    custom: dict[str, object] = field(default_factory=dict)
    """For users' own classes."""

    def note_request(self, method: str) -> None:
        if (stats := self._stats(method)) is not None:
            stats.requests += 1

    def note_response(self, method: str, seconds: float, *, is_error: bool) -> None:
        if (stats := self._stats(method)) is not None:
            stats.responses += 1
            stats.errors += is_error
            stats.seconds += seconds
            stats.slowest = max(stats.slowest, seconds)

    def _stats(self, method: str) -> MethodStats | None:
        """Return the statistics of a method; None if the client has used too many methods."""
        known = self.methods.get(method)
        if known is None and len(self.methods) < _MOST_METHODS:
            known = self.methods[method] = MethodStats()
        return known


class RuleSessions:
    """The sessions, the most recently used last."""

    def __init__(self, ttl: float = 3600.0, *, most: int = MOST_SESSIONS) -> None:
        self.ttl = ttl
        self._most = most
        self._sessions: OrderedDict[Hashable, RuleSession] = OrderedDict()
        self._cleaned = 0.0

    def get(
        self, key: Hashable, name: Callable[[], str], started: float | None, now: float
    ) -> RuleSession:
        """Return the session of this key; a new one gets the name as its id.

        It starts now, or at ``started`` if that is known.
        """
        known = self.find(key, now)
        if known is not None:
            return known
        session = RuleSession(name(), now if started is None else started, now)
        self._sessions[key] = session
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return self._used(key, session, now)

    def find(self, key: Hashable, now: float) -> RuleSession | None:
        """Return the session of this key, if there is one, and count one more message."""
        session = self._sessions.get(key)
        if session is None or now - session.used > self.ttl:
            return None
        return self._used(key, session, now)

    def _used(self, key: Hashable, session: RuleSession, now: float) -> RuleSession:
        session.used = now
        session.messages += 1
        self._sessions.move_to_end(key)
        if now - self._cleaned > _CLEAN_EVERY:
            self.clean_up(now)
        return session

    def clean_up(self, now: float) -> None:
        """Forget sessions that have been idle for too long."""
        self._cleaned = now
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used <= self.ttl:
                return
            self._sessions.popitem(last=False)

    def __iter__(self) -> Iterator[RuleSession]:
        yield from list(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)


class AskedBefore:
    """Requests by session and id, for responses that come on another stream, or again.

    The sender chooses the ids. With ``is_strict``, an id that was used for different requests finds
    none, because we cannot tell which of them a response answers.
    """

    def __init__(
        self,
        *,
        is_strict: bool = False,
        most: int = _MOST_REQUESTS,
        most_bytes: int = _MOST_REQUEST_BYTES,
    ) -> None:
        self._is_strict = is_strict
        self._most, self._most_bytes = most, most_bytes
        self._requests: OrderedDict[tuple[str, str], tuple[Request | None, int]] = OrderedDict()
        self._bytes = 0

    def note(self, session: str, id: str, request: Request) -> None:
        key = session, id
        place = request.place
        kept: Request | None = request
        size = len(place.text)
        if key in self._requests:
            before, old_size = self._requests.pop(key)
            self._bytes -= old_size
            if self._is_strict and (before is None or before.place.raw != place.raw):
                kept, size = None, 0
        self._requests[key] = kept, size
        self._bytes += size
        while len(self._requests) > self._most or self._bytes > self._most_bytes:
            _, (_, gone) = self._requests.popitem(last=False)
            self._bytes -= gone

    def find(self, session: str, id: str) -> Request | None:
        request, _ = self._requests.get((session, id), (None, 0))
        return request


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
        text = reply.text.decode()
        id = None if request.id == "null" else request.id
        error = Response(id, place=Place(text, 0, len(text)))
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
