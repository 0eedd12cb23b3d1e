"""What a process can hold: how many clients, how many connections, how much unfinished.

Each client needs a descriptor, and another for its connection to the upstream. A process without
free descriptors cannot answer any client, nor find out whether the upstream is lost.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol

from mcp_tool_filter.core.engine.service import Seats
from mcp_tool_filter.core.messages.limits import MEBIBYTE
from mcp_tool_filter.core.process.sentences import Once

log = logging.getLogger(__name__)

_RESERVED = 8
_OUR_OWN = 40  # files, listeners, the event loop, mitmweb's page
_BURST = 100  # clients that asyncio accepts before we can refuse them
_MOST = 4096
_FEWEST = 8
_STANDING = 16
"""Clients above the limit that may be connected at a time to get an error."""
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PATIENCE = 5.0
"""Seconds for which a silent client keeps its seat although others wait for one."""
_STEPS = 8
"""We check whenever another eighth of the memory budget has come in."""
_SMALL = 16 * 1024
"""Bytes; we never drop anything smaller, such as ordinary requests."""


def soft_limit() -> int:
    """Return how many descriptors this process may open."""
    try:
        import resource
    except ImportError:  # Windows: only memory limits the sockets
        return 2 * _MOST
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 2 * _MOST + _OUR_OWN + _BURST


def most_clients(limit: int) -> int:
    """Return how many clients a process with so many descriptors can serve.

    >>> most_clients(256), most_clients(1024), most_clients(1_000_000)
    (54, 438, 4096)
    """
    return max(_FEWEST, min(_MOST, (limit - _RESERVED - _OUR_OWN - _BURST) // 2))


def most_upstream_connections(limit: int, clients: int) -> int:
    """Return how many connections to the upstream are left for so many clients."""
    return max(_FEWEST, limit - _RESERVED - _OUR_OWN - clients - _STANDING)


class Reserve:
    """Descriptors that we keep free for a probe."""

    def __init__(self, size: int = _RESERVED) -> None:
        self._size = size
        self._kept: list[int] = []

    def fill(self) -> None:
        with suppress(OSError):
            while len(self._kept) < self._size:
                self._kept.append(os.open(os.devnull, os.O_RDONLY))

    def release(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    @contextmanager
    def lent(self) -> Iterator[None]:
        self.release()
        try:
            yield
        finally:
            self.fill()


# Accepting


class Crowd:
    """The clients of the process, and the descriptors that they may use."""

    def __init__(self) -> None:
        self.descriptors = soft_limit()
        self.reserve = Reserve()
        self.seats = Seats(
            most_clients(self.descriptors),
            clock=time.monotonic,
            patience=_PATIENCE,
            on_full=self._warn,
        )
        self._once = Once()

    def begin(self) -> None:
        self.reserve.fill()
        _log_once_when_full(self._once)

    def adopt(self, most: int | None) -> None:
        """Allow ``most`` clients to connect; None means as many as the descriptors allow."""
        self.seats.most = most or most_clients(self.descriptors)

    def _warn(self) -> None:
        text = "%d clients are connected: more clients are refused (see max_clients)"
        self._once.log(log, logging.WARNING, text, self.seats.most)

    def close(self) -> None:
        self.reserve.release()


def _log_once_when_full(once: Once) -> None:
    """Log once that a burst of clients has used up the descriptors; asyncio tries again later."""
    before = asyncio.get_running_loop().get_exception_handler()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        is_full = isinstance(error, OSError) and error.errno in _NONE_LEFT
        if is_full and "accept" in context.get("message", ""):
            text = (
                "New clients have to wait: no file descriptor is left (see ulimit -n, max_clients)"
            )
            once.log(log, logging.WARNING, text)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(failed)


# Memory


class Holder(Protocol):
    """What may hold much memory: an exchange, or a connection whose peer does not read."""

    @property
    def held_bytes(self) -> int: ...

    def give_up(self) -> object:
        """Fail, because it holds too much."""


class MemoryBudget:
    """A budget for all unfinished messages of all clients together.

    Each message has its own limit, but many clients could each hold one that never ends: bodies
    sent slowly, answers read slowly, requests sent ahead. So we count incoming
    bytes, and regularly check how much is held. If it is too much, the largest holders lose it: a
    request or an answer fails with an error, and a client that does not read is disconnected.
    """

    def __init__(self, holders: Callable[[], Iterable[Holder]]) -> None:
        self._holders = holders
        self.limit = 0
        """Bytes; 0 means no budget yet."""
        self.left = 0
        """Bytes that may still come in before we check."""
        self._once = Once()

    def received(self, count: int) -> None:
        """Count incoming bytes."""
        self.left -= count
        if self.left < 0:
            self.look_soon()

    def look_soon(self) -> None:
        """Check what is held, but not now: the connection is busy with this event."""
        self.left = self.limit // _STEPS
        if self.limit:
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Drop the largest until the rest is within three quarters of the budget."""
        held = sorted(self._holders(), key=lambda one: one.held_bytes, reverse=True)
        total = sum(one.held_bytes for one in held)
        if total <= self.limit:
            return
        text = "Unfinished messages hold more than %d MB: the largest ones fail with an error"
        self._once.log(log, logging.WARNING, text, self.limit // MEBIBYTE)
        for one in held:
            size = one.held_bytes
            if total <= self.limit * 3 // 4 or size < _SMALL:
                return
            total -= size
            one.give_up()


# What glibc's allocator keeps. A body of 5 MB needs a dozen blocks of 5 MB on its way; if each is
# returned to the system, getting it back page by page costs half as much as all other work on it.
# So we keep some free memory, and return once what only the start needed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 64 * MEBIBYTE
_LARGEST = 32 * MEBIBYTE  # of one block, and the most that glibc allows


def keep_free_memory() -> None:
    """Keep free memory for the next large body."""
    if malloc := _glibc():
        malloc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        malloc.mallopt(_TRIM_THRESHOLD, _KEPT)


def return_free_memory() -> None:
    """Return all free memory to the system."""
    if malloc := _glibc():
        malloc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(None)
        return found if found.mallopt and found.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None
