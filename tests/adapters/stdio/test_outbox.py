"""Messages on their way to one reader."""

from __future__ import annotations

import asyncio

from mcp_tool_filter.adapters.stdio.sessions import Outbox

MEBIBYTE = 1024 * 1024


async def test_messages_keep_their_order_until_the_end() -> None:
    outbox = Outbox()
    assert await outbox.put(b"one")
    assert await outbox.put(b"two")
    outbox.end()
    assert [await outbox.get() for _ in range(3)] == [b"one", b"two", None]


async def test_a_reader_waits_for_the_first_message() -> None:
    outbox = Outbox()
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    assert not reading.done()
    await outbox.put(b"one")
    assert await reading == b"one"


async def test_a_writer_waits_for_a_slow_reader() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    writing = asyncio.create_task(outbox.put(b"more"))
    await asyncio.sleep(0)
    assert not writing.done()
    await outbox.get()
    assert await writing


async def test_a_waiting_writer_is_told_that_the_reader_has_left() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    writing = asyncio.create_task(outbox.put(b"more"))
    await asyncio.sleep(0)
    outbox.end()
    assert not await writing
    assert not await outbox.put(b"even more")
    assert outbox.has_ended


async def test_the_last_message_needs_a_reader_but_no_room() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    outbox.put_last(b"lost")
    outbox.end()
    outbox.put_last(b"too late")
    assert outbox.drain()[1:] == [b"lost"]
    assert await outbox.get() is None
