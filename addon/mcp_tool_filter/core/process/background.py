"""Run work on the event loop: tasks in the background, and the effects of decisions.

(asyncio drops a task that nothing references.)

No work starts within the call that asks for it: mitmproxy starts tasks eagerly, and one that need
not wait would go on with an exchange while the engine is still in the middle of its last step.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from mcp_tool_filter.core.policy.effects import (
    CannotList,
    Deciding,
    Delay,
    Effect,
    FetchTools,
    OnDone,
    Together,
)

_tasks: set[asyncio.Task[None]] = set()


def start_later[Result](work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Make a task that starts in the next turn of the event loop, also inside mitmproxy."""
    return asyncio.Task(work, loop=asyncio.get_running_loop())


def keep[Kept: asyncio.Future[Any]](tasks: set[Kept], task: Kept) -> Kept:
    """Keep a task in a set until it is done, and return it."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def in_background(work: Coroutine[object, None, None]) -> None:
    """Run a coroutine in the background; call this in the event loop."""
    keep(_tasks, start_later(work))


_MAX_ANSWERS = 100  # at the same time


class Background:
    """Background tasks, cancelled together; their results are ignored."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = start_later(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def answer(self, work: Coroutine[None, None, None]) -> None:
        """Start an answer, unless the upstream sends requests faster than it reads answers."""
        if len(self._tasks) < _MAX_ANSWERS:
            self.start(work)
        else:
            work.close()

    def __len__(self) -> int:
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        look_at(task)

    def cancel(self) -> list[asyncio.Task[None]]:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        await asyncio.gather(*self.cancel(), return_exceptions=True)


def look_at(done: asyncio.Future[Any]) -> None:
    """Retrieve an exception, which asyncio would otherwise log as never retrieved."""
    if not done.cancelled():
        done.exception()


class EffectHost(Protocol):
    """Carries out the effects of a room."""

    async def carry_out(self, effect: Effect) -> object: ...

    async def close(self) -> None: ...


type ToolsFetcher = Callable[[FetchTools], Coroutine[Any, Any, tuple[bytes, ...]]]


class Effects:
    """Carries out all effects of the process."""

    def __init__(self) -> None:
        self.room_host: EffectHost | None = None
        """Carries out the effects of a room, such as those of rules."""
        self.fetch_tools: ToolsFetcher = _cannot_fetch
        """Fetches the tool list for an effect FetchTools."""
        self._fetches: dict[object, asyncio.Task[tuple[bytes, ...]]] = {}
        self.background = Background()

    async def outcome_of[Outcome](self, decision: Deciding[Outcome]) -> Outcome:
        """Wait for a decision. Errors of an effect are raised within the decision."""
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
        """Make a decision in the background, then call ``done``; return a function that cancels
        it."""
        return partial(_cancel, self.background.start(self._carry_out(decision, done)))

    def close(self) -> None:
        """Cancel all decisions, because the process ends."""
        self.background.cancel()
        for fetch in self._fetches.values():
            fetch.cancel()

    async def _carry_out(self, decision: Deciding[Any], done: OnDone[Any]) -> None:
        try:
            outcome = await self.outcome_of(decision)
        except Exception as error:
            outcome = error
        try:
            done(outcome)
        except Exception as error:  # who waits must hear something
            done(error)

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
                assert self.room_host, "the room that asks for this carries it out"
                return await self.room_host.carry_out(effect)

    async def _fetch_once(self, effect: FetchTools) -> tuple[bytes, ...]:
        """Share one fetch between all waiting decisions; one that leaves does not cancel it for the
        others."""
        fetch = self._fetches.get(effect.kind)
        if fetch is None:
            fetch = start_later(self.fetch_tools(effect))
            self._fetches[effect.kind] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(effect.kind, None))
        return await asyncio.shield(fetch)


async def _cannot_fetch(_effect: FetchTools) -> tuple[bytes, ...]:
    raise CannotList("nobody here asks upstreams")


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
