"""Run work in the background. (asyncio drops a task that nothing references.)"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_tasks: set[asyncio.Task[None]] = set()


def in_background(work: Coroutine[object, None, None]) -> None:
    """Run a coroutine in the background; call this in the event loop."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_MAX_ANSWERS = 100  # at the same time


class Background:
    """Background tasks, cancelled together; their results are ignored."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
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
