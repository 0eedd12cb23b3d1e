"""One request of our HTTP client to an upstream whose every byte the test has chosen."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.sockets.client import HttpClient
from tests.raw_upstream import Peer, Script, raw_upstream

type Use = Callable[[HttpClient], Awaitable[bytes]]


async def get(client: HttpClient, limit: int = 1000) -> bytes:
    async with client.exchange(b"GET", "/") as response:
        return await response.read(limit)


async def got(
    script: Script,
    use: Use = get,
    tls: ssl.SSLContext | None = None,
    upstreams: ssl.SSLContext | None = None,
) -> bytes:
    """What a client reads from such an upstream."""
    async with raw_upstream(script, tls=upstreams) as upstream:
        client = HttpClient(parse_origin(upstream.url), tls=tls)
        try:
            return await use(client)
        finally:
            await client.close()


def saying(*responses: bytes) -> Script:
    """Answer each request of a connection with the next of these, then close it."""

    async def script(peer: Peer) -> None:
        for response in responses:
            await peer.request()
            await peer.say(response)
        peer.close()

    return script
