"""The upstream is killed while all wait: each must be told, and the proxy must end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from tests.bench.soak.clients import Broken, calling, legacy, streamable
from tests.bench.soak.ledger import Ledger

_NEVER = 120.0  # seconds that the calls would have taken


async def lose(port: int, ledger: Ledger, number: int, kill: Callable[[], None]) -> None:
    """Let sessions of both transports wait, kill the upstream, and enter what each of them hears.

    What is to be seen in the ledger: that all calls were told, but those that were not yet asked.
    """
    async with AsyncExitStack() as stack:
        waiting = [asyncio.create_task(_wait_on_stream(port, ledger, stack)) for _ in range(number)]
        waiting += [asyncio.create_task(_wait(port, ledger, stack, n)) for n in range(number)]
        while ledger.made["call"] < len(waiting):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # until the upstream has them all
        kill()
        await asyncio.gather(*waiting)


async def _wait(port: int, ledger: Ledger, stack: AsyncExitStack, number: int) -> None:
    session = await stack.enter_async_context(streamable(port, ledger))
    listening = asyncio.create_task(session.listen())
    stack.callback(listening.cancel)
    try:
        await session.ask(calling(how="sse" if number % 2 else "json", delay=_NEVER))
    except Broken:
        return


async def _wait_on_stream(port: int, ledger: Ledger, stack: AsyncExitStack) -> None:
    session = await stack.enter_async_context(legacy(port, ledger))
    try:
        await session.ask(calling(delay=_NEVER))
    except Broken:
        return
