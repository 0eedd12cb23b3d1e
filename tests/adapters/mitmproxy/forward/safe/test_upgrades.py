"""After an answer of 101 there are WebSocket messages, and never a raw tunnel."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.streams import cut, end, inject
from tests.adapters.mitmproxy.forward.open_streams import OURS
from tests.adapters.mitmproxy.forward.streaming import Streaming, before
from tests.raw_client import get, raw_client
from tests.raw_upstream import Peer


async def test_a_websocket_takes_mitmproxys_injections_only(tmp_path: Path) -> None:
    """mitmproxy's own injection reaches it; ours does not; a cut hangs up."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        )
        await peer.say(b"\x81\x06theirs")
        await peer.left()

    upgrade = (
        b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )

    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get(headers=upgrade))
        await client.until(b"\x81\x06theirs")
        flow = addon.flows[0]
        assert not inject(flow, OURS)
        assert not end(flow)
        running.master.commands.call("inject.websocket", flow, True, b"ours", True)
        await client.until(b"\x81\x04ours")
        cut(flow)
        assert b"ours" not in await client.rest()


@pytest.mark.parametrize("websocket", [True, False])
async def test_no_connection_becomes_a_raw_tunnel(websocket: bool, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %s\r\n\r\n"
            % (b"websocket" if websocket else b"mcp")
        )
        await peer.say(b"unfiltered")
        await peer.left()

    addon = Streaming()
    async with (
        before(script, addon, tmp_path, websocket=False) as running,
        raw_client(running.port) as client,
    ):
        upgrade = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        await client.say(get(headers=upgrade) + b"raw")
        assert b"unfiltered" not in await client.rest()
