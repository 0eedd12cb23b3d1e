"""Memory that large bodies need, and that glibc would give back after each and ask for again.

A body of 5 MB is a dozen pieces of 5 MB on its way. Each that is returned to the system comes back
page by page, and that costs half as much as all that is done with it. So up to 64 MB that are free
are kept; what was only needed at the start is given back, once. Where there is another C library
than glibc, nothing is done.
"""

from __future__ import annotations

import ctypes
from functools import cache

from mcp_tool_filter.protocol.limits import MEBIBYTE

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 64 * MEBIBYTE
_LARGEST = 32 * MEBIBYTE  # of one piece, and the most that glibc allows


def keep_room() -> None:
    """Keep what is free for the next large body."""
    if malloc := _glibc():
        malloc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        malloc.mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Return to the system what is free now."""
    if malloc := _glibc():
        malloc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(None)
        return found if found.mallopt and found.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None
