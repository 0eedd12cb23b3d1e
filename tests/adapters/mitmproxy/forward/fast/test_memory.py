"""Nothing of a client stays in memory after it has left, however it left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.conversation.memory import Exchanges
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import LegacyStream
from tests.adapters.mitmproxy.filtered import INITIALIZE, call, filtered
from tests.raw_client import TIMEOUT, get, h2_client, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect

_ENDPOINT = chunk(b"event: endpoint\ndata: /messages?session=1\n\n")
_VISITS = 5


async def _respond(request: RawRequest, peer: Peer) -> None:
    """Begin what has no end of its own; answer all else."""
    if b"websocket" in request.head:
        socket = await accept(peer.reader, peer.writer, request.head)
        while await socket.hear() is not None:
            await socket.say(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    elif b"read_file" in request.body or request.line.startswith("GET"):
        await peer.say(SSE_HEAD + _ENDPOINT)
    else:
        await peer.say(answer(b'{"jsonrpc":"2.0","id":0,"result":{}}'))


def _asking(request: bytes) -> Callable[[int], Awaitable[None]]:
    async def visit(port: int) -> None:
        async with raw_client(port) as client:
            await client.say(request)
            await client.head()

    return visit


async def _half_a_request(port: int) -> None:
    async with raw_client(port) as client:
        await client.say(post(call("read_file"))[:-9])


async def _websocket(port: int) -> None:
    async with raw_client(port) as client:
        socket = await connect(client.reader, client.writer)
        for name in ("read_file", "delete_file"):
            await socket.say(call(name))
            await socket.hear()


async def _streams_of_http_2(port: int) -> None:
    async with h2_client(port) as client:
        for leave in (client.reset, client.streams.get):
            number = client.ask("GET", path="/sse")
            await client.until(number, lambda stream: bool(stream.data))
            leave(number)


@pytest.mark.parametrize(
    "visit",
    [
        pytest.param(_asking(get(path="/sse")), id="a stream of the older transport"),
        pytest.param(_asking(get()), id="a stream"),
        pytest.param(_asking(post(call("read_file"))), id="a call"),
        pytest.param(_asking(post(INITIALIZE)), id="well"),
        pytest.param(_half_a_request, id="half a request"),
        pytest.param(_websocket, id="a WebSocket"),
        pytest.param(_streams_of_http_2, id="streams of HTTP/2"),
    ],
)
async def test_a_client_that_leaves_is_freed(
    visit: Callable[[int], Awaitable[None]], tmp_path: Path
) -> None:
    async with filtered(tmp_path, respond=_respond) as between:
        await visit(between.port)
        before = await _left()
        for _ in range(_VISITS):
            await visit(between.port)
        assert await _left() - before < _VISITS


async def test_a_finished_flow_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """Its bodies may be megabytes: some thirty of them were there at a time."""

    async def scenario() -> None:
        async with (
            filtered(tmp_path, respond=_respond) as between,
            raw_client(between.port) as client,
        ):
            for request in (post(INITIALIZE), post(call("delete_file"))) * 3:
                await client.ask(request)
            async with asyncio.timeout(TIMEOUT):
                while _flows():  # the last one may still be on its way out
                    await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        await scenario()
    finally:
        gc.enable()


def _flows() -> list[HTTPFlow]:
    return [one for one in gc.get_objects() if isinstance(one, HTTPFlow)]


async def _left() -> int:
    """Count what is there of things that each visit makes, once nothing goes away any more."""
    kinds = (HTTPFlow, EventStream, LegacyStream, Exchanges)
    left = -1
    while True:
        await asyncio.sleep(0.2)
        gc.collect()
        before, left = left, sum(isinstance(one, kinds) for one in gc.get_objects())
        if left == before:
            return left
