"""WebSockets: each message is judged, and no other upgrade is let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.mitmproxy.filtered import (
    DELETE,
    INVALID_REQUEST,
    LIST,
    READ,
    call,
    filtered,
    not_found,
)
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_client import MCP_HEADERS, get
from tests.raw_upstream import Peer, RawRequest
from tests.websocket import accept, connect


class TestWebSockets:
    """No standard transport, but some servers have it: it is no way round."""

    @staticmethod
    async def upstream(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        while (heard := await socket.hear()) is not None:
            peer.requests.append(RawRequest(b"", heard))
            listed = tool_list([READ, DELETE], id="5")
            await socket.say(listed if b"tools/list" in heard else RESULT)

    async def test_both_sides_are_judged_message_by_message(self, tmp_path: Path) -> None:
        async with filtered(tmp_path, respond=self.upstream) as between:
            socket = await connect(between.client.reader, between.client.writer)
            for said, heard in [
                (call("delete_file", id="3"), not_found("delete_file", "3")),
                (call("read_file"), RESULT),
                (b"not json", INVALID_REQUEST),
                (LIST, tool_list([READ], id="5")),
            ]:
                await socket.say(said)
                assert await socket.hear() == heard
            reached = [one.body for one in between.upstream.raw.peers[-1].requests[1:]]
            assert reached == [call("read_file"), LIST]

    @pytest.mark.parametrize(
        "upgrade",
        [
            b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n",
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n",
            b"Upgrade: H2C, foo\r\nConnection: upgrade\r\n",
            b"Upgrade: anything\r\nConnection: Upgrade\r\n",
        ],
    )
    async def test_no_other_upgrade_reaches_the_upstream(
        self, tmp_path: Path, upgrade: bytes
    ) -> None:
        """What it leads to would be a raw tunnel."""

        async with filtered(tmp_path) as between:
            got = await between.client.ask(get(headers=MCP_HEADERS + upgrade))
            assert got.status == 200
            (request,) = between.upstream.asked
            assert request.all("upgrade") == request.all("http2-settings") == []

    async def test_an_unrequested_101_is_refused(self, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
            await peer.left()

        async with filtered(tmp_path, respond=respond) as between:
            assert (await between.client.ask(get())).status == 502
