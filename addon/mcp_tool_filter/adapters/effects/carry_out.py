"""Carries out what decisions wait for, on the event loop."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.conversation.in_order import OnDone
from mcp_tool_filter.policy.effects import (
    CannotList,
    Deciding,
    Delay,
    Effect,
    FetchTools,
    Together,
)

if TYPE_CHECKING:  # most processes have no rules
    from mcp_tool_filter.adapters.effects.rule_host import RuleHost


type ToolsFetcher = Callable[[FetchTools], Coroutine[Any, Any, tuple[bytes, ...]]]


class Effects:
    """One for each process."""

    def __init__(self) -> None:
        self.rule_host: RuleHost | None = None
        """Who carries out what rules ask for, if there are rules."""
        self.fetch_tools: ToolsFetcher = _cannot_fetch
        """Asks the upstream for the tools of a certain asker."""
        self._fetches: dict[object, asyncio.Task[tuple[bytes, ...]]] = {}
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

    def carry_out(self, decision: Deciding[Any], done: OnDone[Any]) -> Callable[[], None]:
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
        for task in [*self._tasks, *self._fetches.values()]:
            task.cancel()

    async def _carry_out(self, decision: Deciding[Any], done: OnDone[Any]) -> None:
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
            case FetchTools():
                return await self._fetch_once(effect)
            case _:
                assert self.rule_host, "only rules ask for this"
                return await self.rule_host.carry_out(effect)

    async def _fetch_once(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Share one fetch between all who wait for it; who leaves does not end it for others."""
        fetch = self._fetches.get(effect.kind)
        if fetch is None:
            fetch = asyncio.ensure_future(self.fetch_tools(effect))
            self._fetches[effect.kind] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(effect.kind, None))
        return await asyncio.shield(fetch)


async def _cannot_fetch(_effect: FetchTools) -> tuple[bytes, ...]:
    raise CannotList("nobody here asks upstreams")


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
