"""Trailers of HTTP/1 are dropped: they are not judged, and nothing depends on them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from h11 import Data, EndOfMessage, ProtocolError
from h11._receivebuffer import ReceiveBuffer
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.mitmproxy.forward.safe.http1 import LONGEST_TRAILERS, TrailerDropper
from tests.adapters.mitmproxy.filtered import call, filtered
from tests.make import chunks
from tests.mcp_upstream import RESULT
from tests.raw_client import MCP_HEADERS, post
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, chunk

HEAD = b"POST /mcp HTTP/1.1\r\n" + MCP_HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
TRAILERS = [
    b"X-Checksum: abc\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: evil.example\r\n",
    b"Mcp-Method: tools/list\r\nMcp-Name: delete_file\r\n",
    b"Mcp-Session-Id: stolen\r\nAuthorization: Bearer x\r\n",
    b"Connection: close\r\nUpgrade: websocket\r\nExpect: 100-continue\r\n",
    b"A:\r\nB: \xc3\xa4 \t:\r\nA: 2\r\n",
]
MALFORMED = {
    "bare LF": b"A: b\n\n",
    "a bare LF in a line": b"A: b\nC: d\r\n\r\n",
    "bare CR": b"A: b\rC: d\r\n\r\n",
    "a NUL": b"A: b\0\r\n\r\n",
    "no colon": b"A\r\n\r\n",
    "a space before the colon": b"A : b\r\n\r\n",
    "a folded line": b"A: b\r\n c\r\n\r\n",
    "a first line that is folded": b" A: b\r\n\r\n",
    "a request": b"POST /mcp HTTP/1.1\r\nHost: a\r\n\r\n",
    "too long": b"A: " + b"b" * LONGEST_TRAILERS + b"\r\n\r\n",
    "too long, without an end": b"A: b\r\n" * (LONGEST_TRAILERS // 6 + 1),
}


def chunked_call(name: str, trailers: bytes) -> bytes:
    return HEAD + chunk(call(name)) + b"0\r\n" + trailers + b"\r\n"


async def test_a_request_with_trailers_works_and_has_none_upstream(tmp_path: Path) -> None:
    async with filtered(tmp_path) as it:
        plain = await it.ask(call("read_file"))
        for trailers in TRAILERS:
            got = await it.client.ask(chunked_call("read_file", trailers))
            assert (got.status, got.body) == (200, RESULT) == (plain.status, plain.body)
        first, *asked = it.upstream.of("tools/call")
        assert [one.body for one in asked] == [call("read_file")] * len(TRAILERS)
        expected = set(first.head.splitlines()) - {b"Content-Length: %d" % len(first.body)}
        for one in asked:
            assert set(one.head.splitlines()) == expected | {b"Transfer-Encoding: chunked"}


async def test_trailers_do_not_change_what_a_request_is(tmp_path: Path) -> None:
    async with filtered(tmp_path) as it:
        for trailers in TRAILERS:
            got = await it.client.ask(chunked_call("delete_file", trailers))
            assert json.loads(got.body)["error"]["message"] == "Tool not found: delete_file"
        assert not it.upstream.of("tools/call")


async def test_a_request_after_trailers_is_judged(tmp_path: Path) -> None:
    async with filtered(tmp_path) as it:
        first = chunked_call("read_file", b"Content-Length: 400\r\n")
        await it.client.say(first + post(call("delete_file")) + post(call("read_file")))
        bodies = [(await it.client.answer()).body for _ in range(3)]
        assert bodies[0] == bodies[2] == RESULT
        assert json.loads(bodies[1])["error"]["message"] == "Tool not found: delete_file"
        assert len(it.upstream.of("tools/call")) == 2


async def test_trailers_may_come_in_any_pieces(tmp_path: Path) -> None:
    whole = chunked_call("read_file", b"A: b\r\nC: d\r\n")
    async with filtered(tmp_path) as it:
        for cut in range(len(whole) - 20, len(whole)):
            await it.client.say(whole[:cut])
            await asyncio.sleep(0.002)
            assert (await it.client.ask(whole[cut:])).body == RESULT


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_trailers_end_the_connection(tmp_path: Path, name: str) -> None:
    async with filtered(tmp_path) as it:
        await it.client.say(HEAD + chunk(call("read_file")) + b"0\r\n" + MALFORMED[name])
        assert await it.client.rest() == b""
        assert not it.upstream.of("tools/call")


JSON_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT = b"data: " + RESULT + b"\n\n"


@pytest.mark.parametrize(
    ("head", "body"), [(JSON_HEAD, RESULT), (SSE_HEAD, EVENT)], ids=["JSON", "events"]
)
async def test_an_answer_with_trailers_arrives_without_them(
    tmp_path: Path, head: bytes, body: bytes
) -> None:
    left = list(TRAILERS)

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(head + chunk(body) + b"0\r\n" + left.pop() + b"\r\n")

    async with filtered(tmp_path, respond=respond) as it:
        before = len(it.upstream.raw.peers)
        while left:
            got = await it.ask(call("read_file"))
            assert (got.status, got.body) == (200, body)
        assert len(it.upstream.raw.peers) <= before + 1  # all over one connection


@pytest.mark.parametrize("name", MALFORMED)
async def test_an_answer_with_malformed_trailers_is_an_error(tmp_path: Path, name: str) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(JSON_HEAD + chunk(RESULT) + b"0\r\n" + MALFORMED[name])

    async with filtered(tmp_path, respond=respond) as it:
        got = await it.ask(call("read_file"))
        said = json.loads(got.body)["error"]["message"]
        assert said == "The server sent an invalid response"


def read(pieces: list[bytes]) -> tuple[bytes, object, bytes]:
    """Return a body, how it ended, and what came behind it."""
    reader, buffer, body = TrailerDropper(), ReceiveBuffer(), b""
    for number, piece in enumerate(pieces):
        buffer += piece
        try:
            while (event := reader(buffer)) is not None:
                if isinstance(event, EndOfMessage):
                    assert not list(event.headers)
                    return body, "end", bytes(buffer) + b"".join(pieces[number + 1 :])
                assert isinstance(event, Data)
                body += bytes(event.data)
        except ProtocolError:
            return body, "error", b""
    return body, "open", b""


@pytest.mark.parametrize("trailers", [b"\r\n", *(one + b"\r\n" for one in TRAILERS)])
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_chunk_boundaries_do_not_matter(trailers: bytes, sizes: list[int]) -> None:
    whole = b"3\r\nabc\r\n0\r\n" + trailers + b"GET / HTTP/1.1\r\n"
    assert read(chunks(whole, sizes)) == (b"abc", "end", b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("name", MALFORMED)
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_malformed_trailers_are_refused_in_any_chunks(name: str, sizes: list[int]) -> None:
    whole = b"3\r\nabc\r\n0\r\n" + MALFORMED[name] + b"GET / HTTP/1.1\r\n\r\n"
    assert read(chunks(whole, sizes)) == (b"abc", "error", b"")
