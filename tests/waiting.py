"""Waiting in tests, however slow the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.raw_upstream import TIMEOUT


def eventually[T](ready: Callable[[], T], what: Callable[[], str] = str) -> T:
    """Look until something is found, and return it, where nothing else has to go on meanwhile;
    ``what`` says what is missing."""
    end = time.monotonic() + TIMEOUT
    while not (found := ready()):
        assert time.monotonic() < end, what()
        time.sleep(0.01)
    return found


PATIENT = {"connection_timeout": ["100000"], "tool_list_timeout": ["100000"]}
"""Options of a filter that waits for its upstream longer than a test waits for the filter."""


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    """Wait no longer than what hangs would; then show where each task waits."""
    try:
        async with asyncio.timeout(TIMEOUT):
            yield
    except TimeoutError:
        for task in asyncio.all_tasks():
            task.print_stack()
        raise
