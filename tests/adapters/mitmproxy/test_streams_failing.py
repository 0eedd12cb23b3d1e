"""A stream callable that fails, WebSockets, and connections that must not become raw tunnels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.streams import cut, end, inject
from tests.adapters.mitmproxy.open_streams import OURS, opened
from tests.adapters.mitmproxy.streaming import Streaming, before
from tests.raw_client import get, raw_client
from tests.raw_upstream import Peer


def stumble(_flow: HTTPFlow, _data: bytes) -> list[bytes]:
    raise RuntimeError


@pytest.mark.parametrize("on_chunk", [stumble, lambda _flow, _data: None], ids=["raises", "none"])
@pytest.mark.parametrize("pair", ["h1-h1", "h2-h2"])
async def test_a_stream_callable_that_fails_cuts_the_stream(
    on_chunk: Callable[[HTTPFlow, bytes], Any], pair: str, tmp_path: Path
) -> None:
    """mitmproxy would say that it has crashed, send nothing, and leave the client waiting."""

    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        addon.on_chunk = on_chunk
        inject(addon.flows[0], OURS)
        assert not await stream.rest()
        assert addon.errors == ["internal error"]


@pytest.mark.parametrize(
    "on_chunk", [lambda _f, _d: b"", lambda _f, d: [b"", d, b""]], ids=["bytes", "list"]
)
async def test_an_empty_chunk_is_not_the_end(
    on_chunk: Callable[[HTTPFlow, bytes], Any], tmp_path: Path
) -> None:
    """mitmproxy would write the chunk that ends an HTTP/1 body."""

    addon = Streaming()
    async with opened("h1-h1", tmp_path, addon) as (_, stream):
        flow = addon.flows[0]
        usual, addon.on_chunk = addon.on_chunk, on_chunk
        inject(flow, b"")
        addon.on_chunk = usual
        assert inject(flow, OURS)
        await stream.see(OURS)


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
