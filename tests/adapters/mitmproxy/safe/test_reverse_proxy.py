"""Every connection to a reverse proxy is read by us, whatever other addons choose."""

from __future__ import annotations

from pathlib import Path

from mcp_tool_filter.adapters.mitmproxy.streams import inject
from tests.adapters.mitmproxy.open_streams import OURS, endless, h1_stream
from tests.adapters.mitmproxy.streaming import Streaming, before


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
