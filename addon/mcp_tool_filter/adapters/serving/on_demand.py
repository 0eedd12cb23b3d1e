"""Take new snapshots on SIGHUP, because the user has changed the upstream's tools."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable


class OnHangup:
    """Calls ``refresh`` on SIGHUP. A terminal that closes, which says the same, ends us."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh
        self._terminals: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> None:
        """Listen for SIGHUP, unless it is ignored in this process."""
        if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            return
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGHUP, self._come)
        except (NotImplementedError, RuntimeError, ValueError):  # not the main thread
            return
        self._loop = loop

    def done(self) -> None:
        if self._loop is not None and sys.platform != "win32":
            self._loop.remove_signal_handler(signal.SIGHUP)
            self._loop = None

    def _come(self) -> None:
        if all(os.isatty(number) for number in self._terminals):
            self._refresh()
        elif sys.platform != "win32":
            self.done()
            os.kill(os.getpid(), signal.SIGTERM)  # so that commands and files are closed, too
