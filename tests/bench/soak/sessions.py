"""What clients do: each session asks for a while, behaves or misbehaves, and leaves."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

from tests.bench.soak.clients import (
    PATIENCE,
    Broken,
    Streamable,
    any_call,
    calling,
    connected,
    legacy,
    messages_in,
    streamable,
)
from tests.bench.soak.ledger import Ledger
from tests.raw_client import Answer, RawClient, get, post
from tests.raw_upstream import hang_up, reset


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
        await session.connection.say(session.posting(call.body))
        await asyncio.sleep(random.random() * 0.1)
        ledger.made[call.kind] += 1
        ledger.given_up += 1
        if random.random() < 0.5:
            reset(session.connection.writer)


async def leave_an_old_stream(port: int, ledger: Ledger) -> None:
    """Hang up a stream on which an answer is due."""
    async with legacy(port, ledger) as session:
        call = calling(delay=0.2)
        session.given_up.add(call.id)  # it may still be told that its upstream hung up
        ledger.made[call.kind] += 1
        ledger.given_up += 1
        await session.posting.say(post(call.body, path=session.endpoint))
        await asyncio.sleep(random.random() * 0.1)


async def say_half(port: int, ledger: Ledger) -> None:
    """Begin a request, keep still, and go."""
    async with connected(port) as connection:
        ledger.connections += 1
        whole = post(calling().body, path=ledger.path)
        await connection.say(whole[: random.randrange(1, len(whole))])
        await asyncio.sleep(random.random() * 5)
        if random.random() < 0.5:
            reset(connection.writer)


async def read_slowly(port: int, ledger: Ledger) -> None:
    """Ask for much, and take it in spoonfuls."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the other end feels it
    sock.connect(("127.0.0.1", port))
    connection = RawClient(*await asyncio.open_connection(sock=sock, limit=1 << 16))
    ledger.connections += 1
    session = Streamable(port, ledger, connection)
    try:
        await session.open()
        call = calling(how=random.choice(("json", "sse")), size=1_000_000)
        ledger.made[call.kind] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                await connection.say(session.posting(call.body))
                head = await connection.head()
                answer = Answer(head, b"".join([one async for one in _spoonfuls(connection, head)]))
        except (EOFError, OSError) as error:
            return ledger.note_lost(f"a slow reader's: {error!r}")
        return call.judge(messages_in(answer)[0], ledger)
    finally:
        await hang_up([connection.writer])


async def _spoonfuls(connection: RawClient, head: bytes) -> AsyncIterator[bytes]:
    """Yield a body bit by bit."""
    sizes = Answer(head, b"").all("content-length")
    missing = int(sizes[0]) if sizes else 0
    while missing or not sizes:
        wanted = min(missing, 16 * 1024)
        piece = await (connection.reader.readexactly(wanted) if sizes else connection.chunk())
        if not piece:
            return
        missing -= len(piece) if sizes else 0
        yield piece
        await asyncio.sleep(0.005)


async def say_in_crumbs(port: int, ledger: Ledger) -> None:
    """Send a body in chunks of one byte."""
    async with streamable(port, ledger) as session:
        call = calling(size=10_000)
        head, _, body = session.posting(call.body).partition(b"\r\n\r\n")
        sized = re.compile(rb"(?i)content-length: \d+")
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        whole = sized.sub(b"Transfer-Encoding: chunked", head) + b"\r\n\r\n" + chunks
        ledger.made[call.kind] += 1
        try:
            answer = await session.connection.ask(whole + b"0\r\n\r\n")
        except (OSError, EOFError) as error:
            return ledger.note_lost(f"a body in crumbs: {error!r}")
        return call.judge(messages_in(answer)[0], ledger)


async def come_and_go(port: int, ledger: Ledger) -> None:
    """Open a session and its stream, ask once, and leave."""
    if random.random() < 0.3:
        async with legacy(port, ledger) as old:
            await old.ask(calling())
        return
    async with streamable(port, ledger) as session, connected(port) as stream:
        ledger.connections += 1
        await stream.say(get(headers=session.headers))
        await stream.head()
        await session.ask(calling(how="sse"))
        if random.random() < 0.5:
            await session.close()


type Behaviour = Callable[[int, Ledger], Awaitable[None]]

_BEHAVIOURS: dict[Behaviour, int] = {
    behave: 8, behave_as_of_old: 4, leave_in_the_midst: 2, leave_an_old_stream: 1, say_half: 1,
    read_slowly: 1, say_in_crumbs: 1,
}  # fmt: skip


async def keep_on(port: int, ledger: Ledger, seconds: float, *without: Behaviour) -> None:
    """Begin one session after the other for so long."""
    behaviours = {one: weight for one, weight in _BEHAVIOURS.items() if one not in without}
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        (one,) = random.choices(list(behaviours), list(behaviours.values()))
        try:
            await one(port, ledger)
        except Broken:
            await asyncio.sleep(0.1)  # what it means was entered where it happened


_NEVER = 120.0  # seconds that the calls would have taken


async def lose(port: int, ledger: Ledger, number: int, kill: Callable[[], None]) -> None:
    """Let sessions of both transports wait, kill the upstream, and enter what each of them hears.

    What is to be seen in the ledger: that all calls were told, but those that were not yet asked.
    """
    async with AsyncExitStack() as stack:
        waiting = [asyncio.create_task(_wait_on_stream(port, ledger, stack)) for _ in range(number)]
        hows = ("json", "sse") * number
        waiting += [asyncio.create_task(_wait(port, ledger, stack, how)) for how in hows[:number]]
        while ledger.made["call"] < len(waiting):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # until the upstream has them all
        kill()
        await asyncio.gather(*waiting)


async def _wait(port: int, ledger: Ledger, stack: AsyncExitStack, how: str) -> None:
    session = await stack.enter_async_context(streamable(port, ledger))
    listening = asyncio.create_task(session.listen())
    stack.callback(listening.cancel)
    with suppress(Broken):
        await session.ask(calling(how=how, delay=_NEVER))


async def _wait_on_stream(port: int, ledger: Ledger, stack: AsyncExitStack) -> None:
    session = await stack.enter_async_context(legacy(port, ledger))
    with suppress(Broken):
        await session.ask(calling(delay=_NEVER))
