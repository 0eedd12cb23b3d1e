"""Files that only their user can read, replaced atomically, with locks between processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp_tool_filter.adapters.whole_file import whole_file

_POLL = 0.05  # seconds between attempts to get a lock
_PATIENCE = 60.0  # seconds to wait for a lock; a renewal takes far less

type Stamp = tuple[int, int, int]
"""Values that change when a file is replaced."""


def stamp_of(path: Path) -> Stamp | None:
    """Return a stamp that differs between versions of a file; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock against all tasks and processes.

    Raises OSError, also after a minute of waiting.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + _PATIENCE
        while not _try_lock(handle):
            if time.monotonic() > end:
                raise TimeoutError("Another process keeps it locked")
            await asyncio.sleep(_POLL)
        yield
    finally:
        os.close(handle)  # this also releases the lock


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
