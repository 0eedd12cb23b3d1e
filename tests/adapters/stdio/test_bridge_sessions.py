"""Real commands behind the bridge: started, counted and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.sessions import BridgeSessions, Outbox, TooMany
from mcp_tool_filter.errors import ConnectFailed
from mcp_tool_filter.protocol.limits import Limits
from tests.make import calling
from tests.stdio_client import upstream


@asynccontextmanager
async def sessions(
    *words: str, said: list[str] | None = None, **settings: Any
) -> AsyncIterator[BridgeSessions]:
    say = (said if said is not None else []).append
    command = list(words) or upstream()
    made = BridgeSessions(lambda: Child(command), Limits(), say=say, **settings)
    try:
        yield made
    finally:
        await made.close()


async def test_the_least_recently_used_session_is_ended_first() -> None:
    async with sessions(most=2) as ours:
        (_, first), (_, second) = await ours.begin(), await ours.begin()
        await first.tell(calling("read_file"))
        await ours.begin()
        assert second.ended.done()
        assert not first.ended.done()


async def test_no_session_begins_if_all_are_in_use() -> None:
    async with sessions(most=1) as ours:
        _, only = await ours.begin()
        only.listen()
        with pytest.raises(TooMany, match="--max-children 1"):
            await ours.begin()
        with pytest.raises(TooMany):
            await ours.shared()


async def test_requests_without_a_session_share_a_command_until_it_ends() -> None:
    async with sessions() as ours:
        shared = await ours.shared()
        assert await ours.shared() is shared
        ours.end(shared)
        assert await ours.shared() is not shared


async def test_an_idle_session_is_ended() -> None:
    async with sessions(idle=0.05) as ours:
        _, idle = await ours.begin()
        _, used = await ours.begin()
        assert used.expect(["1"], Outbox())  # somebody waits for it
        await idle.ended
        assert not used.ended.done()


async def test_closing_ends_all_commands_and_starts_no_more() -> None:
    async with sessions() as ours:
        _, session = await ours.begin()
        shared = await ours.shared()
    assert session.ended.done()
    assert shared.ended.done()
    with pytest.raises(TooMany, match="Shutting down"):
        await ours.begin()


async def test_a_command_that_cannot_start_opens_no_session() -> None:
    async with sessions("no-such-command", most=1) as ours:
        for _ in range(2):
            with pytest.raises(ConnectFailed):
                await ours.begin()


async def test_sessions_make_room_side_by_side() -> None:
    """One after the other, with patience for each, twenty clients would wait for minutes."""
    stubborn = upstream("--ignore-eof")
    async with sessions(*stubborn, most=8) as ours:
        before = [session for _, session in [await ours.begin() for _ in range(8)]]
        began = [asyncio.create_task(ours.begin()) for _ in range(8)]
        await asyncio.sleep(0)
        assert all(one.is_closing for one in before)
        async with asyncio.timeout(60):
            await asyncio.gather(*began)
        assert all(one.ended.done() for one in before)


async def test_what_waits_for_a_stream_is_bounded_in_bytes() -> None:
    async with sessions() as ours:
        _, session = await ours.begin()
        outbox = await session.ask(
            [calling("flood", arguments='{"messages":10000}')], ["1"], only_answers=True
        )
        async with asyncio.timeout(60):
            assert await outbox.get()
        kept = session.take_kept()
        assert sum(map(len, kept)) <= 4 * 1024 * 1024
        assert b'"9999' in kept[-1]  # the oldest were dropped
