"""An upstream in this process, behind the engine; its answers are given by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mcp_tool_filter.core.sockets.served import AnswerRequest, ServedRequest, ServedResponse
from mcp_tool_filter.rooms.stdio.in_process import InProcess
from tests.core.engine.table import PING, PONG, Table, call, result

EVENTS = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


def table_with(answer: AnswerRequest) -> tuple[Table, InProcess]:
    table, upstream = Table(), InProcess(answer, lambda _count: None)
    table.service.connect = upstream.connect
    return table, upstream


async def settled(upstream: InProcess) -> None:
    """Let all answers go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not [one for one in upstream.tasks if one.done()]


class Stream:
    """The body of an answer; counts what was taken from it."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self.taken = 0
        self.has_ended = False

    async def answer(self, _asked: ServedRequest) -> ServedResponse:
        return ServedResponse(200, EVENTS, self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(self._parts):
                self.taken += 1
                yield b"data: %b\n\n" % b'{"jsonrpc":"2.0","method":"notifications/message"}'
            await asyncio.Event().wait()
        finally:
            self.has_ended = True


async def test_a_judged_request_comes_as_values_and_its_answer_is_judged() -> None:
    asked: list[ServedRequest] = []

    async def answer(request: ServedRequest) -> ServedResponse:
        asked.append(request)
        return ServedResponse(200, JSON, result("hi"))

    table, upstream = table_with(answer)
    client = table.asks(call("wipe"))
    assert b"Tool not found" in client.taken()
    client = table.asks(call("read"))
    await settled(upstream)
    assert client.got.endswith(b"\r\n\r\n" + result("hi"))
    [one] = asked
    assert (one.method, one.path, one.body) == ("POST", "/mcp", call("read"))
    assert one.header(b"content-type") == "application/json"
    assert not table.service.exchanges


async def test_a_stream_waits_for_a_client_that_reads_slowly() -> None:
    stream = Stream(5)
    table, upstream = table_with(stream.answer)
    client = table.asks(PING)
    client.engine.held(True)
    await settled(upstream)
    assert stream.taken <= 2
    client.engine.held(False)
    await settled(upstream)
    assert stream.taken == 5
    assert client.got.count(b"data: ") == 5
    client.leaves()
    await settled(upstream)


@pytest.mark.parametrize("has_begun", [True, False])
async def test_an_answer_ends_when_its_client_leaves(has_begun: bool) -> None:
    """The command is told, or its session would wait for ever."""
    stream, waits = Stream(1), asyncio.get_running_loop().create_future()

    async def never(_request: ServedRequest) -> ServedResponse:
        return ServedResponse(await waits)

    table, upstream = table_with(stream.answer if has_begun else never)
    client = table.asks(PING)
    await settled(upstream)
    assert stream.taken == has_begun
    client.leaves()
    await settled(upstream)
    assert (stream.has_ended, waits.cancelled()) == (has_begun, not has_begun)
    assert not upstream.tasks


async def test_a_stream_that_is_refused_at_its_head_is_closed_too() -> None:
    stream = Stream(1)

    async def answer(request: ServedRequest) -> ServedResponse:
        said = await stream.answer(request)
        return ServedResponse(200, [*EVENTS, (b"content-encoding", b"zz")], said.body)

    table, upstream = table_with(answer)
    client = table.asks(PING)
    await settled(upstream)
    assert b"data:" not in client.got
    assert stream.has_ended
    assert not upstream.tasks


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_exception_fails_only_its_request(has_begun: bool) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b": open\n\n"
        raise ValueError("a bug")

    async def answer(request: ServedRequest) -> ServedResponse:
        if request.body != PING:
            return ServedResponse(200, JSON, result("hi"))
        if has_begun:
            return ServedResponse(200, EVENTS, broken())
        raise ValueError("a bug")

    table, upstream = table_with(answer)
    client = table.asks(PING)
    await settled(upstream)
    assert client.was_aborted if has_begun else b'"code":-32603' in client.got
    other = table.asks(call("read"))
    await settled(upstream)
    assert other.got.endswith(result("hi"))
    assert PONG not in client.got
