"""Background work goes on although no code keeps its task."""

from __future__ import annotations

import asyncio
import gc
import weakref

from mcp_tool_filter.adapters.serving import background
from mcp_tool_filter.adapters.serving.background import in_background


async def test_background_work_survives_the_garbage_collector() -> None:
    done = list[str]()

    def finish(kept: weakref.ref[asyncio.Future[None]]) -> None:
        gc.collect()
        waiting = kept()
        done.append("still there" if waiting else "forgotten")
        if waiting:
            waiting.set_result(None)

    async def work() -> None:
        waiting: asyncio.Future[None] = asyncio.Future()  # only the task itself has this
        asyncio.get_running_loop().call_later(0.01, finish, weakref.ref(waiting))
        await waiting
        done.append("done")

    in_background(work())
    assert len(background._tasks) == 1
    async with asyncio.timeout(20):
        while not done or background._tasks:
            await asyncio.sleep(0.001)
    assert done == ["still there", "done"]
