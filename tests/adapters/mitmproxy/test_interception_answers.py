"""Forward proxies: the older transport, GET streams and WebSockets are recognised and filtered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.intercepting import (
    DELETE,
    JSON,
    READ,
    between,
    call,
    not_found,
    request,
    tunnel,
)
from tests.mcp_upstream import RESULT, tool_list
from tests.proxy import proxy
from tests.raw_client import raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream
from tests.websocket import accept, connect


async def test_the_older_transport_is_recognised_by_its_first_event(tmp_path: Path) -> None:
    """Nothing in its GET says that it is MCP."""
    peers: list[Peer] = []

    async def respond(asked: RawRequest, peer: Peer) -> None:
        if asked.line.startswith("GET"):
            peers.append(peer)
            await peer.say(SSE_HEAD + chunk(b": hi\n\nevent: endpoint\ndata: /m?s=1\n\n"))
            return
        await peer.say(answer(b"", status="202 Accepted"))
        if b"read_file" in asked.body:
            await peers[0].say(chunk(b"data: " + RESULT + b"\n\n"))
        if b"resources/list" in asked.body:
            await peers[0].say(chunk(b"data: " + tool_list([READ, DELETE], id="7") + b"\n\n"))

    async with (
        between(tmp_path, respond=respond) as it,
        raw_client(it.proxy.port) as poster,
    ):
        host = it.upstream.url.partition("//")[2]
        await tunnel(poster, host, None)
        await it.client.say(it.written(b"", "/sse", b"Accept: text/event-stream\r\n", "GET"))
        await it.client.head()
        assert await it.client.until(b"data: /m?s=1\n\n")
        for body in (call("delete_file"), request("resources/list"), call("read_file")):
            got = await poster.ask(it.written(body, "/m?s=1", JSON))
            assert (got.status, got.body) == (202, b"")
        said = await it.client.until(RESULT + b"\n\n")
        assert b"Tool not found: delete_file" in said
        assert b"read_file" in said
        assert said.count(b"delete_file") == 1
        assert not [one for one in it.upstream.raw.requests if b"delete_file" in one.body]


async def test_no_url_is_rewritten(tmp_path: Path) -> None:
    """Clients call the upstream by its own name, and find us all the same."""
    urls: list[str] = []

    async def respond(asked: RawRequest, peer: Peer) -> None:
        urls.append(f"{it.upstream.url}/m")
        if asked.line.startswith("GET"):
            event = f"event: endpoint\ndata: {urls[0]}\n\n".encode()
            await peer.say(SSE_HEAD + chunk(event) + LAST_CHUNK)
        else:
            found = answer(RESULT).partition(b"\r\n")
            await peer.say(found[0] + f"\r\nLocation: {urls[0]}\r\n".encode() + found[2])

    async with between(tmp_path, respond=respond) as it:
        origin = b"Origin: https://page.example\r\nSec-Fetch-Site: cross-site\r\n"
        got = await it.send(call("read_file"), headers=JSON + origin)
        assert got.all("location") == [f"{it.upstream.url}/m"]
        await it.client.say(it.written(b"", "/sse", b"", "GET"))
        await it.client.head()
        assert f"data: {it.upstream.url}/m\n".encode() in await it.client.chunks()
        got = await it.send(call("delete_file"), path="/m")
        assert json.loads(got.body) == not_found("delete_file")


async def test_a_list_on_the_get_stream_of_an_endpoint_is_filtered(tmp_path: Path) -> None:
    async def respond(_asked: RawRequest, peer: Peer) -> None:
        listed = b"data: " + tool_list([READ, DELETE], id="7") + b"\n\n"
        await peer.say(SSE_HEAD + chunk(listed) + LAST_CHUNK)

    async with between(tmp_path, respond=respond) as it:
        for headers in (b"", b"Mcp-Session-Id: 1\r\n", b"Last-Event-ID: 1\r\n"):
            await it.client.say(it.written(b"", "/mcp", headers, "GET"))
            await it.client.head()
            said = await it.client.chunks()
            assert b"read_file" in said
            assert b"delete_file" not in said


@pytest.mark.parametrize("subprotocol", ["mcp", None])
async def test_mcp_on_a_websocket_is_filtered(tmp_path: Path, subprotocol: str | None) -> None:
    heard: list[bytes] = []

    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        there = await accept(peer.reader, peer.writer, head)
        while (text := await there.hear()) is not None:
            heard.append(text)
            await there.say(text if text == b"hello" else tool_list([READ, DELETE], id="7"))

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
        raw_client(running.port) as client,
    ):
        host = upstream.url.partition("//")[2]
        await tunnel(client, host, None)
        offered = [subprotocol] if subprotocol else []
        here = await connect(client.reader, client.writer, subprotocols=offered)
        if not subprotocol:
            await here.say(b"hello")
            assert await here.hear() == b"hello"
        await here.say(request("tools/list"))
        assert b"delete_file" not in (await here.hear() or b"")
        await here.say(call("delete_file"))
        assert json.loads(await here.hear() or b"") == not_found("delete_file")
    assert not [one for one in heard if b"delete_file" in one]
