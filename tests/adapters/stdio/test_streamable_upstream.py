"""An upstream that answers each POST itself; every byte it says is chosen here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.stdio.http_upstream import StreamableUpstream
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from tests.adapters.stdio.url_listener import UrlListener
from tests.make import answering, asking
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    RawUpstream,
    Script,
    answer,
    chunk,
    free_port,
    raw_upstream,
)

ANSWER = answering("{}", id="1")
ASK = asking("ping")


def in_turn(*responses: bytes) -> Script:
    """Answer one request after the other, whatever connection they come on."""
    left = list(responses)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(left.pop(0))

    return script


def stream(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(chunk(event + b"\n\n") for event in events) + LAST_CHUNK


@asynccontextmanager
async def reached(
    script: Script, limits: Limits | None = None
) -> AsyncIterator[tuple[StreamableUpstream, UrlListener, RawUpstream]]:
    listener = UrlListener()
    async with raw_upstream(script) as upstream:
        http = HttpClient(parse_origin(upstream.url), resends=False)
        ours = StreamableUpstream(http, "/mcp", listener, limits or Limits())
        try:
            yield ours, listener, upstream
        finally:
            await ours.close()
            await http.close()


@pytest.mark.parametrize("said", [answer(ANSWER), stream(b"data: " + ANSWER)])
async def test_an_answer_keeps_its_bytes(said: bytes) -> None:
    async with reached(in_turn(said)) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        assert (listener.heard, listener.failed) == ([ANSWER], [])


@pytest.mark.parametrize(
    ("location", "heard", "failed"),
    [
        ("/there", [ANSWER], []),
        (
            "http://elsewhere.example/mcp",
            [],
            [(("1",), -32603, "HTTP 307 Go: redirected to http://elsewhere.example/mcp")],
        ),
    ],
)
async def test_a_redirect_is_followed_at_the_same_origin_only(
    location: str, heard: list[bytes], failed: list[object]
) -> None:
    moved = answer(b"", status="307 Go", kind=f"a/b\r\nLocation: {location}")
    async with reached(in_turn(moved, answer(ANSWER))) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        assert (listener.heard, listener.failed, listener.problems) == (heard, failed, [])


async def test_later_requests_name_the_session_and_the_revision() -> None:
    opened = answer(ANSWER, kind="application/json\r\nMcp-Session-Id: s1")
    async with reached(in_turn(opened, answer(ANSWER), answer(b""))) as (ours, _, upstream):
        await ours.post(asking("initialize"), ["1"], [], method="initialize")
        ours.agree_on("2025-11-25")
        await ours.post(ASK, ["1"], [(b"x-more", b"1")])
    first, second, last = upstream.requests
    assert first.all("mcp-session-id") == []
    assert second.all("mcp-session-id") == last.all("mcp-session-id") == ["s1"]
    assert second.all("mcp-protocol-version") == ["2025-11-25"]
    assert second.all("x-more") == ["1"]
    assert last.line == "DELETE /mcp HTTP/1.1"


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (answer(b"", status="202 Accepted", kind="a/b"), (-32603, "The server sent no answer")),
        (answer(b"", status="500 Oh\tno"), (-32603, "The server answered HTTP 500 Oh\\tno")),
        (answer(b"", status="404 Not Found"), (-32601, "Method not found")),
        (answer(b"x" * 2000), (-32603, "The answer is longer than 1000 bytes")),
    ],
)
async def test_a_request_without_an_answer_gets_an_error(
    said: bytes, failure: tuple[int, str]
) -> None:
    async with reached(in_turn(said), Limits(message=1000)) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        [(ids, code, text)] = listener.failed
        assert ids == ("1",)
        assert code == failure[0]
        assert failure[1] in text
        assert listener.problems == []


async def test_an_error_in_a_refusal_reaches_the_request_that_it_is_for() -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}'
    async with reached(in_turn(answer(body, status="400 Bad Request"))) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        assert listener.heard == [
            b'{"jsonrpc":"2.0","id":1,"error":{"code": -32000, "message": "no"}}'
        ]
        assert listener.failed == []


async def test_an_ended_session_is_reported_as_such() -> None:
    opened = answer(ANSWER, kind="application/json\r\nMcp-Session-Id: s1")
    gone = answer(b"", status="404 Not Found")
    async with reached(in_turn(opened, gone, gone)) as (ours, listener, _):
        await ours.post(asking("initialize"), ["1"], [], method="initialize")
        await ours.post(ASK, ["2"], [])
        assert listener.failed == [(("2",), -32600, "Session terminated")]


async def test_a_broken_stream_is_resumed_where_it_ended() -> None:
    first = stream(b"id: 7\nretry: 1\ndata: ")
    async with reached(in_turn(first, stream(b"data: " + ANSWER))) as (ours, listener, upstream):
        await ours.post(ASK, ["1"], [])
        assert listener.heard == [ANSWER]
    assert upstream.requests[1].line == "GET /mcp HTTP/1.1"
    assert upstream.requests[1].all("last-event-id") == ["7"]


async def test_an_upstream_without_resumption_is_not_asked_again() -> None:
    first = stream(b"id: 7\nretry: 1\ndata: ")
    refused = answer(b"", status="405 No")
    async with reached(in_turn(first, refused)) as (ours, listener, upstream):
        await ours.post(ASK, ["1"], [])
        assert listener.failed == [(("1",), -32603, "The server sent no answer")]
    assert len(upstream.requests) == 2


async def test_only_the_beginning_of_an_event_that_is_too_long_is_kept() -> None:
    long = b'data: {"jsonrpc":"2.0","id":1,' + b"x" * 3000
    async with reached(in_turn(stream(long)), Limits(pending=1000)) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        [cut] = listener.heard
        assert isinstance(cut, CutLine)
        assert cut.beginning.startswith(b'data: {"jsonrpc"')


async def test_a_lost_upstream_fails_the_request_and_is_reported() -> None:
    listener = UrlListener()
    http = HttpClient(parse_origin(f"http://127.0.0.1:{free_port()}"), resends=False)
    await StreamableUpstream(http, "/mcp", listener, Limits()).post(ASK, ["1"], [])
    assert listener.failed == [(("1",), -32000, "Upstream connection lost: Connection refused")]
    assert listener.problems == ["NotConnected: Connection refused"]


async def test_unrequested_messages_of_the_upstream_are_heard() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message"}'

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD)
        await peer.say_event(note)
        await peer.left()

    async with reached(script) as (ours, listener, upstream):
        ours.listen()
        ours.listen()  # there is one stream
        async with asyncio.timeout(20):
            while not listener.heard:
                await asyncio.sleep(0.001)
        assert listener.heard == [note]
        assert [request.line for request in upstream.requests] == ["GET /mcp HTTP/1.1"]
