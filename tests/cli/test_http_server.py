"""The small HTTP server for the page, logins, the demo and recordings, on real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mcp_tool_filter.cli.http_server import PAGE_LIMITS, HttpServer, ServerLimits, http_server
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from tests.raw_client import RawClient, get, post, raw_client
from tests.raw_upstream import TIMEOUT, until
from tests.rows import each_row

TEXT = [(b"content-type", b"text/plain")]
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [(b"content-type", b"text/event-stream")]


async def echo(request: ServedRequest) -> ServedResponse:
    return ServedResponse(200, TEXT, f"{request.method} {request.target} ".encode() + request.body)


@asynccontextmanager
async def echoing(**limits: float) -> AsyncIterator[tuple[HttpServer, RawClient]]:
    made = ServerLimits(**limits)  # type: ignore[arg-type]  # as the caller says
    async with http_server(echo, limits=made) as server, raw_client(server.port) as client:
        yield server, client


class Stream:
    """A body that sends what it is given, and notices when the client has left."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def answer(self, _request: ServedRequest) -> ServedResponse:
        return ServedResponse(200, EVENTS, self.body())

    async def body(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self.chunks.get()) is not None:
                yield chunk
        finally:
            self.closed.set()


async def test_requests_are_answered_in_order_however_they_are_framed() -> None:
    expecting = b"POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with echoing() as (_, client):
        await client.say(
            post(b"one", path="/a?b=c")
            + get(path="/d")
            + CHUNKED
            + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        )
        answers = [await client.answer() for _ in range(3)]
        assert [one.body for one in answers] == [b"POST /a?b=c one", b"GET /d ", b"POST / abc"]
        assert (answers[0].status, answers[0].all("content-type")) == (200, ["text/plain"])
        head = await client.ask(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert head.all("content-length") == ["8"]
        await client.say(expecting)
        assert (await client.head()).startswith(b"HTTP/1.1 100")
        assert (await client.ask(b"ok")).body == b"POST /e ok"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_body_keeps_the_connection(status: int) -> None:
    async def answer(_request: ServedRequest) -> ServedResponse:
        return ServedResponse(status)

    async with http_server(answer) as server, raw_client(server.port) as client:
        for _ in range(2):
            assert (await client.ask(get())).status == status


async def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    stream = Stream()
    for chunk in (b"a", b"b", None):
        stream.chunks.put_nowait(chunk)
    async with http_server(stream.answer) as server, raw_client(server.port) as client:
        await client.say(b"GET / HTTP/1.0\r\n\r\n")
        assert b"chunked" not in await client.head()
        assert await client.rest() == b"ab"


async def test_a_stream_arrives_chunk_by_chunk_and_the_next_answer_after_it() -> None:
    stream = Stream()
    async with http_server(stream.answer) as server, raw_client(server.port) as client:
        await client.say(get())
        await client.head()
        await client.say(get())
        for chunk in (b"data: 1\n\n", b"data: 2\n\n"):
            stream.chunks.put_nowait(chunk)
            assert await client.chunk() == chunk
        stream.chunks.put_nowait(None)
        assert await client.chunk() == b""
        assert stream.closed.is_set()
        for last in (b"two", None):
            stream.chunks.put_nowait(last)
        assert (await client.answer()).body == b"two"


async def test_a_stream_is_closed_when_its_client_leaves() -> None:
    stream = Stream()
    async with http_server(stream.answer) as server:
        async with raw_client(server.port) as client:
            await client.say(get())
            await client.head()
            assert not stream.closed.is_set()
        async with asyncio.timeout(TIMEOUT):
            await stream.closed.wait()


async def test_a_broken_stream_is_not_completed(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError

    async def answer(_request: ServedRequest) -> ServedResponse:
        return ServedResponse(200, EVENTS, broken())

    async with http_server(answer) as server, raw_client(server.port) as client:
        await client.say(get())
        await client.head()
        assert await client.rest_of_chunks() == (b"half", False)
    assert "internal error; connection closed" in caplog.text


async def test_an_error_is_answered_and_reveals_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_request: ServedRequest) -> ServedResponse:
        raise ValueError("do not tell")

    async with http_server(answer) as server, raw_client(server.port) as client:
        for _ in range(2):
            failed = await client.ask(get())
            assert (failed.status, failed.body) == (500, b"")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


@each_row(("request_", "status"), [
    (post(b"x" * 101), 413),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999999999\r\n\r\n", 413),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: h\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", 400),
    (CHUNKED + b"65\r\n" + b"x" * 101, 413),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 2000, 431),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400), (b"\x16\x03\x01\0\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
])  # fmt: skip
async def test_too_large_and_malformed_requests_are_refused(request_: bytes, status: int) -> None:
    async with echoing(body=100, head=1000) as (_, client):
        answer = await client.ask(request_)
        assert (answer.status, answer.all("connection")) == (status, ["close"])
        assert await client.rest() == b""


