"""Handle signals in a program with an event loop."""

from __future__ import annotations

import signal
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable


def on_signals(
    loop: AbstractEventLoop, leave: Callable[[], object], *, hangup: bool = False
) -> None:
    """Call ``leave`` on Ctrl+C and SIGTERM, instead of the previous handler.

    ``hangup``: on SIGHUP too, unless it is ignored in this process.
    """
    numbers: list[signal.Signals] = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and hangup and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        try:
            loop.add_signal_handler(number, leave)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(leave))
