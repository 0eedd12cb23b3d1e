"""Who has gone is forgotten: no flow, stream or exchange stays behind, however a client left."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.exchange import LegacyStream
from mcp_tool_filter.session import Exchanges
from mcp_tool_filter.stream import FilteredStream
from tests.adapters.test_mitmproxy_addon import INITIALIZE, call, filtered
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk

_EVENT = chunk(b"event: endpoint\ndata: /messages?session=1\n\n")


async def _respond(request: RawRequest, peer: Peer) -> None:
    """Begin what has no end of its own; answer all else."""
    if b"read_file" in request.body or request.line.startswith("GET"):
        await peer.say(SSE_HEAD + _EVENT)
    else:
        await peer.say(answer(b'{"jsonrpc":"2.0","id":0,"result":{}}'))


def _left() -> int:
    gc.collect()
    kinds = (HTTPFlow, FilteredStream, LegacyStream, Exchanges)
    return sum(isinstance(one, kinds) for one in gc.get_objects())


@pytest.mark.parametrize(
    "asked",
    [get(path="/sse"), get(), post(call("read_file")), post(INITIALIZE), get()[:-9]],
    ids=["a stream of the older transport", "a stream", "a call", "well", "half a request"],
)
def test_a_client_that_leaves_is_forgotten(asked: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtered(tmp_path, respond=_respond) as between:

            async def come_and_go() -> None:
                async with raw_client(between.port) as client:
                    await client.say(asked)
                    if asked.endswith(b"\r\n\r\n") or not asked.startswith(b"GET"):
                        await client.head()
                await asyncio.sleep(0.05)

            await come_and_go()
            before = _left()
            for _ in range(5):
                await come_and_go()
            assert _left() - before < 5

    asyncio.run(scenario())
