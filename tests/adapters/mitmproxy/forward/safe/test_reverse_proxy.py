"""Every connection to a reverse proxy is read by us, whatever other addons choose."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from mcp_tool_filter.adapters.mitmproxy.forward.streams import inject
from tests.adapters.mitmproxy.forward.open_streams import OURS, endless, h1_stream
from tests.adapters.mitmproxy.forward.streaming import Streaming, before
from tests.adapters.mitmproxy.forward.upstream_failures import ok
from tests.proxy import certified, proxy
from tests.raw_client import get, raw_client
from tests.raw_upstream import raw_upstream


async def test_the_order_of_the_next_layer_hooks_does_not_matter(tmp_path: Path) -> None:
    """mitmproxy's own addon, which comes after us with ``-s``, comes before others."""

    addon = Streaming()
    async with before(endless, addon, tmp_path) as running:
        chain = running.master.addons.chain
        chain.remove(addon)
        chain.append(addon)
        async with h1_stream(running.port, tls=True) as stream:
            assert inject(addon.flows[0], OURS)
            await stream.see(OURS)


async def test_http_3_connections_are_closed(tmp_path: Path) -> None:
    """mitmproxy would ask the upstream by QUIC, and we would take it for lost."""
    quic = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, idle_timeout=0.5
    )

    addon = Streaming()
    async with (
        raw_upstream(ok, tls=certified(tmp_path)) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
    ):
        with pytest.raises(ConnectionError):
            async with connect("127.0.0.1", running.port, configuration=quic):
                pass
        assert (addon.requests, addon.connects) == ([], 0)
        async with raw_client(running.port) as client:
            assert (await client.ask(get())).body == b"fine"
