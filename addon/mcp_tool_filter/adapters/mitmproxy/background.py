"""Work that goes on beside the hooks. asyncio itself forgets a task that nobody keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

_tasks: set[asyncio.Task[None]] = set()


def in_background(work: Coroutine[object, None, None]) -> None:
    """Do something later, or for long; call this in the event loop."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
