"""Forward proxies in a real mitmproxy: what is not MCP passes byte for byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.addon import ForwardFilter
from tests.adapters.mitmproxy.forward.intercepting import (
    JSON,
    Between,
    between,
    echo,
    request,
    tunnel,
    ways,
)
from tests.proxy import proxy
from tests.raw_client import raw_client
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    RawRequest,
    chunk,
    raw_upstream,
)

OTHERS = {
    "an upload": b"\x89PNG\r\n" + bytes(range(256)) * 1000,
    "JSON of a model's API": json.dumps(
        {"messages": [{"text": '{"jsonrpc": "2.0", "method": "tools/call"}'}], "method": "x"}
    ).encode(),
    "JSON-RPC of others": b'[{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[1]}]',
    "lines of JSON": b'{"index": {}}\n{"jsonrpc_errors": 2}\n',
    "an empty object": b"{}",
    "a form": b"a=1&method=tools/call",
    "text": b"hello jsonrpc tools/call",
}


@ways
@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS.keys())
async def test_other_traffic_passes_byte_for_byte(tmp_path: Path, way: str, body: bytes) -> None:
    """Its head too: nothing may reveal that there is a filter."""
    async with between(tmp_path, way, respond=echo) as it:
        headers = b"Content-Type: application/json\r\nAccept-Encoding: br\r\nRange: bytes=0-\r\n"
        for _ in range(2):  # on one connection
            assert (await it.send(body, path="/v1?a=%2F", headers=headers)).body == body
        [asked, _] = it.upstream.raw.requests
        assert asked.body == body
        expected = Between.written(it, body, "/v1?a=%2F", headers)
        assert (
            asked.head.lower()
            == expected.removesuffix(body)
            .replace(it.upstream.url.encode() + b"/v1", b"/v1")
            .lower()
        )


async def test_other_traffic_is_not_recorded(tmp_path: Path) -> None:
    recording = tmp_path / "recorded.flow"
    async with between(tmp_path, host="dump", respond=echo, save_stream_file=str(recording)) as it:
        await it.send(b'{"model": "private prompt"}', path="/v1")
        await it.send(request("ping", seen="yes"))
    assert b"private prompt" not in recording.read_bytes()
    assert b"seen" in recording.read_bytes()


async def test_a_large_download_is_not_buffered(tmp_path: Path) -> None:
    """Far more than a message may have, by a server that waits until the client has read."""
    read = asyncio.Event()

    async def respond(_asked: RawRequest, peer: Peer) -> None:
        size = 64 * 1024 * 1024
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        await peer.say(b"x" * 1024)
        await read.wait()
        for _ in range(64):
            await peer.say(b"x" * 1024 * 1024)

    options: dict[str, Any] = {"store_streamed_bodies": True}
    async with between(tmp_path, respond=respond, **options) as it:
        await it.client.say(it.written(b"", "/big", b"", "GET"))
        await it.client.head()
        assert len(await it.client.reader.readexactly(1024)) == 1024
        read.set()
        left = 64 * 1024 * 1024 - 1024
        while left:
            left -= len(await it.client.reader.read(left))


async def test_a_large_upload_of_json_is_not_buffered(tmp_path: Path) -> None:
    async with between(tmp_path, respond=echo, message_limit=["1MB"]) as it:
        body = b'{"messages": ["' + b"x" * 3_000_000 + b'"]}'
        assert (await it.send(body, path="/v1")).body == body


async def test_a_message_at_the_end_of_a_large_body_does_not_pass(tmp_path: Path) -> None:
    """The upstream must not get the whole of it."""
    async with between(tmp_path, respond=echo, message_limit=["1MB"]) as it:
        params = b'"params": {"name": "delete_file", "x": "' + b"x" * 3_000_000 + b'"}'
        body = b"{" + params + b', "method": "tools/call", "id": 1, "json\\u0072pc": "2.0"}'
        await it.client.say(it.written(body, "/v1", JSON))
        assert not await it.client.rest()
        assert not it.upstream.asked


async def test_event_streams_without_mcp_pass_at_once(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def respond(_asked: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(b'event: delta\ndata: {"tools": [1]}\n\n'))
        await go_on.wait()
        await peer.say(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)

    async with between(tmp_path, respond=respond) as it:
        for method, body in (("POST", b'{"stream": true}'), ("GET", b"")):
            go_on.clear()
            await it.client.say(it.written(body, "/v1", JSON, method))
            await it.client.head()
            assert await it.client.chunk() == b'event: delta\ndata: {"tools": [1]}\n\n'
            go_on.set()
            assert await it.client.chunks() == b"data: [DONE]\n\n"


async def test_other_protocols_pass_through_a_tunnel(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(b"SSH-2.0-server here\r\n")
        peer.writer.write(await peer.reader.readline())
        await peer.writer.drain()

    async with (
        raw_upstream(script) as upstream,
        proxy(ForwardFilter(), to=["regular"], home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await tunnel(client, upstream.url.partition("//")[2], None)
        await client.say(b"SSH-2.0-client HTTP here\r\n")
        assert await client.until(b"HTTP here\r\n") == (
            b"SSH-2.0-server here\r\nSSH-2.0-client HTTP here\r\n"
        )
