"""What streams of a forward proxy do when nothing decides for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.safe.interceptor import (
    install_interceptor,
    interceptor,
    is_direct,
)
from tests.adapters.mitmproxy.forward.intercepting import between, call, not_found


async def test_without_an_interceptor_all_traffic_is_judged_as_mcp(tmp_path: Path) -> None:
    """So nothing passes unjudged; what is no MCP is refused."""
    async with between(tmp_path) as it:
        assert interceptor() is not None
        install_interceptor(None)
        assert json.loads((await it.send(call("delete_file"))).body) == not_found("delete_file")
        assert (await it.send(b"other")).status == 400
        assert (await it.send(call("read_file"))).status == 200
        assert [one.body for one in it.upstream.raw.requests] == [call("read_file")]


@pytest.mark.parametrize("host", ["localhost", "mcp.example"])
def test_without_an_interceptor_no_host_is_direct(host: str) -> None:
    """Every host is reached through the proxy behind us."""
    install_interceptor(None)
    assert is_direct(host) is False
