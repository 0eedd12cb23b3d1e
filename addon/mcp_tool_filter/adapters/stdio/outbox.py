"""Queue messages for one HTTP answer or stream; the writer waits for a slow reader."""

from __future__ import annotations

import asyncio
from collections import deque

_ROOM = 1024 * 1024  # bytes


class Outbox:
    """A queue that a session fills and one response empties."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended

    async def put(self, message: bytes) -> bool:
        """Add a message when there is room; return False if the reader is gone."""
        while self._size > _ROOM and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            return False
        self._messages.append(message)
        self._size += len(message)
        self._changed.set()
        return True

    def put_last(self, message: bytes) -> None:
        """Add a last message, even if there is no room."""
        if not self._ended:
            self._messages.append(message)
            self._size += len(message)
            self._changed.set()

    async def get(self) -> bytes | None:
        """Return the next message; None after the last one."""
        while not self._messages:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._size -= len(message)
        self._changed.set()
        return message

    def end(self) -> None:
        """Accept no more messages; those in the queue can still be read."""
        self._ended = True
        self._changed.set()

    def drain(self) -> list[bytes]:
        """Take all messages."""
        taken = list(self._messages)
        self._messages.clear()
        self._size = 0
        return taken
