"""Our HTTP client asks a real server on loopback, whose every byte the test has chosen."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed, NotConnected, Via
from mcp_tool_filter.http.urls import Origin, parse_origin
from tests.adapters.upstream.fetching import get, got, saying
from tests.proxy import certified
from tests.raw_client import trusting
from tests.raw_upstream import LAST_CHUNK, Peer, answer, chunk, raw_upstream

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EARLY = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
TOO_LONG, CLOSED = "The answer is longer than 1000 bytes", "Connection closed by upstream"
UNREADABLE = "The compressed answer cannot be read: "


def coded(coding: str, body: bytes) -> bytes:
    return answer(body, kind=f"a/b\r\nContent-Encoding: {coding}")


@pytest.mark.parametrize(
    "response",
    [
        answer(b"hello"),
        CHUNKED + chunk(b"hel") + chunk(b"lo") + LAST_CHUNK,
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        EARLY + answer(b"hello"),
        coded("GZIP", gzip.compress(b"hello")),
        coded("deflate", zlib.compress(b"hello")),
        coded("identity", b"hello"),
    ],
)
async def test_a_body_is_read_however_it_is_framed(response: bytes) -> None:
    assert await got(saying(response)) == b"hello"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (answer(b"x" * 1001), TOO_LONG),
        (coded("gzip", gzip.compress(b"x" * 10_000_000)), TOO_LONG),
        (coded("gzip", gzip.compress(b"x" * 10_000)), f"{UNREADABLE}longer than 1000 bytes when"),
        (coded("gzip", b"hello"), f"{UNREADABLE}not valid gzip"),
        (coded("rot13", b"hello"), f"{UNREADABLE}a content coding that is not accepted"),
        (answer(b"hello")[:-1], CLOSED),
        (b"HTTP/1.1 200 OK\r\nContent-Le", CLOSED),
        (b"", CLOSED),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "Not a valid HTTP answer: not a status line"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "Not a valid HTTP answer: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "Not a valid HTTP"),
    ],
)
async def test_an_answer_that_cannot_be_read_has_a_reason(response: bytes, said: str) -> None:
    with pytest.raises(HttpFailed) as caught:
        await got(saying(response))
    assert str(caught.value).startswith(said)
    assert "bytearray" not in str(caught.value)


async def test_an_endless_body_is_refused() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED)
        while True:
            await peer.say(chunk(b"x" * 1_000_000))

    with pytest.raises(HttpFailed, match="longer than 1000 bytes"):
        await got(endless)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async def twice(client: HttpClient) -> bytes:
        return await get(client) + await get(client)

    assert await got(saying(answer(b"1"), answer(b"2")), twice) == b"12"


@pytest.mark.parametrize(
    "first",
    [
        answer(b"1"),  # closed without a word
        answer(b"1", kind="a/b\r\nConnection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
    ],
)
async def test_a_closed_connection_is_replaced_for_the_next_request(first: bytes) -> None:
    """An upstream that closes an idle connection has not heard the request: it is sent again."""

    async def twice(client: HttpClient) -> bytes:
        before = await get(client)
        await asyncio.sleep(0.01)
        return before + await get(client)

    assert await got(saying(first), twice) == b"11"


async def test_a_request_with_a_partial_answer_is_not_sent_again() -> None:
    async def twice(client: HttpClient) -> bytes:
        await get(client)
        return await get(client)

    with pytest.raises(HttpFailed, match="Connection closed by upstream"):
        await got(saying(answer(b"1"), b"HTTP/1.1 2"), twice)


async def test_an_unread_response_costs_its_connection() -> None:
    async with raw_upstream(saying(answer(b"1"), answer(b"2"))) as upstream:
        client = HttpClient(parse_origin(upstream.url))
        async with client.exchange(b"GET", "/"):
            pass
        await get(client)
        await client.close()
        found = len(upstream.peers)
    assert found == 2


async def test_a_header_that_cannot_be_written_has_a_reason() -> None:
    async def use(client: HttpClient) -> bytes:
        async with client.exchange(b"GET", "/", [(b"x", b"a\r\nb")]) as response:
            return await response.read(1)

    with pytest.raises(HttpFailed, match="cannot be written as HTTP"):
        await got(saying(answer(b"")), use)


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


@pytest.mark.parametrize("is_tls", [False, True])
async def test_requests_go_over_a_proxy(is_tls: bool, tmp_path: Path) -> None:
    """Plain HTTP as a URL, TLS through a tunnel, also if the way to the proxy is TLS."""
    tls = certified(tmp_path)
    asked: list[bytes] = []

    async def script(peer: Peer) -> None:
        head = await peer.reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if head.startswith(b"CONNECT"):
            await peer.say(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
            await peer.writer.start_tls(tls)
            await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(answer(b"hello"))

    async with raw_upstream(script, tls=tls) as behind:
        origin = Origin("a.example", 443 if is_tls else 80, is_tls)
        via = Via(parse_origin(behind.url), trusting(), b"Basic dTpw")
        client = HttpClient(origin, tls=trusting(), via=via)
        assert await get(client) == b"hello"
        await client.close()
    [head] = asked
    assert head.startswith(b"CONNECT a.example:443 " if is_tls else b"GET http://a.example/ ")
    assert b"\r\nproxy-authorization: Basic dTpw\r\n" in head


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 407 Login\r\n\r\n", "the proxy opens no tunnel: HTTP/1.1 407 Login"),
        (b"SSH-2.0\r\n\r\n", "the proxy opens no tunnel: SSH-2.0"),
        (b"x" * 100_000, "the proxy opens no tunnel"),
        (b"", "the proxy opens no tunnel"),
    ],
)
async def test_a_proxy_without_a_tunnel_has_a_reason(said: bytes, why: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(said)
        peer.close()

    async with raw_upstream(script) as behind:
        via = Via(parse_origin(behind.url), None, None)
        client = HttpClient(Origin("a.example", 443, tls=True), tls=trusting(), via=via)
        with pytest.raises(NotConnected, match=why):
            await get(client)
