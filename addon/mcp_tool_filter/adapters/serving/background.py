"""Run work in the background. (asyncio drops a task that nothing references.)"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

_tasks: set[asyncio.Task[None]] = set()


def in_background(work: Coroutine[object, None, None]) -> None:
    """Run a coroutine in the background; call this in the event loop."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
