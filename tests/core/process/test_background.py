"""Background work goes on although no code keeps its task; the effects of decisions come back."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from mcp_tool_filter.core.policy.effects import CannotList, Deciding, Delay, FetchTools, Together
from mcp_tool_filter.core.process import background
from mcp_tool_filter.core.process.background import Background, Effects, in_background, look_at
from tests.raw_upstream import until


async def test_background_work_survives_the_garbage_collector() -> None:
    kept = list[weakref.ref[asyncio.Future[None]]]()

    async def work() -> None:
        waiting: asyncio.Future[None] = asyncio.Future()  # only the task itself has this
        kept.append(weakref.ref(waiting))
        await waiting

    in_background(work())
    assert len(background._tasks) == 1
    await asyncio.sleep(0)
    gc.collect()
    waiting = kept[0]()
    assert waiting
    waiting.set_result(None)
    del waiting
    await until(lambda: not background._tasks)


async def test_unfinished_answers_are_bounded_and_work_is_stopped_at_the_end() -> None:
    background = Background()
    task = background.start(asyncio.sleep(3600))
    given: list[int] = []

    async def answer(number: int) -> None:
        given.append(number)
        await asyncio.sleep(3600)

    for number in range(150):
        background.answer(answer(number))
    await asyncio.sleep(0)
    assert given == list(range(99))
    await background.close()
    assert task.cancelled()


async def test_a_failed_task_never_awaited_is_not_logged(
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


def waiting(seconds: float, made: str) -> Deciding[str]:
    yield Delay(seconds)
    return made


def fetching(kind: object) -> Deciding[object]:
    return (yield FetchTools(kind, None, None))


async def test_a_decision_is_made_once_its_effects_are_carried_out() -> None:
    assert await Effects().outcome_of(waiting(0.0, "made")) == "made"


async def test_decisions_made_together_keep_their_order() -> None:
    def both() -> Deciding[object]:
        return (yield Together((waiting(0.02, "slow"), waiting(0.0, "quick"))))

    assert await Effects().outcome_of(both()) == ["slow", "quick"]


async def test_an_effects_error_is_raised_within_the_decision() -> None:
    def careful() -> Deciding[str]:
        try:
            yield FetchTools("k", None, None)
        except CannotList as error:
            return str(error)
        return "listed"

    assert await Effects().outcome_of(careful()) == "nobody here asks upstreams"


async def test_requests_that_wait_for_the_same_list_share_one_fetch() -> None:
    fetched: list[object] = []
    may_end = asyncio.Event()

    async def fetch(effect: FetchTools) -> tuple[bytes, ...]:
        fetched.append(effect.kind)
        await may_end.wait()
        return (b"page",)

    effects = Effects()
    effects.fetch_tools = fetch
    leaves = asyncio.create_task(effects.outcome_of(fetching("a")))
    others = [asyncio.create_task(effects.outcome_of(fetching(kind))) for kind in ("a", "b")]
    await asyncio.sleep(0)
    leaves.cancel()  # who leaves does not end it for others
    may_end.set()
    assert await asyncio.gather(*others) == [(b"page",), (b"page",)]
    assert fetched == ["a", "b"]
    await effects.outcome_of(fetching("a"))
    assert fetched == ["a", "b", "a"]


async def test_a_background_decision_reports_its_outcome() -> None:
    effects = Effects()
    made: asyncio.Queue[object] = asyncio.Queue()
    effects.carry_out(waiting(0.0, "made"), made.put_nowait)
    assert len(effects.background) == 1
    assert await made.get() == "made"
    effects.carry_out(fetching("a"), made.put_nowait)
    assert isinstance(await made.get(), CannotList)
    await asyncio.sleep(0)
    assert len(effects.background) == 0


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_a_cancelled_decision_reports_nothing(all_of_them: bool) -> None:
    effects = Effects()
    made: list[object] = []
    cancel = effects.carry_out(waiting(3600, "made"), made.append)
    await asyncio.sleep(0)
    if all_of_them:
        effects.close()
    else:
        cancel()
    await asyncio.sleep(0.01)
    assert (made, len(effects.background)) == ([], 0)
