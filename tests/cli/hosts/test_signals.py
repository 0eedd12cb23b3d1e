"""Ctrl+C and SIGTERM in an event loop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from mcp_tool_filter.cli.hosts.signals import on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_calls_the_newest_handler(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    before = signal.getsignal(number)
    left = asyncio.Event()
    try:
        on_signals(loop, lambda: pytest.fail("another was named since"))
        on_signals(loop, left.set)
        os.kill(os.getpid(), number)
        await left.wait()
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
        signal.signal(number, before)
