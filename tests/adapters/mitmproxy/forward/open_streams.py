"""An event stream that stays open, by each pair of protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.mitmproxy.forward.streaming import FIRST, Streaming
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import get, h2_client, raw_client, trusting
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, answer, chunk, raw_upstream

OURS = b"data: ours\n\n"

H2_SSE_HEAD = [(b":status", b"200"), (b"content-type", b"text/event-stream")]


async def endless(peer: Peer) -> None:
    """Answer a GET with an event and silence, a POST with JSON."""
    while request := await peer.request():
        if request.line.startswith("POST"):
            await peer.say(answer(b"{}"))
        else:
            await peer.say(SSE_HEAD + chunk(FIRST))


async def h2_endless(stream: UpstreamStream) -> None:
    stream.head(H2_SSE_HEAD)
    stream.say(FIRST)


@dataclass
class OpenStream:
    """A client that has seen the first event of an endless stream."""

    see: Callable[[bytes], Any]  # waits until the client has it
    rest: Callable[[], Any]  # waits for the end: True when it is a clean one
    again: Callable[[], Any] = lambda: None  # asks once more, over the same connection
    left: Callable[[], Any] = lambda: None  # waits until the upstream sees that it is over


@asynccontextmanager
async def h1_stream(port: int, *, tls: bool) -> AsyncIterator[OpenStream]:
    async with raw_client(port, tls=trusting() if tls else None) as client:
        await client.say(get())
        await client.head()
        assert await client.chunk() == FIRST

        async def see(data: bytes) -> None:
            assert await client.chunk() == data

        async def clean() -> bool:
            return (await client.rest_of_chunks())[1]

        async def again() -> None:
            await client.say(get())
            await client.head()
            await see(FIRST)

        yield OpenStream(see, clean, again)


@asynccontextmanager
async def h2_stream(port: int) -> AsyncIterator[OpenStream]:
    async with h2_client(port) as client:
        number = client.ask("GET")
        await client.until(number, lambda stream: FIRST in stream.data)

        async def clean() -> bool:
            return (await client.over(number)).reset is None

        yield OpenStream(
            lambda data: client.until(number, lambda stream: data in stream.data), clean
        )


PAIRS = ["h1-h1", "h1tls-h1", "h1-h1tls", "h1tls-h1tls", "h2-h1", "h2-h1tls", "h2-h2"]


@asynccontextmanager
async def opened(
    pair: str, home: Path, addon: Streaming
) -> AsyncIterator[tuple[RunningProxy, OpenStream]]:
    """A stream open from an upstream, through the proxy, to a client, by these protocols."""
    client, upstream = pair.split("-")
    async with AsyncExitStack() as stack:
        over: Callable[[], asyncio.Event]
        if upstream == "h2":
            h2 = await stack.enter_async_context(h2_upstream(h2_endless, tls=certified(home)))
            url, over = h2.url, lambda: h2.streams[0].over
        else:
            tls = certified(home) if upstream == "h1tls" else None
            h1 = await stack.enter_async_context(raw_upstream(endless, tls=tls))
            url, over = h1.url, lambda: h1.peers[0].gone
        running = await stack.enter_async_context(proxy(addon, to=url, home=home))
        if client == "h2":
            stream = await stack.enter_async_context(h2_stream(running.port))
        else:
            tls_client = client == "h1tls"
            stream = await stack.enter_async_context(h1_stream(running.port, tls=tls_client))
        stream.left = lambda: asyncio.wait_for(over().wait(), 20)
        yield running, stream


pairs = pytest.mark.parametrize("pair", PAIRS)


async def brief(peer: Peer) -> None:
    """Answer every GET with a stream of one event, and every POST with an endless one."""
    while request := await peer.request():
        await peer.say(SSE_HEAD + chunk(FIRST))
        if request.line.startswith("GET"):
            await peer.say(LAST_CHUNK)