async def test_a_client_reads_the_refusal_of_a_body_it_is_still_sending() -> None:
    """Hanging up while it sends would reset the connection, and destroy the answer."""

    def send_all_then_read(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as client:
            client.sendall(post(b"x" * 10_000_000))
            return client.recv(1000)

    async with http_server(echo, limits=ServerLimits(body=100)) as server:
        answer = await asyncio.to_thread(send_all_then_read, server.port)
    assert answer.startswith(b"HTTP/1.1 413")


async def test_a_head_can_be_refused_before_the_body_is_sent() -> None:
    def judge(request: ServedRequest) -> ServedResponse | None:
        return ServedResponse(403) if request.header(b"origin") else None

    head = b"POST / HTTP/1.1\r\nHost: h\r\nOrigin: http://evil\r\nContent-Length: 10\r\n\r\n"
    async with http_server(echo, judge_head=judge) as server, raw_client(server.port) as client:
        assert (await client.ask(post(b"x"))).status == 200
        assert (await client.ask(head)).status == 403
        assert await client.rest() == b""


async def test_a_request_that_stops_half_way_times_out() -> None:
    async with echoing(silence=0.05) as (_, client):
        assert (await client.ask(get(path="/a"))).status == 200
        await client.say(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nab")
        assert (await client.answer()).status == 408
        assert await client.rest() == b""


async def test_a_quiet_connection_stays_open() -> None:
    async with echoing(silence=0.02) as (_, client):
        for _ in range(2):
            await asyncio.sleep(0.06)
            assert (await client.ask(get())).status == 200


async def test_above_the_connection_limit_a_client_gets_a_clear_answer() -> None:
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(_request: ServedRequest) -> ServedResponse:
        begun.set()
        await may_answer.wait()
        return ServedResponse(200)

    limits = ServerLimits(connections=1)
    async with http_server(slow, limits=limits) as server, raw_client(server.port) as client:
        await client.say(get())
        await begun.wait()
        async with raw_client(server.port) as second:
            assert (await second.answer()).status == 503
            assert await second.rest() == b""
        may_answer.set()
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "begun", [b"", b"POST /mcp HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"]
)
async def test_a_page_makes_room_for_a_new_client(begun: bytes) -> None:
    """Strangers who connect and say nothing, or stop half-way, cannot shut others out."""
    async with (
        http_server(echo, limits=replace(PAGE_LIMITS, connections=2)) as server,
        raw_client(server.port) as silent,
        raw_client(server.port) as slow,
    ):
        await slow.say(begun)
        for _ in range(3):
            async with raw_client(server.port) as client:
                assert (await client.ask(get(path="/a"))).status == 200
        assert await silent.rest() == b""


async def test_a_client_that_does_not_read_loses_its_seat() -> None:
    async def answer_at_length(_request: ServedRequest) -> ServedResponse:
        return ServedResponse(200, TEXT, b"x" * 20_000_000)

    limits = replace(PAGE_LIMITS, sending=0.05)
    async with (
        http_server(answer_at_length, limits=limits) as server,
        raw_client(server.port) as client,
    ):
        await client.say(get())
        await client.head()
        await until(lambda: not server._open)


async def test_a_request_must_be_there_in_time() -> None:
    """One byte at a time keeps no seat."""
    async with echoing(request=0.1) as (_, client):
        answered = asyncio.create_task(client.answer())
        while not answered.done():
            client.writer.write(b"G")
            await asyncio.sleep(0.01)
        assert (await answered).status == 408


async def test_an_idle_client_of_a_page_is_left_without_an_answer() -> None:
    async with echoing(request=0.05) as (_, client):
        assert await client.rest() == b""


async def test_a_request_in_progress_is_answered_before_shutdown() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: ServedRequest) -> ServedResponse:
        begun.set()
        await go_on.wait()
        return await echo(request)

    async with asyncio.timeout(TIMEOUT):
        running = http_server(slow, limits=ServerLimits(grace=TIMEOUT))
        server = await running.__aenter__()
        async with raw_client(server.port) as client, raw_client(server.port) as idle:
            await client.say(get())
            await begun.wait()
            ending = asyncio.ensure_future(running.__aexit__(None, None, None))
            assert await idle.rest() == b""
            go_on.set()
            answer = await client.answer()
            assert (answer.body, answer.all("connection")) == (b"GET /mcp ", ["close"])
        await ending


async def test_an_endless_stream_is_cut_at_shutdown() -> None:
    stream = Stream()
    running = http_server(stream.answer, limits=ServerLimits(grace=0.0))
    server = await running.__aenter__()
    async with raw_client(server.port) as client:
        await client.say(get())
        await client.head()
        await running.__aexit__(None, None, None)
        assert await client.rest_of_chunks() == (b"", False)
    assert stream.closed.is_set()
