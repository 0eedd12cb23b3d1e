"""Background work goes on although no code keeps its task."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from mcp_tool_filter.adapters import background
from mcp_tool_filter.adapters.background import Background, in_background, look_at


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


async def test_unfinished_work_is_stopped_at_the_end() -> None:
    background = Background()
    task = background.start(asyncio.sleep(3600))
    await background.close()
    assert task.cancelled()


async def test_the_number_of_unfinished_answers_is_bounded() -> None:
    background = Background()
    given: list[int] = []

    async def answer(number: int) -> None:
        given.append(number)
        await asyncio.sleep(3600)

    for number in range(150):
        background.answer(answer(number))
    await asyncio.sleep(0)
    assert given == list(range(100))
    await background.close()


async def test_a_failed_task_that_is_never_awaited_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ValueError

    background = Background()
    background.start(fail())
    failed = asyncio.get_running_loop().create_future()
    failed.add_done_callback(look_at)
    failed.set_exception(ValueError())
    await asyncio.sleep(0.01)
    del failed
    gc.collect()
    await background.close()
    assert not caplog.records
