"""A request that is sent to the upstream once more, with a header that no flow shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.layer import NextLayer

from mcp_tool_filter.adapters.mitmproxy.safe.reverse_proxy import (
    choose_layer,
)
from mcp_tool_filter.adapters.mitmproxy.streams import add_secretly, send_again
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import certified, proxy
from tests.raw_client import h2_client, post, raw_client
from tests.raw_upstream import Peer, answer, chunk, raw_upstream


class Repeating:
    """Adds a header to each request; sends it again with another where that is refused."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def request(self, flow: HTTPFlow) -> None:
        add_secretly(flow, "x-added", "1")

    async def response(self, flow: HTTPFlow) -> None:
        assert flow.response
        assert "x-added" not in flow.request.headers
        if flow.response.status_code == 401:
            add_secretly(flow, "x-added", "2")
            await asyncio.sleep(0.02 if self._waits else 0)
            send_again(flow)


REFUSALS = {
    "length": answer(b"no", status="401 No"),
    "chunks": b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(b"no")
    + b"0\r\n\r\n",
    "close": b"HTTP/1.1 401 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "end": b"HTTP/1.1 401 No\r\n\r\nno",
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_http1(tmp_path: Path, refusal: str, waits: bool) -> None:
    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.all("x-added") == ["2"]:
                await peer.say(answer(b"yes"))
                continue
            await peer.say(REFUSALS[refusal])
            if refusal in ("close", "end"):
                peer.close()
                return

    addon = Repeating(waits=waits)
    async with (
        raw_upstream(script) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        for _ in range(3):
            got = await client.ask(post(b'{"a":1}'))
            assert (got.status, got.body) == (200, b"yes")
        assert [request.body for request in upstream.requests] == [b'{"a":1}'] * 6
        assert [request.all("x-added") for request in upstream.requests] == [["1"], ["2"]] * 3


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("resets", [False, True])
async def test_http2(tmp_path: Path, resets: bool, waits: bool) -> None:
    """Some servers reset a stream whose request they have not read to its end."""
    added: list[bytes] = []

    async def script(stream: UpstreamStream) -> None:
        added.append(stream.headers[b"x-added"])
        if added[-1] == b"2":
            stream.head([(b":status", b"200")])
            stream.say(b"yes")
            stream.end()
            return
        stream.head([(b":status", b"401")], end=True)
        if resets:
            stream.reset_once_more()

    addon = Repeating(waits=waits)
    async with (
        h2_upstream(script, tls=certified(tmp_path)) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        h2_client(it.port) as client,
    ):
        asked = [client.ask(body=b"{}") for _ in range(5)]
        for number in [*asked, client.ask(body=b"{}")]:
            stream = await client.over(number)
            assert (stream.headers[b":status"], stream.data) == (b"200", b"yes")
        assert sorted(added) == [b"1"] * 6 + [b"2"] * 6


async def test_an_upstream_that_is_gone_by_then_fails_the_request(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.upstream._server.close()  # type: ignore[union-attr]  # it runs, for it called us
        await peer.say(REFUSALS["close"])
        peer.close()

    addon = Repeating(waits=True)
    async with (
        raw_upstream(script) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        assert (await client.ask(post(b"{}"))).status == 502
