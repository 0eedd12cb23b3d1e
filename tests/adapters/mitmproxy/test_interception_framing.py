"""Forward proxies: bytes that only some servers read as a request, or no HTTP at all."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.intercepting import JSON, between, call, tunnel
from tests.proxy import proxy
from tests.raw_client import TIMEOUT, raw_client
from tests.raw_upstream import LAST_CHUNK, Peer, answer, chunk, raw_upstream


async def test_an_unusual_transfer_coding_is_refused(tmp_path: Path) -> None:
    async with between(tmp_path) as it:
        coded = gzip.compress(call("delete_file"))
        headers = JSON + b"Transfer-Encoding: gzip, chunked\r\n"
        await it.client.say(it.written(b"", "/mcp", headers) + chunk(coded) + LAST_CHUNK)
        assert b" 400 " in await it.client.head()
        assert not it.upstream.raw.requests


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_call_under_a_false_coding_is_refused_wherever_it_is_cut(
    tmp_path: Path, coding: bytes
) -> None:
    """Its first bytes alone could be those of compressed data, and some servers do not care."""
    async with between(tmp_path) as it:
        headers = JSON + b"Content-Encoding: " + coding + b"\r\nTransfer-Encoding: chunked\r\n"
        await it.client.say(it.written(b"", "/mcp", headers))
        body = call("delete_file")
        for part in (body[:5], body[5:]):
            await it.client.say(chunk(part))
            await asyncio.sleep(0.02)
        await it.client.say(LAST_CHUNK)
        assert b" 400 " in await it.client.head()
        assert not it.upstream.raw.requests


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n", b"H"])
async def test_a_server_that_speaks_first_cannot_open_a_bypass(
    tmp_path: Path, greeting: bytes
) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.write(greeting)
        await peer.writer.drain()
        await peer.request()
        await peer.say(answer(b"delete_file"))

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
        raw_client(running.port) as client,
    ):
        running.master.options.update(connection_strategy="eager")
        await tunnel(client, upstream.url.partition("//")[2], None)
        await asyncio.sleep(0.05)
        body = call("delete_file")
        head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.say(head + body)
        said = b"-"
        async with asyncio.timeout(TIMEOUT):
            while said and b"delete_file" not in said:  # an answer of ours, or the end
                said = await client.reader.read(65536)
        assert not upstream.requests


@pytest.mark.parametrize("line", [b"POST\x0b/mcp\x0bHTTP/1.1", b"POST /mcp RTSP/1.1"])
async def test_a_request_line_that_only_some_servers_read_does_not_pass(
    tmp_path: Path, line: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"reached"))

    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^delete_"]) as running,
        raw_client(running.port) as client,
    ):
        await tunnel(client, upstream.url.partition("//")[2], None)
        body = call("delete_file")
        await client.say(line + b"\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(TIMEOUT):
            said = await client.reader.read(65536)
        assert b"reached" not in said
        assert not upstream.requests


async def test_a_line_that_only_some_servers_see_does_not_pass(tmp_path: Path) -> None:
    """Python's http.server reads a length there, and the next request as this one's body."""
    async with between(tmp_path) as it:
        headers = b"X: y\rContent-Length: 100\r\n"
        await it.client.say(it.written(b"", "/other", headers, "GET"))
        assert b" 400 " in await it.client.head()
        assert not it.upstream.raw.requests


@pytest.mark.parametrize("wanted", [b"h2c", b"TLS/1.0, HTTP/1.1"])
async def test_no_connection_is_upgraded_to_http_that_we_do_not_read(
    tmp_path: Path, wanted: bytes
) -> None:
    async with between(tmp_path) as it:
        headers = b"Connection: Upgrade\r\nUpgrade: " + wanted + b"\r\n"
        await it.client.say(it.written(b"", "/other", headers, "GET"))
        await it.client.head()
        (seen,) = it.upstream.raw.requests
        assert not seen.all("Upgrade")


@pytest.mark.parametrize("is_named", [True, False])
async def test_what_is_neither_tls_nor_http_passes_only_to_named_hosts(
    is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        if await peer.reader.read(8) == b"SSH-2.0-":
            heard.set()
            await peer.say(b"SSH-2.0-there\r\n")
        await peer.left()

    hosts = {"raw_hosts": ["127.0.0.1,::1"]} if is_named else {}
    async with (
        raw_upstream(script) as upstream,
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^x"], **hosts) as running,
        raw_client(running.port) as client,
    ):
        host = upstream.url.partition("//")[2]
        await tunnel(client, host, None)
        await client.say(b"SSH-2.0-here\r\n")
        assert (b"SSH-2.0-there" in await client.reader.read(100)) is is_named
        assert heard.is_set() is is_named
    assert ("--raw-hosts" in caplog.text) is not is_named
