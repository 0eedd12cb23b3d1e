"""How a stream under way is ended or cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.streams import cut, end, inject, open_flows
from tests.adapters.mitmproxy.forward.open_streams import OURS, endless, opened, pairs
from tests.adapters.mitmproxy.forward.streaming import FIRST, Streaming, before
from tests.raw_client import get, h2_client, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, answer, chunk


@pairs
async def test_an_ended_stream_ends_well_for_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        assert end(addon.flows[0], OURS)
        await stream.see(OURS)
        assert await stream.rest()
        await stream.left()
        assert addon.responses == addon.flows
        assert addon.errors == []
        assert open_flows() == []


@pairs
async def test_a_cut_stream_ends_badly_for_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        cut(addon.flows[0], "enough")
        assert not await stream.rest()
        await stream.left()
        assert addon.responses == []
        assert addon.errors == ["enough"]
        assert open_flows() == []


async def test_only_one_of_several_streams_is_cut(tmp_path: Path) -> None:
    addon = Streaming()
    async with before(endless, addon, tmp_path) as running, h2_client(running.port) as client:
        numbers = [client.ask("GET") for _ in range(3)]
        for number in numbers:
            await client.until(number, lambda it: FIRST in it.data)
        cut(addon.flows[1])
        resets = [number for number in numbers if client.streams[number].reset is not None]
        while not resets:
            await client.read()
            resets = [n for n in numbers if client.streams[n].reset is not None]
        assert len(resets) == 1
        for flow in (addon.flows[0], addon.flows[2]):
            assert inject(flow, OURS)
        for number in set(numbers) - set(resets):
            await client.until(number, lambda it: OURS in it.data)


@pytest.mark.parametrize("body", [b"", b"data: theirs\n\n"])
@pytest.mark.parametrize("client", ["h1", "h2"])
async def test_a_response_can_be_ended_before_it_begins(
    client: str, body: bytes, tmp_path: Path
) -> None:
    """In the ``responseheaders`` hook: what body the upstream sends is then of no account."""

    class Refusing(Streaming):
        def responseheaders(self, flow: HTTPFlow) -> None:
            super().responseheaders(flow)
            assert flow.response
            flow.response.headers.pop("content-length")
            if client == "h1":
                flow.response.headers["transfer-encoding"] = "chunked"
            assert end(flow, OURS)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(body, kind="text/event-stream"))
        await peer.left()

    addon = Refusing(on_chunk=lambda _flow, _data: [])
    async with before(script, addon, tmp_path) as running:
        if client == "h1":
            async with raw_client(running.port) as h1:
                assert (await h1.ask(get())).body == OURS
        else:
            async with h2_client(running.port) as h2:
                assert (await h2.over(h2.ask("GET"))).data == OURS
        assert addon.responses == addon.flows


@pytest.mark.parametrize("when", ["chunk", "end"])
async def test_a_stream_can_be_ended_from_inside(when: str, tmp_path: Path) -> None:
    def judge(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if bool(data) is (when == "chunk"):
            end(flow, OURS)
        return []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(FIRST) + LAST_CHUNK)
        await peer.left()

    addon = Streaming(on_chunk=judge)
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        assert (await client.ask(get())).body == OURS


@pytest.mark.parametrize("when", ["chunk", "end"])
async def test_a_stream_can_be_cut_from_inside(when: str, tmp_path: Path) -> None:
    """The upstream's last bytes may come with the ones that we cannot judge."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(FIRST) + LAST_CHUNK)
        await peer.left()

    def judge(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if bool(data) is (when == "chunk"):
            cut(flow)
        return []

    addon = Streaming(on_chunk=judge)
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.head()
        assert await client.rest() == b""
        assert addon.responses == []


async def test_cutting_resets_the_connection_where_closing_would_complete_the_answer(
    tmp_path: Path,
) -> None:
    addon = Streaming()
    request = get().replace(b"HTTP/1.1", b"HTTP/1.0")
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(request)
        await client.until(FIRST)
        cut(addon.flows[0])
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_a_response_with_a_content_length_cannot_be_ended_early(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"data: whole\n\n", kind="text/event-stream")[:-3])
        await peer.left()

    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.until(b"data: whol")
        assert not end(addon.flows[0], OURS)
        cut(addon.flows[0])
        assert await client.rest() == b""
