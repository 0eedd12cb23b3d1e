"""The hooks in a real mitmproxy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy import addon
from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import DELETE, READ
from tests.mcp_upstream import mcp_upstream
from tests.proxy import proxy
from tests.raw_client import raw_client
from tests.raw_upstream import TIMEOUT


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("reverse:{}", b""),
        ("reverse:{}", b"\x16\x03\x01\x02\0\x01"),
        ("regular", b""),
        ("regular", b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n"),
    ],
    ids=["nothing", "half a TLS handshake", "nothing to a proxy", "nothing in a tunnel"],
)
async def test_a_client_that_stays_silent_is_disconnected(
    tmp_path: Path, mode: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not know it yet, and mitmproxy would wait for a year."""
    monkeypatch.setattr(addon, "_SECONDS_BETWEEN_TICKS", 0.02)
    tool_filter = ToolFilter()
    async with (
        mcp_upstream(tools=[READ, DELETE]) as upstream,
        proxy(tool_filter, to=[mode.format(upstream.url)], home=tmp_path) as running,
        raw_client(running.port) as client,
        raw_client(running.port) as other,
    ):
        await client.say(said)
        if said.startswith(b"CONNECT"):
            assert b" 200 " in await client.head()
        await other.say(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nslowly")
        seats = tool_filter.proxy.crowd.seats
        async with asyncio.timeout(TIMEOUT):
            while len(seats) < 2:
                await asyncio.sleep(0.01)
        clock = seats.clock
        monkeypatch.setattr(seats, "clock", lambda: clock() + 121)
        async with asyncio.timeout(TIMEOUT):
            assert await client.reader.read() == b""
        assert not other.reader.at_eof()  # the engine waits for its body
