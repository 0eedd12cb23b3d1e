"""What mitmproxy shows an addon of a strange request head, and what it refuses by itself.

We judge ``flow.request.headers.fields``; were mitmproxy to tidy them up before, a test here fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response

from tests.adapters.mitmproxy.forward.streaming import Streaming
from tests.proxy import proxy
from tests.raw_client import get, h2_client, post, raw_client
from tests.raw_upstream import Peer, raw_upstream


@dataclass
class Heads(Streaming):
    seen: list[tuple[tuple[bytes, bytes], ...]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def request(self, flow: HTTPFlow) -> None:
        self.seen.append(flow.request.headers.fields)
        self.targets.append(flow.request.path)
        flow.response = Response.make(200)


async def silent(peer: Peer) -> None:
    await peer.left()


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (b"A: b\r\n c\r\n", b"b\r\n c"),
        (b"A: b\r\n\tc\r\n", b"b\r\n c"),
        (b"A: b\rc\r\n", b"b\rc"),
        (b"A: b\rB: c\r\n", b"b\rB: c"),
        (b"A: b\0c\r\n", b"b\0c"),
        (b"A: \x1b[31m\x7f\r\n", b"\x1b[31m\x7f"),
        (b"A: \xc3\xa4\r\n", b"\xc3\xa4"),
    ],
    ids=["fold", "tab fold", "CR", "CR header", "NUL", "control", "UTF-8"],
)
async def test_an_unusual_header_value_is_seen_as_it_was_sent(
    sent: bytes, value: bytes, tmp_path: Path
) -> None:
    addon = Heads()
    async with (
        raw_upstream(silent) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(get(headers=b"Host: localhost\r\n" + sent))
        assert addon.seen[0][-1] == (b"A", value)


async def test_a_header_sent_twice_is_seen_twice(tmp_path: Path) -> None:
    addon = Heads()
    async with (
        raw_upstream(silent) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(get(headers=b"Host: localhost\r\nMcp-Name: a\r\nmcp-name: b\r\n"))
        assert addon.seen[0][1:] == ((b"Mcp-Name", b"a"), (b"mcp-name", b"b"))


async def test_a_bare_line_feed_ends_a_header_and_is_forwarded_as_crlf(tmp_path: Path) -> None:
    """So no upstream can read it otherwise than we do."""

    addon = Heads()
    async with (
        raw_upstream(silent) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(get(headers=b"Host: localhost\r\nA: b\nB: c\r\n"))
        assert addon.seen[0][1:] == ((b"A", b"b"), (b"B", b"c"))


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: +4\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding\x0b: chunked\r\n",
        b"Content-Length : 4\r\n",
        b"Content Length: 4\r\n",
        b"no colon\r\n",
    ],
)
async def test_a_head_that_could_hide_a_request_is_refused(headers: bytes, tmp_path: Path) -> None:
    addon = Heads()
    async with (
        raw_upstream(silent) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        request = post(b"", headers=b"Host: localhost\r\n" + headers)
        await client.say(request.replace(b"Content-Length: 0\r\n", b"") + b"0\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.rest() == b""
        assert addon.seen == []


@pytest.mark.parametrize(
    "header",
    [
        (b"a", b"b\r\nc"),
        (b"a", b"b\rc"),
        (b"a", b"b\nc"),
        (b"a", b"b\0c"),
        (b"A", b"upper case"),
        (b"a b", b"c"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"upgrade"),
    ],
    ids=str,
)
async def test_http_2_heads_that_http_1_would_misread_are_refused(
    header: tuple[bytes, bytes], tmp_path: Path
) -> None:
    addon = Heads()
    async with (
        raw_upstream(silent) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        h2_client(running.port) as client,
    ):
        number = client.ask("GET", headers=[header])
        while not client.closed and not client.streams[number].headers:
            await client.read()
        assert addon.seen == []
