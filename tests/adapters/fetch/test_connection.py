"""One connection to a real socket, and how it fails."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from tests.adapters.fetch.fetching import got
from tests.raw_upstream import Peer, answer


async def test_an_early_refusal_is_read_although_the_request_was_not_sent_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(answer(b"no", status="413 Too Large", kind="a/b\r\nConnection: close"))
        peer.close()

    async def post(client: HttpClient) -> bytes:
        async with client.exchange(b"POST", "/", body=b"x" * 50_000) as response:
            return b"%d" % response.status

    assert await got(script, post) == b"413"


async def test_a_reset_connection_has_a_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    with pytest.raises(HttpFailed, match="Connection reset by upstream"):
        await got(script)
