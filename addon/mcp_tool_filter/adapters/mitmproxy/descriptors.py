"""Divide the file descriptors: how many clients may connect, and a reserve for the probe.

Each client needs a descriptor, and another for its connection to the upstream. A process without
free descriptors cannot answer any client, nor find out whether the upstream is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RESERVED = 8
_OUR_OWN = 40  # files, listeners, the event loop, mitmweb's page
_BURST = 100  # clients that asyncio accepts before we can refuse them
_MOST = 4096
_FEWEST = 8
_STANDING = 16
"""Clients above the limit that may be connected at a time to get an error."""


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


class Seats:
    """The served clients, up to a limit; further ones get an error that we are full.

    >>> seats = Seats(1, standing=1)
    >>> seats.enter("a"), seats.enter("b"), "b" in seats.standing
    (None, None, True)
    >>> seats.enter("c")  # b has to go
    'b'
    >>> seats.leave("a"); "c" in seats.standing
    False
    """

    def __init__(self, most: int, standing: int = _STANDING) -> None:
        self.most = most
        self._most_standing = standing
        self._seated: set[str] = set()
        self.standing: dict[str, None] = {}
        """The clients without a seat, the oldest first."""

    def enter(self, client: str) -> str | None:
        """Admit a client; return the client that must be closed for it, if any."""
        if len(self._seated) < self.most:
            self._seated.add(client)
            return None
        self.standing[client] = None
        if len(self.standing) <= self._most_standing:
            return None
        oldest = next(iter(self.standing))
        del self.standing[oldest]
        return oldest

    def leave(self, client: str) -> None:
        self.standing.pop(client, None)
        self._seated.discard(client)
        while self.standing and len(self._seated) < self.most:
            self._seated.add(next(iter(self.standing)))
            del self.standing[next(iter(self.standing))]
