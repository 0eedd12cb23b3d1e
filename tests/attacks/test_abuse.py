"""A client that abuses the proxy is disconnected, and the others do not notice.

Each sends without an end; the proxy holds a bounded part of it, and meanwhile answers others.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from tests.attacks.answers import ASKED, event, stream
from tests.attacks.hostile_requests import HOST, JSON
from tests.attacks.stage import PROBE, Link, Stage
from tests.mcp_upstream import RESULT
from tests.raw_client import RawClient, get, raw_client
from tests.raw_upstream import RawRequest, chunk

MOST = 64 * 1024 * 1024
"""Bytes after which the proxy must have hung up; sockets and their buffers hold some, too."""
PIECE = b"x" * 65536
POST = b"POST /mcp HTTP/1.1\r\n" + HOST + JSON


async def stays_open(_request: RawRequest, link: Link) -> None:
    await link.say(stream(event(RESULT), end=b""))
    while await link.more():
        pass


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"POST /mcp HTTP/1.1\r\nX: ", PIECE),
        (b"POST /", PIECE),
        (b"POST /mcp HTTP/1.1\r\n", b"X: y\r\n" * 10000),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5;", PIECE),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", PIECE),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 10000),
        (get(), PIECE),
        (get(), PROBE * 300),
    ],
    ids=["header", "target", "headers", "extension", "trailer", "trailers", "junk", "queue"],
)
def test_an_endless_request_is_not_buffered(stage: Stage, begins: bytes, goes_on: bytes) -> None:
    async def scene() -> None:
        async with raw_client(stage.port) as client, raw_client(stage.port) as other:
            await client.say(begins)
            assert await _hung_up(client, goes_on, other)

    stage.play(scene(), stays_open)


async def _hung_up(client: RawClient, piece: bytes, other: RawClient) -> bool:
    """Go on sending until the proxy has hung up; ask something else in between."""
    sent = asked = 0
    with suppress(ConnectionError):
        while sent < MOST:
            await client.say(piece)
            sent += len(piece)
            if sent - asked > MOST // 16:
                asked = sent
                assert (await other.ask(PROBE)).body == RESULT
            await asyncio.sleep(0)
        return False
    return True


@pytest.mark.parametrize(
    "said",
    [
        (b"HTTP/1.1 200 OK\r\nX: ", PIECE),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", PIECE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", PIECE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(PIECE)),
        (b"HTTP/1.1 200 OK\r\n\r\n", PIECE),
        (b"", b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" * 1000),
    ],
    ids=["header", "headers", "extension", "trailer", "body", "until the end", "hints"],
)
def test_an_endless_answer_is_not_buffered(stage: Stage, said: tuple[bytes, bytes]) -> None:
    begins, goes_on = said
    sent = 0

    async def respond(_request: RawRequest, link: Link) -> None:
        nonlocal sent
        await link.say(begins)
        while sent < MOST:
            await link.say(goes_on)
            sent += len(goes_on)
        await link.say(b"\r\n\r\n")
        link.writer.write_eof()

    async def scene() -> bytes:
        return await stage.all_that_comes(ASKED["tools/list"], patient=True)

    heard = stage.play(scene(), respond)
    assert b"-32603" in heard or b"-32000" in heard
    assert sent < MOST or goes_on.startswith(b"HTTP")


def test_a_client_that_does_not_read_fills_no_memory(stage: Stage) -> None:
    sent = 0
    done = asyncio.Event()

    async def respond(_request: RawRequest, link: Link) -> None:
        nonlocal sent
        await link.say(stream(end=b""))
        piece = chunk(event(RESULT.replace(b"[]", b'["' + PIECE + b'"]')))
        with suppress(ConnectionError):
            while sent < 2 * MOST:
                await link.say(piece)
                sent += len(piece)
        done.set()

    async def scene() -> None:
        async with stage.client() as client, stage.client() as other:
            await client.say(get())
            before = -1
            while sent != before or sent == 0:  # until it is held up
                before = sent
                for _ in range(20):
                    assert (await other.ask(PROBE)).body == RESULT
        await done.wait()

    stage.play(scene(), respond)
    assert sent < MOST


def test_hundreds_of_open_streams_delay_no_request(stage: Stage) -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(stage.client()) for _ in range(150)]
            for client in clients:
                await client.say(get())
            for client in clients:
                await client.until(event(RESULT))
            other = await stack.enter_async_context(stage.client())
            assert (await other.ask(PROBE)).body == RESULT

    stage.play(scene(), stays_open)
