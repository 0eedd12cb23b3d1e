"""Waiting in a test that is no coroutine; ``raw_upstream.until`` is for the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.raw_upstream import TIMEOUT


def wait_until[T](ready: Callable[[], T], what: Callable[[], str] = str) -> T:
    """Wait until something is true, and return it; ``what`` says what is missing."""
    end = time.monotonic() + TIMEOUT
    while not (found := ready()):
        assert time.monotonic() < end, what()
        time.sleep(0.02)
    return found
