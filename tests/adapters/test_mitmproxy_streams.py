"""Bytes put into responses that are under way, their end, and their abortion, for real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer

from mcp_tool_filter.adapters.mitmproxy_layers import Injected, choose_layer
from mcp_tool_filter.adapters.mitmproxy_streams import cut, end, inject, open_flows
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import get, h2_client, raw_client, trusting
from tests.raw_upstream import SSE_HEAD, Peer, answer, chunk, raw_upstream

type Chunks = list[bytes]

FIRST = b"data: first\n\n"
OURS = b"data: ours\n\n"
H2_SSE_HEAD = [(b":status", b"200"), (b"content-type", b"text/event-stream")]


@dataclass
class Streaming:
    """Streams every event stream as it comes; remembers flows and what their callables got."""

    flows: list[HTTPFlow] = field(default_factory=list)
    chunks: dict[str, Chunks] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    responses: list[HTTPFlow] = field(default_factory=list)
    on_chunk: Callable[[HTTPFlow, bytes], Any] = lambda _, data: [data] if data else []

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        self.flows.append(flow)
        if "event-stream" in flow.response.headers.get("content-type", ""):
            if flow.request.http_version == "HTTP/1.0":
                flow.response.headers.pop("transfer-encoding", None)
            flow.response.stream = lambda data: self._take(flow, data)

    def _take(self, flow: HTTPFlow, data: bytes) -> Any:
        self.chunks.setdefault(flow.id, []).append(data)
        return self.on_chunk(flow, data)

    def response(self, flow: HTTPFlow) -> None:
        self.responses.append(flow)

    def error(self, flow: HTTPFlow) -> None:
        assert flow.error
        self.errors.append(flow.error.msg)


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

        yield OpenStream(see, clean)


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
        if upstream == "h2":
            url = (
                await stack.enter_async_context(h2_upstream(h2_endless, tls=certified(home)))
            ).url
        else:
            tls = certified(home) if upstream == "h1tls" else None
            url = (await stack.enter_async_context(raw_upstream(endless, tls=tls))).url
        running = await stack.enter_async_context(proxy(addon, to=url, home=home))
        if client == "h2":
            stream = await stack.enter_async_context(h2_stream(running.port))
        else:
            tls_client = client == "h1tls"
            stream = await stack.enter_async_context(h1_stream(running.port, tls=tls_client))
        yield running, stream


pairs = pytest.mark.parametrize("pair", PAIRS)


@pairs
def test_injected_bytes_reach_the_client(pair: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        addon = Streaming()
        async with opened(pair, tmp_path, addon) as (_, stream):
            assert inject(addon.flows[0], OURS)
            await stream.see(OURS)
            injected = addon.chunks[addon.flows[0].id][-1]
            assert isinstance(injected, Injected)
            assert injected.flow_id == addon.flows[0].id

    asyncio.run(scenario())


@pairs
def test_an_ended_stream_ends_well_for_the_client(pair: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        addon = Streaming()
        async with opened(pair, tmp_path, addon) as (_, stream):
            assert end(addon.flows[0], OURS)
            await stream.see(OURS)
            assert await stream.rest()
            assert addon.responses == addon.flows
            assert addon.errors == []
            assert open_flows() == []

    asyncio.run(scenario())


@pairs
def test_a_cut_stream_ends_badly_for_the_client(pair: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        addon = Streaming()
        async with opened(pair, tmp_path, addon) as (_, stream):
            cut(addon.flows[0], "enough")
            assert not await stream.rest()
            assert addon.responses == []
            assert addon.errors == ["enough"]
            assert open_flows() == []

    asyncio.run(scenario())
