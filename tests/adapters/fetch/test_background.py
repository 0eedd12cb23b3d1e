"""Tasks that go on beside ours."""

from __future__ import annotations

import asyncio
import gc

import pytest

from mcp_tool_filter.adapters.fetch.background import Background, look_at


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
