"""Keep free memory for large bodies, which glibc would return to the system after each.

A body of 5 MB needs a dozen blocks of 5 MB on its way. If a block is returned to the system,
getting it back page by page costs half as much as all other work on it. So we keep up to 64 MB of
free memory, and return once what only the start needed. Without glibc, we do nothing.
"""

from __future__ import annotations

import ctypes
from functools import cache

from mcp_tool_filter.protocol.limits import MEBIBYTE

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
