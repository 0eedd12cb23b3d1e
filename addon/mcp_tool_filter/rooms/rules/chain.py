"""Apply the rules in order: method interceptors, then rules by priority, then the default
action.

A ``Run`` is one message on its way through the rules. When an action changes a part of the message,
the rest keeps its bytes, and the tool filter judges it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from math import ceil
from typing import Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.messages import (
    Batch,
    Notification,
    Request,
    Single,
    parse_message,
)
from mcp_tool_filter.core.messages.methods import CLIENT_REQUESTS
from mcp_tool_filter.core.policy.effects import Deciding, Delay, Effect, Together, driven
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Why
from mcp_tool_filter.rooms.rules import rule_effects as effects
from mcp_tool_filter.rooms.rules.actions import Action
from mcp_tool_filter.rooms.rules.credentials import each_credential
from mcp_tool_filter.rooms.rules.edits import Edited, ImpossibleChange
from mcp_tool_filter.rooms.rules.fields import Key, PatternGivenUp
from mcp_tool_filter.rooms.rules.interceptors import MethodInterceptor
from mcp_tool_filter.rooms.rules.policy import AUDIT, Candidate, Policy
from mcp_tool_filter.rooms.rules.rule_effects import EffectFailed
from mcp_tool_filter.rooms.rules.subject import (
    NOT_CLEAR,
    UNCLEAR,
    Evaluated,
    Refusal,
    RulesOutcome,
    Subject,
    TooSlow,
)
from mcp_tool_filter.rooms.rules.templates import expanded

_FAILURES = (EffectFailed, ImpossibleChange, PatternGivenUp, TooSlow)
# The sender of a message can cause these, so they never mean "allow".
_OF_THE_SENDER = (ImpossibleChange, PatternGivenUp, effects.TooLarge)
_AT_ONCE = 0.05  # seconds that others wait for us
_LONG = 64 * 1024  # characters of a message that may be to blame if time runs out
_MOST_CREDENTIALS = 64  # of one request; each is counted
_NEVER_REFUSED = frozenset({"initialize", "ping", "server/discover"})


@dataclass(slots=True)
class Stopwatch:
    """Measures how long we have worked on a message, without what we waited for."""

    clock: Callable[[], float]
    most: float
    began: float
    waited: float = 0.0

    paused_at: float = 0.0
    """How long we had worked when we last let others work."""

    def look(self) -> float:
        """Return how long we have worked. Long loops ask now and then.

        Raises TooSlow if it is more than allowed.
        """
        worked = self.clock() - self.began - self.waited
        if worked > self.most:
            raise TooSlow("the rules took too long for a message of this size")
        return worked

    def is_due(self) -> bool:
        """Tell whether others should work now; then we pause. Raises TooSlow."""
        worked = self.look()
        if worked <= self.paused_at + _AT_ONCE:
            return False
        self.paused_at = worked
        return True


def judge(
    policy: Policy,
    subject: Subject,
    clock: Callable[[], float],
    trace: list[Evaluated] | None = None,
) -> Deciding[RulesOutcome]:
    """Decide what happens to a message; yields the effects needed for it."""
    now, most = clock(), policy.chain.timeout
    watch = subject.watch = subject.watch or Stopwatch(clock, most, now)
    outcome, is_shadow = RulesOutcome(subject.message), subject.about.is_shadow
    run = Run(policy, subject, watch, now + most, outcome, trace, is_pretended=is_shadow)
    steps = run.go()
    try:
        effect = next(steps, None)  # most messages need none
        if effect is not None:
            yield from driven(steps, partial(_waited, watch), lambda: effect)
    except ProtocolError as error:
        run.rule = ""
        run.refuse_unclear(error)
    return run.outcome


class Later(Enum):
    LATER = "later"


type AtOnce = Callable[[Effect], object]
"""Returns the result of an effect, or LATER if it must wait; raises EffectFailed."""


def answered[Outcome](
    deciding: Deciding[Outcome], at_once: AtOnce, resume: Callable[[], Effect] | None = None
) -> Deciding[Outcome]:
    """Yield only those effects of a decision that must wait. ``resume`` returns its next effect,
    if it has begun."""
    return driven(deciding, partial(_at_once_or_waited, at_once), resume)


def _at_once_or_waited(at_once: AtOnce, effect: Effect) -> Deciding[object]:
    came = at_once(effect)
    return (yield effect) if came is Later.LATER else came


def _waited(watch: Stopwatch, effect: Effect) -> Deciding[object]:
    """Note how long an effect takes: what a decision waits for is not its own work."""
    before = watch.clock()
    try:
        return (yield effect)
    finally:
        watch.waited += watch.clock() - before


@dataclass(slots=True)
class Run:
    policy: Policy
    subject: Subject
    watch: Stopwatch
    deadline: float
    outcome: RulesOutcome
    trace: list[Evaluated] | None = None
    is_pretended: bool = False
    """True if the outcome is only reported."""
    rule: str = ""
    """The rule that is being evaluated."""
    allowed: bool = False
    """True after a rule has said ``allow``."""
    prefetched: dict[int, tuple[Subject, object]] = field(default_factory=dict)
    """Results of actions (by identity) that waited together, and the message they were for."""
    _credential: str | None = None

    # For actions

    def left(self) -> float:
        """Return how many seconds are left. Raises EffectFailed if there are none."""
        left = self.deadline - self.watch.clock()
        if left <= 0:
            raise EffectFailed("the rules took too long")
        return left

    def credential(self) -> Deciding[str]:
        """Return a hash that identifies the asker without revealing a credential."""
        if self._credential is None:
            self._credential = yield from self._identify(self.subject.about.credentials)
        return self._credential

    def _identify(self, credentials: bytes) -> Deciding[str]:
        ours = self.subject.about.operator()
        who = b"\0".join([credentials, ours]) if ours else credentials
        return str((yield effects.Identify(who)))

    def refuse(
        self, message: str, action: str, *, retry_after: float | None = None, detail: str = ""
    ) -> None:
        """Refuse the message with our own error code. The client learns which rule refused."""
        more = "" if retry_after is None else f',"retry_after":{max(1, ceil(retry_after))}'
        self.refuse_with(Refusal.of_rule(message, self.rule, action, more, detail))

    def refuse_with(self, refusal: Refusal) -> None:
        """Refuse the message, unless it has been refused before."""
        if self.outcome.refusal is None:
            self.outcome.refusal = refusal

    def refuse_unclear(self, error: Exception) -> None:
        self.outcome.refusal = Refusal(UNCLEAR, NOT_CLEAR, None, self.rule, "error", str(error))

    def edit(self, edit: Callable[[Edited], Edited]) -> None:
        """Edit ``params`` or ``result``. Raises ImpossibleChange.

        Missing params are created if the edit adds something to them. An error has no result and
        stays unchanged.
        """
        place, raw = self.subject.message.place, self.subject.text
        value = self.subject.part("result" if self.subject.is_response else "params")
        if value is not None:
            written = place.text[value.start : value.end]
            changed = edit(Edited(written, self.subject.look)).text
            if changed != written:
                head, tail = raw[: value.start - place.start], raw[value.end - place.start :]
                self.change(head + changed + tail)
        elif not self.subject.is_response and (made := edit(Edited("{}")).text) != "{}":
            self.change(Edited(raw).set([Key("params")], made).text)

    def change(self, text: str) -> None:
        """Continue with a changed message, which the tool filter judges.

        Raises ImpossibleChange if it is not a message, or no longer the same request or response.
        """
        old = self.subject
        message = _parse(text, old)
        try:
            verdict = old.about.filter(message)
        except ProtocolError as error:
            raise ImpossibleChange(f"the changed message cannot be judged: {error}") from None
        if isinstance(verdict, Rewrite):
            message = _parse(verdict.text.decode(), old)
        self.subject = Subject(message, old.about, old.request, old.budget, old.watch)
        self.outcome.message = message
        self.outcome.is_changed = True
        # A list that is answered from the snapshot goes on.
        ends = isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED
        self.outcome.filtered = verdict if ends else None

    # Method interceptors, rules, and the default action

    @property
    def ends(self) -> bool:
        """True if no later rule is evaluated."""
        refused = self.outcome.refusal is not None and self.policy.chain.fail_fast
        return refused or self.allowed or self.outcome.filtered is not None

    def go(self) -> Deciding[None]:
        if self.policy.interceptors:
            interceptor = self.policy.interceptor_for(self.subject)
            if interceptor is not None:
                yield from self._intercept(interceptor)
        if not self.ends:
            yield from self._follow_rules()
        message, about = self.subject.message, self.subject.about
        if (
            not self.allowed
            and self.policy.chain.default_block
            and is_request(message)
            and about.from_client
            and not about.is_carried
            and self.subject.method not in _NEVER_REFUSED
        ):
            self.rule = "default_action"
            self.refuse("Blocked by default", "block")

    def _intercept(self, interceptor: MethodInterceptor) -> Deciding[None]:
        name = self.rule = self.subject.method or ""
        if seen := self._note(name):
            seen.is_interceptor = True
        try:
            yield from self._pretended(interceptor.intercept(self), interceptor.name or name)
        except _FAILURES as error:
            yield from self._fail("its interceptor", error)
        if self.outcome.refusal is not None:
            self.outcome.matched.append(name)
            self.outcome.done.append(name)
            if seen:
                seen.matched = True
                seen.done.append(self.outcome.refusal.action)

    def _follow_rules(self) -> Deciding[None]:
        waiting = self._candidates()
        while waiting:
            if self.policy.chain.parallel and not self.is_pretended:
                yield from self._run_together(waiting)
            candidate = waiting.pop(0)
            subject = self.subject
            is_audit = candidate.rule.mode == AUDIT
            yield from self._audit(candidate) if is_audit else self._follow(candidate)
            if self.ends:
                return
            if self.subject is not subject:  # other rules may match the changed message
                waiting = self._candidates(after=candidate.order)

    def _candidates(self, after: int = -1) -> list[Candidate]:
        """Return the rules that could match; with a trace, all rules."""
        candidates = self.subject.possible
        if self.trace is not None:
            candidates = self.policy.every_rule(self.subject)
        elif candidates is None:  # a changed message
            candidates = self.policy.possible(self.subject)
        return [candidate for candidate in candidates if candidate.order > after]

    def _audit(self, candidate: Candidate) -> Deciding[None]:
        """Evaluate a rule with ``mode: audit`` apart: no other rule gets less time or patience."""
        most, began, waited = self.policy.chain.timeout, self.watch.clock(), self.watch.waited
        watch = Stopwatch(self.watch.clock, most, began)
        subject = Subject(
            self.subject.message, self.subject.about, self.subject.request, None, watch
        )
        outcome = RulesOutcome(subject.message)
        apart = Run(
            self.policy, subject, watch, began + most, outcome, self.trace, is_pretended=True
        )
        try:
            yield from apart._follow(candidate)
        except (ProtocolError, TooSlow) as error:
            apart.refuse_unclear(error)
        self.outcome.matched += outcome.matched
        verdict = outcome.to_verdict()
        if not isinstance(verdict, Forward):
            self.outcome.audited.append(verdict)
        took = self.watch.clock() - began
        self.deadline += took
        self.watch.waited = waited + took

    def _follow(self, candidate: Candidate) -> Deciding[None]:
        rule, self.rule = candidate.rule, candidate.rule.id
        if seen := self._note(rule.id):
            seen.is_audit = rule.mode == AUDIT
        if self.watch.clock() >= self.deadline:
            yield from self._fail("the chain", EffectFailed("the rules took too long"))
            return
        was_refused = self.outcome.refusal is not None
        try:
            if self.watch.is_due():
                yield Delay(0)
            if not self._matches(candidate, seen):
                return
        except ProtocolError as error:
            self._refuse_unclear(error)
            return
        except _FAILURES as error:
            yield from self._fail("a condition", error)
            return
        self.outcome.matched.append(rule.id)
        for action in rule.actions:
            if not self._may_run(action, was_refused=was_refused):
                continue
            try:
                if self.watch.is_due():
                    yield Delay(0)
                yield from self._pretended(self._do(action), action.name)
            except ProtocolError as error:
                self._refuse_unclear(error)
                return
            except _FAILURES as error:
                yield from self._fail(action.name, error)
                continue
            self.outcome.done.append(rule.id)
            if seen:
                seen.done.append(action.name)
            if self.outcome.filtered is not None:
                return

    def _matches(self, candidate: Candidate, seen: Evaluated | None) -> bool:
        subject, now = self.subject, self.watch.clock()
        if seen is None:
            return all(condition.holds(subject, now) for condition in candidate.rest)
        for condition in candidate.rule.conditions:
            seen.asked = condition.label
            holds = condition.holds(subject, now)
            seen.conditions.append((seen.asked, holds))
            if not holds:
                break
        else:
            seen.matched = True
        seen.asked = ""
        return seen.matched

    def _may_run(self, action: Action, *, was_refused: bool) -> bool:
        """Tell whether an action still runs after a refusal by its own rule or an earlier one."""
        kind = action.kind
        if self.outcome.refusal is None or kind.tells:
            return True
        in_background = kind.ask is not None and not action.decides
        return was_refused and (in_background or kind.changes)

    def _do(self, action: Action) -> Deciding[None]:
        kind, subject = action.kind, self.subject
        if kind.part and subject.is_response != (kind.part == "result"):
            return
        if kind.is_for is not None and not kind.is_for(self):
            return
        if kind.charges and "credential" in action.names:
            return (yield from self._charge(action))
        if kind.ask is None:
            doing = kind.do(self, *(yield from self._values(action)))
        else:
            of_subject, answer = self.prefetched.get(id(action), (None, None))
            if of_subject is not subject:
                answer = yield (yield from self._question(action))
            if isinstance(answer, EffectFailed):
                raise answer
            doing = kind.do(self, answer)
        if doing is not None:
            yield from doing

    def _charge(self, action: Action) -> Deciding[None]:
        """Count a use by each credential: one that a client makes up changes nothing for others."""
        credentials = each_credential(self.subject.about.credentials) or [b""]
        if len(credentials) > _MOST_CREDENTIALS:
            return self.refuse("Too many credentials", action.name)
        for credential in credentials:
            if self.outcome.refusal is not None:
                return
            who = yield from self._identify(credential)
            doing = action.kind.do(self, *expanded(action.args, self.subject, self.rule, who))
            if doing is not None:
                yield from doing

    def _values(self, action: Action) -> Deciding[tuple[Any, ...]]:
        who = (yield from self.credential()) if "credential" in action.names else ""
        return tuple(expanded(action.args, self.subject, self.rule, who))

    def _question(self, action: Action) -> Deciding[Effect]:
        assert action.kind.ask
        return action.kind.ask(self, *(yield from self._values(action)))

    def _refuse_unclear(self, error: ProtocolError) -> None:
        if self.outcome.refusal is None:
            self.refuse_unclear(error)

    def _fail(self, what: str, error: Exception) -> Deciding[None]:
        is_given_up = isinstance(error, PatternGivenUp)
        why = f"the pattern {error} takes too long on this message" if is_given_up else error
        is_late = self.watch.clock() >= self.deadline
        is_long = len(self.subject.message.place.text) > _LONG
        is_of_sender = isinstance(error, _OF_THE_SENDER) or (
            is_long and (is_late or isinstance(error, TooSlow))
        )
        yield effects.Warn(f"Rule {self.rule!r}: {what} failed: {why}")
        # A message's author must not be able to bypass the rules.
        if is_of_sender or not self.policy.chain.allow_on_error:
            self.refuse("A rule could not be applied", "error", detail=f"{what} failed: {why}")
        elif is_late:
            self.allowed = True  # no time left for further rules

    def _note(self, rule: str) -> Evaluated | None:
        if self.trace is None:
            return None
        self.trace.append(Evaluated(rule))
        return self.trace[-1]

    def _pretended(self, doing: Deciding[None], what: str) -> Deciding[None]:
        """Do it; if the outcome is only reported, do only what changes and delays nothing, and note
        that the rest was left out."""
        if self.is_pretended:
            return driven(doing, partial(_pretend, self.outcome.left_out, what))
        return doing

    # Waiting together

    def _run_together(self, waiting: list[Candidate]) -> Deciding[None]:
        """Start the effects of the next rules at the same time, as long as none of them changes the
        message."""
        if self.outcome.refusal is not None:
            return
        pairs: list[tuple[Action, Effect]] = []
        for rule, action in self._next_waits(waiting):
            self.rule = rule
            known = self.prefetched.get(id(action))
            if known is None or known[0] is not self.subject:
                try:
                    pairs.append((action, (yield from self._question(action))))
                except (ProtocolError, *_FAILURES):
                    return  # it will fail when its turn comes
        if len(pairs) < 2:
            return
        results = yield Together(tuple(_attempt(effect) for _, effect in pairs))
        assert isinstance(results, list)
        for (action, _), result in zip(pairs, results, strict=True):
            self.prefetched[id(action)] = (self.subject, result)

    def _next_waits(self, waiting: list[Candidate]) -> Iterator[tuple[str, Action]]:
        now = self.watch.clock()
        for candidate in waiting:
            rule = candidate.rule
            if rule.mode == AUDIT:
                continue
            if rule.changes_message:
                return
            try:
                if not all(condition.holds(self.subject, now) for condition in candidate.rest):
                    continue
            except (ProtocolError, PatternGivenUp, TooSlow):
                return  # it will end the chain when its turn comes
            if first := next((action for action in rule.actions if action.decides), None):
                yield rule.id, first
            if any(action.kind.ends for action in rule.actions):
                return


def _pretend(left_out: list[str], what: str, effect: Effect) -> Deciding[object]:
    match effect:
        case effects.WriteLog():
            return (yield replace(effect, shadow=True))
        case effects.Measure() | effects.Warn():
            return (yield effect)
        case effects.Identify() | effects.CountUse():
            return (yield effects.Locally(effect))
    left_out.append(what)
    return effects.ScriptResult(0, b"") if isinstance(effect, effects.RunScript) else None


def _attempt(effect: Effect) -> Deciding[object]:
    try:
        return (yield effect)
    except EffectFailed as error:
        return error


def _parse(text: str, old: Subject) -> Single:
    try:
        message = parse_message(text.encode(), old.about.limits)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ImpossibleChange(f"the result is not a message: {error}") from None
    if isinstance(message, Batch) or type(message) is not type(old.message):
        raise ImpossibleChange("the result is another kind of message")
    if not isinstance(message, Notification) and message.id != old.id:
        raise ImpossibleChange("the result has another id")
    return message


def is_request(message: Single) -> bool:
    """Tell whether a message asks for something, also without an id: some upstreams do it."""
    if isinstance(message, Notification):
        return message.method in CLIENT_REQUESTS
    return isinstance(message, Request)
