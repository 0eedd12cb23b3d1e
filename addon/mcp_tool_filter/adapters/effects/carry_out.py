"""Carries out what decisions wait for, on the event loop."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.conversation.in_order import Done
from mcp_tool_filter.policy.effects import Deciding, Delay, Effect, Together

if TYPE_CHECKING:  # most processes have no rules
    from mcp_tool_filter.adapters.effects.rule_host import RuleHost


class Effects:
    """One for each process."""

    def __init__(self) -> None:
        self.rule_host: RuleHost | None = None
        """Who carries out what rules ask for, if there are rules."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def outcome_of[Outcome](self, decision: Deciding[Outcome]) -> Outcome:
        """Wait for a decision. What an effect raises is raised within the decision."""
        try:
            effect = next(decision)
            while True:
                try:
                    came = await self._perform(effect)
                except BaseException as error:
                    effect = decision.throw(error)
                else:
                    effect = decision.send(came)
        except StopIteration as made:
            outcome: Outcome = made.value
            return outcome
        finally:
            decision.close()

    def carry_out(self, decision: Deciding[Any], done: Done[Any]) -> Callable[[], None]:
        """Make a decision in the background, then call ``done``; return what cancels that."""
        task = asyncio.get_running_loop().create_task(self._carry_out(decision, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return partial(_cancel, task)

    @property
    def under_way(self) -> int:
        """How many decisions are made in the background."""
        return len(self._tasks)

    def close(self) -> None:
        """Cancel what has not been decided: the process ends."""
        for task in list(self._tasks):
            task.cancel()

    async def _carry_out(self, decision: Deciding[Any], done: Done[Any]) -> None:
        try:
            outcome = await self.outcome_of(decision)
        except Exception as error:
            outcome = error
        done(outcome)

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case Delay(seconds):
                await sleep(seconds)
                return None
            case Together(decisions):
                return await asyncio.gather(*map(self.outcome_of, decisions))
            case _:
                assert self.rule_host, "only rules ask for this"
                return await self.rule_host.carry_out(effect)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
