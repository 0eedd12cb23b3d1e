"""Nothing leaves HTTP/1.1: an upgrade, HTTP/2 and a tunnel are refused before anything passes."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.attacks.hosts import between, in_each_host
from tests.mcp_upstream import RESULT
from tests.raw_client import MCP_HEADERS, post, raw_client, trusting
from tests.raw_upstream import Peer, RawRequest, answer

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'
FINE, DENIED = CALL % b"read_file", CALL % b"wipe_disk"
KEY = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
FRAME = b"\x81\xc6\0\0\0\0" + DENIED
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n"
ACCEPTED = SWITCHED % b"websocket" + b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

ASKED = {
    "WebSocket": b"GET /ws HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n" + KEY,
    "WebSocket at the endpoint": b"GET /mcp HTTP/1.1\r\n%bConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: WebSocket\r\n" + KEY,
    "Connection twice": b"GET /mcp HTTP/1.1\r\n%bConnection: keep-alive\r\nConnection: upgrade\r\n"
    b"Upgrade: websocket\r\n" + KEY,
    "old WebSocket": b"GET /ws HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 8\r\n",
    "h2c": b"GET /mcp HTTP/1.1\r\n%bConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABk\r\n",
    "TLS": b"OPTIONS /mcp HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
    "unknown": b"POST /mcp HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: mcp\r\n",
    "HTTP/1.0": b"GET /mcp HTTP/1.0\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n",
    "CONNECT": b"CONNECT localhost:3000 HTTP/1.1\r\n%b",
    "CONNECT to a path": b"CONNECT /mcp HTTP/1.1\r\n%b",
}


@in_each_host
async def test_an_upgrade_gets_501_and_a_sentence(host: str, tmp_path: Path) -> None:
    async with between(host, tmp_path) as (upstream, it):
        before = len(upstream.asked)
        for name, head in ASKED.items():
            async with raw_client(it.port) as client:
                await client.say(head % MCP_HEADERS + b"\r\n" + FRAME + post(DENIED) + PREFACE)
                got = await client.answer()
                assert (got.status, b"no upgrade" in got.body) == (501, True), name
                assert await client.rest() == b"", name
        assert len(upstream.asked) == before
        async with raw_client(it.port) as client:
            assert (await client.ask(post(FINE))).body == RESULT


@in_each_host
async def test_a_body_of_an_upgrade_is_no_second_way(host: str, tmp_path: Path) -> None:
    async with between(host, tmp_path) as (upstream, it), raw_client(it.port) as client:
        before = len(upstream.asked)
        wants = MCP_HEADERS + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
        assert (await client.ask(post(FINE, headers=wants))).status == 501
        assert len(upstream.asked) == before


@in_each_host
async def test_the_field_alone_asks_for_nothing(host: str, tmp_path: Path) -> None:
    """RFC 9110, 7.8: without the word in Connection nobody may act on it."""
    async with between(host, tmp_path) as (upstream, it), raw_client(it.port) as client:
        assert (await client.ask(post(FINE, headers=MCP_HEADERS + b"Upgrade: h2c\r\n"))).body
        assert b"h2c" not in upstream.asked[-1].head


@in_each_host
@pytest.mark.parametrize("said", [SWITCHED % b"h2c" + b"\r\n", ACCEPTED], ids=["h2c", "WebSocket"])
async def test_an_upgrade_that_nobody_asked_for_is_refused(
    host: str, said: bytes, tmp_path: Path
) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(said + answer(b"wipe_disk"))
        await peer.left()

    async with (
        between(host, tmp_path, respond=respond) as (_, it),
        raw_client(it.port) as client,
    ):
        got = await client.ask(post(FINE))
        assert b"-32603" in got.body
        assert b"wipe_disk" not in got.body


def offering(*protocols: str) -> ssl.SSLContext:
    tls = trusting()
    tls.set_alpn_protocols(protocols)
    return tls


@in_each_host
async def test_a_tls_client_gets_http_1_1(host: str, tmp_path: Path) -> None:
    """A client that speaks only HTTP/2 agrees on nothing, and its first bytes are refused."""
    async with between(host, tmp_path) as (upstream, it):
        async with raw_client(it.port, tls=offering("h2", "http/1.1")) as client:
            tls = client.writer.get_extra_info("ssl_object")
            assert tls.selected_alpn_protocol() == "http/1.1"
            assert (await client.ask(post(FINE))).body == RESULT
        before = len(upstream.asked)
        async with raw_client(it.port, tls=offering("h2")) as client:
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            await client.say(PREFACE + post(DENIED))
            assert (await client.answer()).status == 400
        assert len(upstream.asked) == before
