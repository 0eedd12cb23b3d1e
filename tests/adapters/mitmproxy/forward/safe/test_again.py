"""A request that is sent to the upstream once more, with a header that no flow shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import install_last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import (
    choose_layer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import stream_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import (
    add_secretly,
    send_again,
    settle_answer,
)
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
async def test_a_refused_request_is_sent_again_over_http1(
    tmp_path: Path, refusal: str, waits: bool
) -> None:
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
async def test_a_refused_request_is_sent_again_over_http2(
    tmp_path: Path, resets: bool, waits: bool
) -> None:
    """Some servers reset a stream whose request they have not read completely."""
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


async def _gone_after_a_refusal(peer: Peer) -> None:
    await peer.request()
    peer.upstream._server.close()  # type: ignore[union-attr]  # it runs, for it called us
    await peer.say(REFUSALS["close"])
    peer.close()


async def test_the_request_fails_if_the_upstream_is_gone_by_then(tmp_path: Path) -> None:
    addon = Repeating(waits=True)
    async with (
        raw_upstream(_gone_after_a_refusal) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        assert (await client.ask(post(b"{}"))).status == 502


@pytest.mark.usefixtures("our_error_answers")
async def test_the_client_gets_our_error_if_the_upstream_is_gone_by_then(tmp_path: Path) -> None:
    addon = Repeating(waits=True)
    async with (
        raw_upstream(_gone_after_a_refusal) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        assert (await client.ask(post(b"{}"))).body == b"ours: connect-failed"


class Changing(Repeating):
    """Changes the request that is about to be sent once more."""

    def request(self, flow: HTTPFlow) -> None:
        super().request(flow)
        stream = stream_of(flow)
        assert stream
        stream.settle_request()

    async def response(self, flow: HTTPFlow) -> None:
        await super().response(flow)
        if flow.response and flow.response.status_code == 401:
            flow.request.content = b'{"changed":1}'
        settle_answer(flow)


class Refusing:
    """A last look that refuses what is not settled."""

    def judge_request_again(self, flow: HTTPFlow) -> None:
        flow.response = Response.make(403, b"refused")

    def judge_head_again(self, _flow: HTTPFlow) -> bool:
        return True

    def judge_answer_again(self, flow: HTTPFlow) -> None:
        settle_answer(flow)

    def may_say(self, _flow: HTTPFlow, _message: WebSocketMessage) -> bool:
        return True


@pytest.mark.parametrize("waits", [False, True])
async def test_a_request_changed_meanwhile_by_a_script_is_judged_again(
    tmp_path: Path, waits: bool
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(REFUSALS["length"])
        await peer.request()

    async with (
        raw_upstream(script) as upstream,
        proxy(Changing(waits=waits), to=upstream.url, home=tmp_path) as it,
        raw_client(it.port) as client,
    ):
        install_last_look(Refusing())
        got = await client.ask(post(b"{}"))
        install_last_look(None)
        assert (got.status, got.body) == (403, b"refused")
        assert [one.body for one in upstream.requests] == [b"{}"]
