"""Try out what a policy would do to a message, without sending anything."""

from __future__ import annotations

import time
from typing import cast

from mcp_tool_filter.adapters.effects.offline import OfflineHost
from mcp_tool_filter.adapters.effects.rule_state import StateInMemory
from mcp_tool_filter.policy.effects import Deciding, Effect, Together
from mcp_tool_filter.policy.rules.chain import judge
from mcp_tool_filter.policy.rules.link import answered
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.subject import Evaluated, RulesOutcome, Subject


class Rehearsal:
    """Use one per test case: limits and caches start empty."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._host = OfflineHost(StateInMemory())
        self.session: dict[str, object] = {}
        """The session dict of users' own classes, kept between the messages of a case."""

    def judge(self, subject: Subject, trace: list[Evaluated] | None = None) -> RulesOutcome:
        """Judge a message; the evaluated rules are added to ``trace``."""
        return self._outcome_of(judge(self._policy, subject, time.monotonic, trace))

    def _outcome_of[Outcome](self, deciding: Deciding[Outcome]) -> Outcome:
        try:
            next(answered(deciding, self._at_once))
        except StopIteration as made:
            return cast("Outcome", made.value)
        raise AssertionError("nothing waits here")

    def _at_once(self, effect: Effect) -> object:
        if isinstance(effect, Together):
            return [self._outcome_of(one) for one in effect.decisions]
        return self._host.at_once(effect)
