"""What a signal does to a program that runs in an event loop."""

from __future__ import annotations

import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable


def on_signals(loop: AbstractEventLoop, leave: Callable[[], object]) -> None:
    """Call this on Ctrl+C and SIGTERM, instead of what was called before."""
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, leave)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave))
