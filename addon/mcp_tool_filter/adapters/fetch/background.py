"""Tasks that go on beside ours, such as the answers to what an upstream asks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_MAX_ANSWERS = 100  # of ours under way at once


class Background:
    """Tasks that go on beside ours until all are stopped; how they end is not asked."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def answer(self, work: Coroutine[None, None, None]) -> None:
        """Start it, unless the upstream asks more than it hears."""
        if len(self._tasks) < _MAX_ANSWERS:
            self.start(work)
        else:
            work.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        look_at(task)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def look_at(done: asyncio.Future[Any]) -> None:
    """Take note of an exception, which asyncio would otherwise log as never retrieved."""
    if not done.cancelled():
        done.exception()
