"""The policy: a rules file that has been read. It is never changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcp_tool_filter.policy.rules.index import RuleIndex
from mcp_tool_filter.policy.rules.interceptors import (
    RESOURCE_METHODS,
    MethodInterceptor,
    UserInterceptor,
)
from mcp_tool_filter.policy.rules.rule import Rule
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.protocol.messages import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    fail_fast: bool = True
    parallel: bool = False
    timeout: float = 5.0
    default_block: bool = False
    allow_on_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """Where to keep rate limits and caches; without a URL, in memory."""

    url: str | None = None
    prefix: str = "mcp:"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy; ``rules`` are the enabled ones, in order of evaluation."""

    rules: tuple[Rule, ...] = ()
    chain: ChainSettings = field(default_factory=ChainSettings)
    interceptors: dict[str, MethodInterceptor] = field(default_factory=dict)
    state: StateSettings = field(default_factory=StateSettings)
    session_ttl: float = 3600.0
    warnings: tuple[str, ...] = ()
    enabled: bool = True
    requests: RuleIndex = field(init=False, repr=False, compare=False)
    responses: RuleIndex = field(init=False, repr=False, compare=False)
    _judged: dict[tuple[str, ...], bool] = field(init=False, repr=False, compare=False)
    reads_requests: bool = field(init=False, repr=False, compare=False)
    """True if anything in the policy looks at requests."""
    reads_responses: bool = field(init=False, repr=False, compare=False)
    """True if anything in the policy looks at responses."""
    reads_requests_of_responses: bool = field(init=False, repr=False, compare=False)
    """True if a rule for responses also depends on the request."""

    def may_judge(self, *methods: str) -> bool:
        """Tell whether anything but the default action could concern requests of these methods, or
        their answers."""
        known = self._judged.get(methods)
        if known is None:
            known = self._judged[methods] = self.enabled and any(map(self._may_judge, methods))
        return known

    def _may_judge(self, method: str) -> bool:
        asked = Subject(Request(method, "0"))
        same = RESOURCE_METHODS if method in RESOURCE_METHODS else (method,)
        return bool(
            self.requests.candidates(asked).each or self.responses.candidates(asked).each
        ) or not self.interceptors.keys().isdisjoint(same)

    def __post_init__(self) -> None:
        on = self.rules if self.enabled else ()
        requests = RuleIndex(tuple(rule for rule in on if rule.for_requests))
        responses = RuleIndex(tuple(rule for rule in on if rule.for_responses))
        object.__setattr__(self, "_judged", {})
        object.__setattr__(self, "requests", requests)
        object.__setattr__(self, "responses", responses)
        judges = len(requests) > 0 or bool(self.interceptors) or self.chain.default_block
        object.__setattr__(self, "reads_requests", self.enabled and judges)
        users = any(isinstance(one, UserInterceptor) for one in self.interceptors.values())
        object.__setattr__(self, "reads_responses", self.enabled and (len(responses) > 0 or users))
        needs = users or any(
            one.of_request for rule in on if rule.for_responses for one in rule.conditions
        )
        object.__setattr__(self, "reads_requests_of_responses", self.enabled and needs)
