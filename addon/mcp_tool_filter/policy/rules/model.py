"""A rules file that has been read: a policy, which is never changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcp_tool_filter.policy.rules.actions import (
    CHANGES,
    REFUSALS,
    Action,
    Allow,
    CallFunction,
    Script,
)
from mcp_tool_filter.policy.rules.conditions import Condition, Reads
from mcp_tool_filter.policy.rules.interceptors import MethodInterceptor, UserInterceptor
from mcp_tool_filter.policy.rules.subject import Subject

_MOST_KNOWN = 4096  # pairs of method and tool, whose rules are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    fail_fast: bool = True
    parallel: bool = False
    timeout: float = 5.0
    default_block: bool = False
    allow_on_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """Where rate limits and caches are kept; without a URL, in memory."""

    url: str | None = None
    prefix: str = "mcp:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    conditions: tuple[Condition, ...]
    labels: tuple[str, ...]
    """How the policy writes each condition."""
    actions: tuple[Action, ...]
    action_names: tuple[str, ...]
    for_requests: bool
    for_responses: bool
    name: str = ""
    priority: int = 0

    @property
    def changes_message(self) -> bool:
        return any(isinstance(one, CHANGES) for one in self.actions)

    @property
    def may_wait(self) -> bool:
        return any(isinstance(one, Script | CallFunction) for one in self.actions)

    @property
    def always_ends(self) -> bool:
        """Whenever it matches, no later rule is evaluated (with ``fail_fast``)."""
        return any(isinstance(one, Allow | REFUSALS) for one in self.actions)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that could match, and what is still to be asked."""

    rule: Rule
    order: int
    rest: tuple[Condition, ...]


class RuleIndex:
    """The rules of one direction by method and tool: what depends on these is asked once."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._known: dict[tuple[str | None, str | None], tuple[Candidate, ...]] = {}

    def candidates(self, subject: Subject) -> tuple[Candidate, ...]:
        key = subject.method, subject.tool
        known = self._known.get(key)
        if known is None:
            known = tuple(self._choose(subject))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        return known

    def _choose(self, subject: Subject) -> list[Candidate]:
        chosen = []
        for order, rule in enumerate(self._rules):
            static = [one for one in rule.conditions if one.reads < Reads.MESSAGE]
            if all(one.holds(subject, 0.0) for one in static):
                rest = tuple(one for one in rule.conditions if one.reads is Reads.MESSAGE)
                chosen.append(Candidate(rule, order, rest))
        return chosen

    def __len__(self) -> int:
        return len(self._rules)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """``rules`` are those that are enabled, in the order in which they are evaluated."""

    rules: tuple[Rule, ...] = ()
    chain: ChainSettings = field(default_factory=ChainSettings)
    interceptors: dict[str, MethodInterceptor] = field(default_factory=dict)
    state: StateSettings = field(default_factory=StateSettings)
    session_ttl: float = 3600.0
    warnings: tuple[str, ...] = ()
    enabled: bool = True
    requests: RuleIndex = field(init=False, repr=False, compare=False)
    responses: RuleIndex = field(init=False, repr=False, compare=False)

    @property
    def reads_responses(self) -> bool:
        """Anything in it looks at responses."""
        return self.enabled and (
            len(self.responses) > 0
            or any(isinstance(one, UserInterceptor) for one in self.interceptors.values())
        )

    def __post_init__(self) -> None:
        on = self.rules if self.enabled else ()
        requests = RuleIndex(tuple(rule for rule in on if rule.for_requests))
        responses = RuleIndex(tuple(rule for rule in on if rule.for_responses))
        object.__setattr__(self, "requests", requests)
        object.__setattr__(self, "responses", responses)
