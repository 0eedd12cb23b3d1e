"""Start, count and end the commands behind the bridge, one for each session."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.child_session import ChildSession
from mcp_tool_filter.adapters.stdio.shared_session import SharedSession
from mcp_tool_filter.protocol.limits import Limits

_IDLE: Final = 30 * 60.0  # seconds until an unused session is ended
_SWEEP: Final = 30.0
_LAST_EOF: Final = 1.0  # seconds from closed stdin to SIGTERM when we exit

type Start = Callable[[], Child]


class TooMany(Exception):
    """No command can be started now."""


class BridgeSessions:
    """The sessions of a bridge. Create it in a running event loop."""

    def __init__(
        self,
        start: Start,
        limits: Limits,
        *,
        say: Callable[[str], None],
        most: int = 32,
        idle: float = _IDLE,
    ) -> None:
        self._start = start
        self._limits = limits
        self._say = say
        self._most = most
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._by_name: dict[str, ChildSession] = {}
        self._alive: set[ChildSession] = set()  # including those that are ending
        self._shared: SharedSession | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._sweeper = asyncio.create_task(self._sweep())
        self._is_closing = False

    async def begin(self) -> tuple[str, ChildSession]:
        """Start a command for a new session, and name it. Raises StartError, TooMany."""
        async with self._starting:
            session = await self._spawn()
        name = secrets.token_urlsafe(24)
        self._by_name[name] = session
        return name, session

    def open_session(self, name: str) -> ChildSession | None:
        """Return the session with this name, if it has not ended."""
        session = self._by_name.get(name)
        return None if session is None or session.is_closing else session

    async def shared(self) -> SharedSession:
        """Return the shared session for requests without a session. Raises StartError, TooMany."""
        async with self._starting:
            if self._shared is None or self._shared.session.is_closing:
                self._shared = SharedSession(await self._spawn())
            return self._shared

    def end_shared(self, shared: SharedSession) -> None:
        """End the shared session."""
        self._shared = None
        self.end_later(shared.session.close())

    async def end(self, session: ChildSession) -> None:
        """End a session; return when its command is gone."""
        self._forget(session)
        await session.close()

    def end_soon(self, session: ChildSession) -> None:
        """End a session in the background."""
        self._forget(session)
        self._end_later(session)

    def end_later(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an ending in the background; ``close`` waits for it."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._note_ended)
        return task

    async def close(self) -> None:
        """End all commands; return when all are gone."""
        self._is_closing = True
        self._sweeper.cancel()
        closing = [one.close(eof=_LAST_EOF) for one in self._alive]
        await asyncio.gather(*closing, *self._ending, return_exceptions=True)

    async def _spawn(self) -> ChildSession:
        if self._is_closing:
            raise TooMany("Shutting down")
        while len(self._alive) >= self._most:
            await self._make_room()
        session = ChildSession(self._start(), self._limits, say=self._say, on_end=self._note_end)
        self._alive.add(session)
        return session

    async def _make_room(self) -> None:
        """End the least recently used idle session, if there is one."""
        ending = [one for one in self._alive if one.is_closing]
        idle = [one for one in self._alive if not one.is_closing and not one.is_in_use]
        if not ending and not idle:
            raise TooMany(f"Too many sessions: --max-children {self._most}")
        chosen = ending[0] if ending else min(idle, key=lambda one: one.last_used)
        await self.end(chosen)
        self._alive.discard(chosen)

    def _note_end(self, session: ChildSession, code: int) -> None:
        is_shared = self._shared is not None and self._shared.session is session
        was_open = self._forget(session) or is_shared
        if is_shared:
            self._shared = None
        if was_open and not self._is_closing:
            self._say(f"Warning: The command of one session has ended with exit code {code}")
        self._end_later(session)

    def _forget(self, session: ChildSession) -> bool:
        names = [name for name, one in self._by_name.items() if one is session]
        for name in names:
            del self._by_name[name]
        return bool(names)

    def _end_later(self, session: ChildSession) -> None:
        task = self.end_later(session.close())
        task.add_done_callback(lambda _: self._alive.discard(session))

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._say(f"Warning: A command could not be ended: {error!r}")

    async def _sweep(self) -> None:
        """End sessions that have been idle for long."""
        while True:
            await asyncio.sleep(min(_SWEEP, self._idle))
            latest = self._loop.time() - self._idle
            for session in list(self._by_name.values()):
                if not session.is_in_use and session.last_used < latest:
                    self.end_soon(session)
