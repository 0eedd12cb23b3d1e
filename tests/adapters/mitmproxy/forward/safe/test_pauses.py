"""A stream pauses while a hook waits, goes on in order, and is found by its flow until it ends."""

from __future__ import annotations

import asyncio
import copy
import gc
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import choose_layer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import open_streams, stream_of
from tests.adapters.mitmproxy.forward.streaming import until
from tests.proxy import proxy
from tests.raw_client import post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, chunk, raw_upstream

HOOKS = ["requestheaders", "request", "responseheaders", "response"]
PIECES = [chunk(b"data: %d\n\n" % number) for number in range(20)]
BODY = b"".join(b"data: %d\n\n" % number for number in range(20))


class Waiting:
    """Waits in one hook until it is told to go on."""

    def __init__(self, hook: str) -> None:
        self.flows: list[HTTPFlow] = []
        self.log: list[str] = []
        self.go_on = asyncio.Event()
        self._hook = hook

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    async def _wait(self, hook: str, flow: HTTPFlow) -> None:
        self.flows.append(flow)
        self.log.append(hook)
        if hook == self._hook:
            await self.go_on.wait()

    async def requestheaders(self, flow: HTTPFlow) -> None:
        await self._wait("requestheaders", flow)

    async def request(self, flow: HTTPFlow) -> None:
        await self._wait("request", flow)

    async def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        flow.response.stream = True
        await self._wait("responseheaders", flow)

    async def response(self, flow: HTTPFlow) -> None:
        await self._wait("response", flow)


async def answer_in_pieces(peer: Peer) -> None:
    while await peer.request():
        await peer.say(SSE_HEAD)
        for piece in PIECES:
            await peer.say(piece)
            await asyncio.sleep(0)
        await peer.say(LAST_CHUNK)


@pytest.mark.parametrize("hook", HOOKS)
async def test_events_during_a_waiting_hook_follow_in_order(tmp_path: Path, hook: str) -> None:
    addon = Waiting(hook)
    whole = post(b"x" * 5000)
    async with (
        raw_upstream(answer_in_pieces) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        for at in range(0, len(whole), 500):
            await client.say(whole[at : at + 500])
            await asyncio.sleep(0.001)
        await until(lambda: addon.log[-1:] == [hook])
        await asyncio.sleep(0.01)  # more comes meanwhile
        addon.go_on.set()
        assert (await client.answer()).body == BODY
        assert (await client.ask(whole)).body == BODY
        assert [one.body for one in upstream.requests] == [b"x" * 5000] * 2
        assert addon.log == HOOKS * 2


async def test_a_stream_is_found_by_its_flow_until_it_ends(tmp_path: Path) -> None:
    addon = Waiting("response")
    async with (
        raw_upstream(answer_in_pieces) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        await client.say(post(b"{}"))
        await until(lambda: addon.log[-1:] == ["response"])
        flow = addon.flows[0]
        stream = stream_of(flow)
        assert stream
        assert stream.flow is flow
        assert open_streams() == [stream]
        assert stream_of(flow.copy()) is None
        del stream
        addon.go_on.set()
        await client.answer()
        await until(lambda: gc.collect() >= 0 and stream_of(flow) is None)
        assert open_streams() == []
        assert open_streams() == []


def test_a_flow_without_a_connection_has_no_stream() -> None:
    flow = tflow()
    assert stream_of(flow) is None
    assert stream_of(copy.deepcopy(flow)) is None
