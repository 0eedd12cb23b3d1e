"""What clients do: each session asks for a while, behaves or misbehaves, and leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.bench.soak.clients import (
    PATIENCE,
    Streamable,
    _messages_in,
    any_call,
    calling,
    legacy,
    streamable,
)
from tests.bench.soak.connections import Broken, connected
from tests.bench.soak.ledger import Ledger


async def behave(port: int, ledger: Ledger) -> None:
    """Do what clients do, and leave well, or without a word."""
    async with streamable(port, ledger) as session:
        listening = asyncio.create_task(session.listen())
        try:
            for _ in range(random.randrange(5, 60)):
                await session.ask(any_call())
            if random.random() < 0.8:
                await session.close()
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening


async def behave_as_of_old(port: int, ledger: Ledger) -> None:
    """The same by HTTP+SSE, with several calls on their way at a time."""
    async with legacy(port, ledger) as session:
        for _ in range(random.randrange(5, 40)):
            await session.ask(any_call())


async def leave_in_the_midst(port: int, ledger: Ledger) -> None:
    """Ask, and be gone before the answer: by a reset, or as if well."""
    async with streamable(port, ledger) as session:
        call = calling(how=random.choice(("json", "sse")), size=200_000, delay=0.05)
        await session.connection.send("POST", "/mcp", call.body, session.headers)
        await asyncio.sleep(random.random() * 0.1)
        ledger.made[call.kind] += 1
        ledger.given_up += 1
        if random.random() < 0.5:
            session.connection.reset()


async def leave_an_old_stream(port: int, ledger: Ledger) -> None:
    """Hang up a stream on which an answer is due."""
    async with legacy(port, ledger) as session:
        call = calling(delay=0.2)
        session.given_up.add(call.id)  # it may still be told that its upstream hung up
        ledger.made[call.kind] += 1
        ledger.given_up += 1
        await session.posting.send("POST", session.endpoint, call.body)
        await asyncio.sleep(random.random() * 0.1)


async def say_half(port: int, ledger: Ledger) -> None:
    """Begin a request, keep still, and go."""
    async with connected(port) as connection:
        ledger.connections += 1
        body = calling().body
        half = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        await connection.send_raw((half + body)[: random.randrange(1, len(half + body))])
        await asyncio.sleep(random.random() * 5)
        if random.random() < 0.5:
            connection.reset()


async def read_slowly(port: int, ledger: Ledger) -> None:
    """Ask for much, and take it in spoonfuls."""
    async with connected(port, buffer=4096) as connection:
        ledger.connections += 1
        session = Streamable(port, ledger, connection)
        await session.open()
        call = calling(how=random.choice(("json", "sse")), size=1_000_000)
        ledger.made[call.kind] += 1
        await connection.send("POST", "/mcp", call.body, session.headers)
        answer = await connection.answer()
        try:
            async with asyncio.timeout(PATIENCE):
                spoonfuls = []
                async for chunk in answer.chunks():
                    spoonfuls.append(chunk)
                    await asyncio.sleep(0.005)
        except (TimeoutError, EOFError, OSError) as error:
            ledger.note_lost(f"a slow reader's: {error!r}")
            return
        call.judge(_messages_in(answer, b"".join(spoonfuls))[0], ledger)


async def come_and_go(port: int, ledger: Ledger) -> None:
    """Open a session and its stream, ask once, and leave."""
    if random.random() < 0.3:
        async with legacy(port, ledger) as old:
            await old.ask(calling())
        return
    async with streamable(port, ledger) as session, connected(port) as stream:
        ledger.connections += 1
        await stream.send("GET", "/mcp", b"", session.headers)
        await stream.answer()
        await session.ask(calling(how="sse"))
        if random.random() < 0.5:
            await session.close()


type Behaviour = Callable[[int, Ledger], Awaitable[None]]

_BEHAVIOURS: dict[Behaviour, int] = {
    behave: 8,
    behave_as_of_old: 4,
    leave_in_the_midst: 2,
    leave_an_old_stream: 1,
    say_half: 1,
    read_slowly: 1,
}


async def keep_on(port: int, ledger: Ledger, seconds: float) -> None:
    """Begin one session after the other for so long."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        (one,) = random.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
        try:
            await one(port, ledger)
        except Broken:
            await asyncio.sleep(0.1)  # what it means was entered where it happened
