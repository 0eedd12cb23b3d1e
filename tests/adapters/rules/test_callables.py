"""Functions of users, which may hang for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from threading import Event

import pytest

from mcp_tool_filter.adapters.rules.host import Callables
from mcp_tool_filter.policy.rule_effects import CallPython, EffectFailed


async def test_functions_that_hang_do_not_keep_others_waiting() -> None:
    """Not even more of them than a pool of threads has."""
    ours, goes_on = Callables(), Event()
    hang = CallPython(lambda _: goes_on.wait(60), None, 0.01)
    came = await asyncio.gather(*(ours.call(hang) for _ in range(50)), return_exceptions=True)
    assert {str(one) for one in came} == {"it took too long"}
    assert await ours.call(CallPython(lambda argument: argument, "given", 20.0)) == "given"
    assert await asyncio.to_thread(str, 1) == "1"
    goes_on.set()


async def test_so_many_may_hang_and_no_more() -> None:
    ours, goes_on = Callables(most=1), Event()
    with pytest.raises(EffectFailed, match="it took too long"):
        await ours.call(CallPython(lambda _: goes_on.wait(60), None, 0.01))
    quick = CallPython(lambda _: "made", None, 20.0)
    with pytest.raises(EffectFailed, match="1 calls of users' functions have not returned"):
        await ours.call(quick)
    goes_on.set()
    async with asyncio.timeout(20):
        while ours._running:
            await asyncio.sleep(0.01)
    assert await ours.call(quick) == "made"


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_whatever_a_function_raises_is_a_failure(error: type[BaseException]) -> None:
    def raises(_: object) -> object:
        raise error

    with pytest.raises(EffectFailed, match="it raised"):
        await Callables().call(CallPython(raises, None, 20.0))


HANG = """
import asyncio, time
from mcp_tool_filter.adapters.rules.host import Callables
from mcp_tool_filter.policy.rule_effects import CallPython, EffectFailed
async def main():
    try:
        await Callables().call(CallPython(lambda _: time.sleep(3600), None, 0.01))
    except EffectFailed as error:
        print(error)
asyncio.run(main())
"""


def test_the_end_of_the_process_does_not_wait_for_a_function_that_hangs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "it took too long\n"
