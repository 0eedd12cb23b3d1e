"""What a policy would do to a message, with nobody to send anything to.

Scripts and Python callables that decide run; nothing else leaves this process, and nobody waits.
"""

from __future__ import annotations

import asyncio
import time

from mcp_tool_filter.adapters.effects.rule_host import RuleHost
from mcp_tool_filter.adapters.effects.rule_state import StateInMemory
from mcp_tool_filter.policy.effects import Deciding, Delay, Effect, Together
from mcp_tool_filter.policy.rule_effects import EffectFailed, RunScript, SendCopy, SendWebhook
from mcp_tool_filter.policy.rules.chain import judge
from mcp_tool_filter.policy.rules.driving import Later
from mcp_tool_filter.policy.rules.judgement import Evaluated, Judgement
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.subject import Subject


class Rehearsal:
    """One for each case: limits and caches begin empty."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._skipped = 0.0  # seconds of delays
        self._host = RuleHost(StateInMemory(self._clock))

    def judge(self, subject: Subject, trace: list[Evaluated] | None = None) -> Judgement:
        """Judge a message; ``trace`` learns which rules were evaluated."""
        return asyncio.run(self._outcome_of(judge(self._policy, subject, self._clock, trace)))

    def _clock(self) -> float:
        return time.monotonic() + self._skipped

    async def _outcome_of[Outcome](self, deciding: Deciding[Outcome]) -> Outcome:
        try:
            effect = next(deciding)
            while True:
                try:
                    came = await self._perform(effect)
                except EffectFailed as error:
                    effect = deciding.throw(error)
                else:
                    effect = deciding.send(came)
        except StopIteration as made:
            outcome: Outcome = made.value
            return outcome

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case Delay(seconds):
                self._skipped += seconds
                return None
            case Together(decisions):
                return [await self._outcome_of(one) for one in decisions]
            case SendWebhook() | SendCopy() | RunScript(decides=False):
                return None
            case _:
                came = self._host.at_once(effect)
                return await self._host.carry_out(effect) if came is Later.LATER else came
