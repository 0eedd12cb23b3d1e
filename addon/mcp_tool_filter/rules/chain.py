"""Apply the rules in order: method interceptors, then rules by priority, then the default
action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.effects import Deciding, Delay, Effect, Together, driven
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    Locally,
    Measure,
    RunScript,
    ScriptResult,
    TooLarge,
    Warn,
    WriteLog,
)
from mcp_tool_filter.policy.verdict import Forward
from mcp_tool_filter.protocol.messages import is_request
from mcp_tool_filter.rules.actions import Action, Asks, count_use, text_from_python
from mcp_tool_filter.rules.edits import ImpossibleChange, to_python
from mcp_tool_filter.rules.fields import PatternGivenUp
from mcp_tool_filter.rules.interceptors import (
    InterceptedExchange,
    MethodInterceptor,
    ToolCallInterceptor,
    UserInterceptor,
)
from mcp_tool_filter.rules.policy import Candidate, Policy, Rule
from mcp_tool_filter.rules.subject import (
    NOT_CLEAR,
    UNCLEAR,
    Evaluated,
    Refusal,
    RulesOutcome,
    Run,
    Subject,
    TooSlow,
    Watch,
)

_FAILURES = (EffectFailed, ImpossibleChange, PatternGivenUp, TooSlow)
# The sender of a message can cause these, so they never mean "allow".
_OF_THE_SENDER = (ImpossibleChange, PatternGivenUp, TooLarge)
_LONG = 64 * 1024  # characters of a message that may be to blame if time runs out
_NEVER_REFUSED = frozenset({"initialize", "ping", "server/discover"})


def judge(
    policy: Policy,
    subject: Subject,
    clock: Callable[[], float],
    trace: list[Evaluated] | None = None,
) -> Deciding[RulesOutcome]:
    """Decide what happens to a message; yields the effects needed for it."""
    now = clock()
    watch = subject.watch = subject.watch or Watch(clock, policy.chain.timeout, now)
    outcome, is_shadow = RulesOutcome(subject.message), subject.about.is_shadow
    run = Run(subject, now + policy.chain.timeout, outcome, watch, is_pretended=is_shadow)
    try:
        yield from driven(_Walk(policy, run, trace).go(), partial(_waited, watch))
    except ProtocolError as error:
        _refuse_unclear(run, "", str(error))
    return run.judgement


class Later(Enum):
    LATER = "later"


type AtOnce = Callable[[Effect], object]
"""Returns the result of an effect, or LATER if it must wait; raises EffectFailed."""


def answered[Outcome](deciding: Deciding[Outcome], at_once: AtOnce) -> Deciding[Outcome]:
    """Yield only those effects of a decision that must wait."""
    return driven(deciding, partial(_at_once_or_waited, at_once))


def _at_once_or_waited(at_once: AtOnce, effect: Effect) -> Deciding[object]:
    came = at_once(effect)
    return (yield effect) if came is Later.LATER else came


def _waited(watch: Watch, effect: Effect) -> Deciding[object]:
    """Note how long an effect takes: what a decision waits for is not its own work."""
    before = watch.clock()
    try:
        return (yield effect)
    finally:
        watch.waited += watch.clock() - before


def _refuse_unclear(run: Run, rule: str, why: str) -> None:
    run.judgement.refusal = None
    run.refuse_with(Refusal(UNCLEAR, NOT_CLEAR, None, rule, "error", why))


@dataclass(slots=True)
class _Walk:
    policy: Policy
    run: Run
    trace: list[Evaluated] | None

    @property
    def ends(self) -> bool:
        """True if no later rule is evaluated."""
        judgement = self.run.judgement
        refused = judgement.refusal is not None and self.policy.chain.fail_fast
        return refused or self.run.allowed or judgement.filtered is not None

    def go(self) -> Deciding[None]:
        if self.policy.interceptors:
            interceptor = self.policy.interceptor_for(self.run.subject)
            if interceptor is not None:
                yield from self._intercept(interceptor)
        if not self.ends:
            yield from self._follow_rules()
        if not self.run.allowed:
            self._apply_default()

    def _apply_default(self) -> None:
        message = self.run.subject.message
        if (
            self.policy.chain.default_block
            and is_request(message)
            and self.run.subject.about.from_client
            and not self.run.subject.about.is_carried
            and self.run.subject.method not in _NEVER_REFUSED
        ):
            self.run.refuse("Blocked by default", "default_action", "block")

    # Method interceptors

    def _intercept(self, interceptor: MethodInterceptor) -> Deciding[None]:
        run, name = self.run, self.run.subject.method or ""
        seen = self._note(name)
        if seen:
            seen.is_interceptor = True
        try:
            if isinstance(interceptor, UserInterceptor):
                asking = self._ask_user(interceptor, name)
                yield from _pretended(asking, run, interceptor.name) if run.is_pretended else asking
            elif reason := interceptor.problem_in(run.subject):
                run.refuse(reason, name, "block")
            elif isinstance(interceptor, ToolCallInterceptor) and interceptor.limits:
                key = ("tool", run.subject.about.session_id, run.subject.tool or "")
                counting = count_use(run, name, key, interceptor.limits)
                yield from _pretended(counting, run, name) if run.is_pretended else counting
        except _FAILURES as error:
            yield from self._fail(name, "its interceptor", error)
        if run.judgement.refusal is not None:
            run.judgement.matched.append(name)
            run.judgement.done.append(name)
            if seen:
                seen.matched = True
                seen.done.append(run.judgement.refusal.action)

    def _ask_user(self, interceptor: UserInterceptor, name: str) -> Deciding[None]:
        subject = self.run.subject
        hook = "response" if subject.is_response else "request"
        function = getattr(interceptor.instance, hook, None)
        if function is None:
            return
        who = yield from self.run.credential()
        exchange = _exchange_of(subject, who)
        made = yield CallPython(function, exchange, self.run.left())
        if isinstance(made, str):
            self.run.refuse(made, name, "block")
        elif (text := text_from_python(subject, made)) is not None:
            self.run.change(text)

    # Rules

    def _follow_rules(self) -> Deciding[None]:
        waiting = self._candidates()
        while waiting:
            if self.policy.chain.parallel and not self.run.is_pretended:
                yield from self._run_together(waiting)
            candidate = waiting.pop(0)
            subject = self.run.subject
            yield from self._evaluate(candidate)
            if self.ends:
                return
            if self.run.subject is not subject:  # other rules may match the changed message
                waiting = self._candidates(after=candidate.order)

    def _candidates(self, after: int = -1) -> list[Candidate]:
        """Return the rules that could match; with a trace, all rules."""
        subject = self.run.subject
        if self.trace is None:
            found = self.policy.possible(subject)
        else:
            found = self.policy.candidates(subject).each
        return [one for one in found if one.order > after]

    def _evaluate(self, candidate: Candidate) -> Deciding[None]:
        if candidate.rule.is_audit:
            return self._audit(candidate)
        return self._follow(candidate)

    def _audit(self, candidate: Candidate) -> Deciding[None]:
        """Evaluate a rule with ``mode: audit`` apart: no other rule gets less time or patience."""
        run, most = self.run, self.policy.chain.timeout
        began, waited = run.watch.clock(), run.watch.waited
        subject = run.subject.apart(Watch(run.watch.clock, most, began))
        assert subject.watch is not None
        outcome = RulesOutcome(subject.message)
        apart = Run(subject, began + most, outcome, subject.watch, is_pretended=True)
        try:
            yield from _Walk(self.policy, apart, self.trace)._follow(candidate)
        except (ProtocolError, TooSlow) as error:
            _refuse_unclear(apart, candidate.rule.id, str(error))
        run.judgement.matched += outcome.matched
        verdict = outcome.to_verdict()
        if not isinstance(verdict, Forward):
            run.judgement.audited.append(verdict)
        took = run.watch.clock() - began
        run.deadline += took
        run.watch.waited = waited + took

    def _follow(self, candidate: Candidate) -> Deciding[None]:
        rule = candidate.rule
        if seen := self._note(rule.id):
            seen.is_audit = rule.is_audit
        if self.run.watch.clock() >= self.run.deadline:
            yield from self._fail(rule.id, "the chain", EffectFailed("the rules took too long"))
            return
        try:
            if self.run.watch.is_due():
                yield Delay(0)
            matches = self._matches(candidate, seen)
        except ProtocolError as error:
            self._refuse_unclear(rule, error)
            return
        except _FAILURES as error:
            yield from self._fail(rule.id, "a condition", error)
            return
        if matches:
            self.run.judgement.matched.append(rule.id)
            yield from self._act(rule, seen)

    def _refuse_unclear(self, rule: Rule, error: ProtocolError) -> None:
        if self.run.judgement.refusal is None:
            _refuse_unclear(self.run, rule.id, str(error))

    def _matches(self, candidate: Candidate, seen: Evaluated | None) -> bool:
        subject, now = self.run.subject, self.run.watch.clock()
        if seen is None:
            return all(one.holds(subject, now) for one in candidate.rest)
        for condition, seen.asked in candidate.rule.labelled:
            holds = condition.holds(subject, now)
            seen.conditions.append((seen.asked, holds))
            if not holds:
                seen.asked = ""
                return False
        seen.matched, seen.asked = True, ""
        return True

    def _act(self, rule: Rule, seen: Evaluated | None) -> Deciding[None]:
        was_refused = self.run.judgement.refusal is not None
        for name, action in rule.actions:
            if not self._may_run(action, was_refused=was_refused):
                continue
            try:
                if self.run.watch.is_due():
                    yield Delay(0)
                waiting = action.perform(self.run, rule.id)
                if waiting is not None:
                    pretends = self.run.is_pretended
                    yield from _pretended(waiting, self.run, name) if pretends else waiting
            except ProtocolError as error:
                self._refuse_unclear(rule, error)
                return
            except _FAILURES as error:
                yield from self._fail(rule.id, name, error)
                continue
            self.run.judgement.done.append(rule.id)
            if seen:
                seen.done.append(name)
            if self.run.judgement.filtered is not None:
                return

    def _may_run(self, action: Action, *, was_refused: bool) -> bool:
        """Tell whether an action still runs after a refusal by its own rule or an earlier one."""
        if self.run.judgement.refusal is None or action.tells:
            return True
        in_background = isinstance(action, Asks) and not action.decides
        return was_refused and (in_background or action.changes)

    def _fail(self, rule: str, what: str, error: Exception) -> Deciding[None]:
        is_given_up = isinstance(error, PatternGivenUp)
        why = f"the pattern {error} takes too long on this message" if is_given_up else error
        is_late = self.run.watch.clock() >= self.run.deadline
        is_long = len(self.run.subject.message.place.text) > _LONG
        is_of_sender = isinstance(error, _OF_THE_SENDER) or (
            is_long and (is_late or isinstance(error, TooSlow))
        )
        yield Warn(f"Rule {rule!r}: {what} failed: {why}")
        # A message's author must not be able to bypass the rules.
        if is_of_sender or not self.policy.chain.allow_on_error:
            detail = f"{what} failed: {why}"
            self.run.refuse("A rule could not be applied", rule, "error", detail=detail)
        elif is_late:
            self.run.allowed = True  # no time left for further rules

    def _note(self, rule: str) -> Evaluated | None:
        if self.trace is None:
            return None
        self.trace.append(Evaluated(rule))
        return self.trace[-1]

    # Waiting together

    def _run_together(self, waiting: list[Candidate]) -> Deciding[None]:
        """Start the effects of the next rules at the same time, as long as none of them changes the
        message."""
        run = self.run
        if run.judgement.refusal is not None:
            return
        pairs: list[tuple[Asks, Effect]] = []
        for rule, action in self._next_waits(waiting):
            known = run.prefetched.get(id(action))
            if known is None or known[0] is not run.subject:
                try:
                    pairs.append((action, (yield from action.effect(run, rule))))
                except (ProtocolError, *_FAILURES):
                    return  # it will fail when its turn comes
        if len(pairs) < 2:
            return
        results = yield Together(tuple(_attempt(effect) for _, effect in pairs))
        assert isinstance(results, list)
        for (action, _), result in zip(pairs, results, strict=True):
            run.prefetched[id(action)] = (run.subject, result)

    def _next_waits(self, waiting: list[Candidate]) -> Iterator[tuple[str, Asks]]:
        now = self.run.watch.clock()
        for candidate in waiting:
            rule = candidate.rule
            if rule.is_audit:
                continue
            if rule.changes_message:
                return
            try:
                if not all(one.holds(self.run.subject, now) for one in candidate.rest):
                    continue
            except (ProtocolError, PatternGivenUp, TooSlow):
                return  # it will end the chain when its turn comes
            for _, action in rule.actions:
                if isinstance(action, Asks) and action.decides:
                    yield rule.id, action
                    break
            if any(action.ends for _, action in rule.actions):
                return


def _pretended(doing: Deciding[None], run: Run, what: str) -> Deciding[None]:
    """Do only what changes and delays nothing, and note that the rest was left out."""
    return driven(doing, partial(_pretend, run.judgement.left_out, what))


def _pretend(left_out: list[str], what: str, effect: Effect) -> Deciding[object]:
    match effect:
        case WriteLog():
            return (yield replace(effect, shadow=True))
        case Measure() | Warn():
            return (yield effect)
        case Identify() | CountUse():
            return (yield Locally(effect))
    left_out.append(what)
    return ScriptResult(0, b"") if isinstance(effect, RunScript) else None


def _attempt(effect: Effect) -> Deciding[object]:
    try:
        return (yield effect)
    except EffectFailed as error:
        return error


def _exchange_of(subject: Subject, who: str) -> InterceptedExchange:
    message = _as_dict(subject.text)
    request = message
    if subject.is_response:
        place = subject.request.place if subject.request else None
        request = _as_dict(place.text[place.start : place.end]) if place else None
    return InterceptedExchange(
        message=message or {},
        request=request,
        method=subject.method,
        tool=subject.tool,
        session_id=subject.about.session_id,
        session=subject.about.session,
        credential=who,
    )


def _as_dict(text: str) -> dict[str, object] | None:
    read = to_python(text)
    return read if isinstance(read, dict) else None
