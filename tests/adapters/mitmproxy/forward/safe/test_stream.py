"""A stream callable that fails, or returns an empty chunk, leaves no client waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.streams import inject
from tests.adapters.mitmproxy.forward.open_streams import OURS, opened
from tests.adapters.mitmproxy.forward.streaming import Streaming


def stumble(_flow: HTTPFlow, _data: bytes) -> list[bytes]:
    raise RuntimeError


@pytest.mark.parametrize("on_chunk", [stumble, lambda _flow, _data: None], ids=["raises", "none"])
@pytest.mark.parametrize("pair", ["h1-h1", "h2-h2"])
async def test_a_failing_stream_callable_cuts_the_stream(
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
