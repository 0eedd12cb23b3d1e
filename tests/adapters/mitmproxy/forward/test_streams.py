"""Bytes put into a stream under way: where they appear, and where none may."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Injected
from mcp_tool_filter.adapters.mitmproxy.forward.streams import cut, end, inject
from tests.adapters.mitmproxy.forward.open_streams import (
    OURS,
    brief,
    endless,
    h1_stream,
    opened,
    pairs,
)
from tests.adapters.mitmproxy.forward.streaming import FIRST, Streaming, before, until
from tests.raw_client import get, h2_client, post, raw_client


@pairs
async def test_injected_bytes_reach_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        assert inject(addon.flows[0], OURS)
        await stream.see(OURS)
        injected = addon.chunks[addon.flows[0].id][-1]
        assert isinstance(injected, Injected)
        assert injected.flow_id == addon.flows[0].id


async def test_a_stream_that_has_ended_can_be_neither_injected_into_nor_cut(tmp_path: Path) -> None:
    """mitmproxy would put it into the next response on the same connection."""

    addon = Streaming()
    async with before(brief, addon, tmp_path) as running, raw_client(running.port) as client:
        assert (await client.ask(get())).body == FIRST
        await client.say(post(b"{}"))
        await client.head()
        assert await client.chunk() == FIRST
        ended, going_on = addon.flows
        gc.collect()
        assert not inject(ended, OURS)
        assert not end(ended)
        cut(ended)
        assert inject(going_on, OURS)
        assert await client.chunk() == OURS


async def test_nothing_is_injected_after_a_client_has_left(tmp_path: Path) -> None:
    addon = Streaming()
    async with before(endless, addon, tmp_path) as running:
        async with h1_stream(running.port, tls=False):
            pass
        await addon.failed(1)
        assert not inject(addon.flows[0], OURS)
        assert not end(addon.flows[0])
        cut(addon.flows[0])


async def test_nothing_is_injected_into_a_flow_of_another_addon(tmp_path: Path) -> None:
    async with before(endless, Streaming(), tmp_path):
        assert not inject(tflow(resp=True), OURS)
        assert not end(tflow(resp=True))
        cut(tflow(resp=True))


async def test_nothing_is_injected_into_an_answer_that_is_not_streamed(tmp_path: Path) -> None:
    """It would be put before the upstream's bytes."""
    refused: list[bool] = []

    class Impatient(Streaming):
        def responseheaders(self, flow: HTTPFlow) -> None:
            refused.append(inject(flow, OURS))

        def response(self, flow: HTTPFlow) -> None:
            refused.append(inject(flow, OURS))

    async with before(endless, Impatient(), tmp_path) as it, raw_client(it.port) as client:
        assert (await client.ask(post(b"{}"))).body == b"{}"
        assert refused == [False, False]


async def test_nothing_is_injected_into_a_copy_or_behind_the_end(tmp_path: Path) -> None:
    refused: list[bool] = []

    class Late(Streaming):
        def response(self, flow: HTTPFlow) -> None:
            copy = flow.copy()
            copy.id = flow.id
            refused.extend([inject(copy, OURS), inject(flow, OURS), end(flow)])

        def responseheaders(self, flow: HTTPFlow) -> None:
            super().responseheaders(flow)
            copy = flow.copy()
            copy.id = flow.id
            refused.append(inject(copy, OURS))

    async with before(brief, Late(), tmp_path) as it, raw_client(it.port) as client:
        assert (await client.ask(get())).body == FIRST
        assert refused == [False] * 4


async def test_nothing_is_read_from_the_upstream_while_the_last_hook_waits(tmp_path: Path) -> None:
    """Its connection is closed by then; the failure would hit the client's next request."""
    may_go_on = asyncio.Event()

    class Slow(Streaming):
        async def response(self, flow: HTTPFlow) -> None:  # type: ignore[override]  # mitmproxy awaits it
            super().response(flow)
            await may_go_on.wait()

    addon = Slow()
    async with opened("h1-h1", tmp_path, addon) as (_, stream):
        assert end(addon.flows[0], OURS)
        await stream.left()
        may_go_on.set()
        await stream.see(OURS)
        assert await stream.rest()
        await stream.again()
        assert addon.errors == []


async def test_bytes_injected_from_inside_the_stream_follow_the_chunk(tmp_path: Path) -> None:
    def both(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if not isinstance(data, Injected):
            assert inject(flow, OURS)
        return [data]

    addon = Streaming(on_chunk=both)
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.head()
        assert await client.chunk() == FIRST
        assert await client.chunk() == OURS


async def test_bytes_injected_while_a_hook_waits_are_not_lost(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    class Slow(Streaming):
        async def responseheaders(self, flow: HTTPFlow) -> None:  # type: ignore[override]  # mitmproxy awaits it
            super().responseheaders(flow)
            await may_go_on.wait()

    addon = Slow()
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await until(lambda: bool(addon.flows))
        assert inject(addon.flows[0], OURS)
        may_go_on.set()
        await client.head()
        assert {await client.chunk(), await client.chunk()} == {FIRST, OURS}


@pytest.mark.parametrize("same_connection", [True, False])
async def test_another_requests_hook_can_inject(same_connection: bool, tmp_path: Path) -> None:
    """The reply to a POST belongs on the GET stream of the session, in legacy SSE."""

    class Legacy(Streaming):
        def request(self, flow: HTTPFlow) -> None:
            super().request(flow)
            if flow.request.method == "POST":
                assert inject(self.flows[0], OURS)
                flow.response = Response.make(202)

    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(before(endless, Legacy(), tmp_path))
        client = await stack.enter_async_context(h2_client(running.port))
        listening = client.ask("GET")
        await client.until(listening, lambda it: FIRST in it.data)
        other = client
        if not same_connection:
            other = await stack.enter_async_context(h2_client(running.port))
        posted = await other.over(other.ask(body=b"{}"))
        assert posted.headers[b":status"] == b"202"
        await client.until(listening, lambda it: OURS in it.data)
