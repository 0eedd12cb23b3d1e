"""One command for many clients: nobody waits for another, or holds memory after leaving."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from queue import SimpleQueue
from threading import Event
from typing import Any, cast

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.rooms.stdio import sessions
from mcp_tool_filter.rooms.stdio.child import Child
from mcp_tool_filter.rooms.stdio.sessions import SharedSession
from tests.raw_upstream import TIMEOUT, until

CALL = b'{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"a","x":"%s"}}'
RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{"x":"%s"}}\n'


class Command:
    """A command as its session sees it."""

    def __init__(self) -> None:
        self.said: SimpleQueue[bytes] = SimpleQueue()
        self.heard: list[bytes] = []
        self.reads = Event()
        self.reads.set()

    def read(self) -> bytes:
        return self.said.get()

    def write(self, line: bytes) -> bool:
        self.reads.wait(TIMEOUT)
        self.heard.append(line)
        return True

    def close_output(self) -> None:
        pass

    def wait(self) -> int:
        return 0


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[SharedSession, Command]]:
    command, ended = Command(), asyncio.Event()
    child = cast("Child", cast("Any", command))
    session = SharedSession(child, Limits(), say=print, on_end=lambda *_: ended.set())
    async with asyncio.timeout(TIMEOUT):
        try:
            yield session, command
        finally:
            session.begin_to_close = lambda **_: None  # type: ignore[assignment, method-assign]
            command.reads.set()
            command.said.put(b"")
            await ended.wait()


async def test_a_client_that_does_not_read_delays_no_other() -> None:
    """Its box is full of messages when its answer comes."""
    async with shared() as (session, command):
        slow, silent = await session.ask_alone(CALL % (1, b""))
        quick, box = await session.ask_alone(CALL % (2, b""))
        silent.put_now(b"x" * 2_000_000)
        command.said.put(RESULT % (slow, b"for-the-slow-one"))
        command.said.put(RESULT % (quick, b"for-the-other"))
        assert b"for-the-other" in (await box.get() or b"")
        assert len(await silent.get() or b"") == 2_000_000
        assert b"for-the-slow-one" in (await silent.get() or b"")


async def test_answers_that_nobody_reads_are_bounded() -> None:
    async with shared() as (session, command):
        boxes = [await session.ask_alone(CALL % (number, b"")) for number in range(20)]
        for number, _ in boxes:
            command.said.put(RESULT % (number, b"x" * 9_000_000))
        last, box = await session.ask_alone(CALL % (99, b""))
        command.said.put(RESULT % (last, b"y"))
        assert b"y" in (await box.get() or b"")
        assert sum(one.size for _, one in boxes) <= sessions._MOST_UNREAD


async def test_what_a_client_has_asked_is_forgotten_when_it_leaves() -> None:
    """Although the command is busy, and takes no line."""
    async with shared() as (session, command):
        command.reads.clear()
        first = asyncio.ensure_future(session.ask_alone(CALL % (0, b"")))
        await until(lambda: session._turn.locked())
        gc.collect()
        tracemalloc.start()
        asking = [
            asyncio.ensure_future(session.ask_alone(CALL % (number, b"x" * 1_000_000)))
            for number in range(1, 50)
        ]
        await asyncio.sleep(0)
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        del one
        asking.clear()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 2_000_000
        command.reads.set()
        await first
        await session.ask_alone(CALL % (60, b"last"))
        assert len(command.heard) == 2, "nor is it told that they have left"
