"""Carries out what decisions wait for, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from mcp_tool_filter.conversation.in_order import Done
from mcp_tool_filter.policy.effects import Deciding, Delay, Effect, Together
from mcp_tool_filter.policy.rule_effects import EffectFailed


class Effects:
    """One for each process."""

    def __init__(self) -> None:
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
                await asyncio.sleep(seconds)
                return None
            case Together(decisions):
                return await asyncio.gather(*map(self.outcome_of, decisions))
            case _:  # what rules ask for
                raise EffectFailed(f"not available here: {type(effect).__name__}")


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
