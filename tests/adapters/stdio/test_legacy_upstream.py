"""HTTP+SSE: all answers come on one stream, and with it the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed
from mcp_tool_filter.adapters.stdio.http_upstream import LegacyUpstream
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.protocol.limits import Limits
from tests.adapters.stdio.url_listener import UrlListener
from tests.make import answering, asking
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
    RawRequest,
    RawUpstream,
    Script,
    answer,
    chunk,
    raw_upstream,
)

ENDPOINT = chunk(b"event: endpoint\ndata: /messages?id=1\n\n")
ACCEPTED = answer(b"", status="202 Accepted", kind="a/b")
ANSWER = answering("{}", id="1")


class Sse:
    """Answers what is posted on the stream."""

    def __init__(self, post: Callable[[RawRequest], bytes] = lambda _: ACCEPTED) -> None:
        self._post = post
        self.stream: Peer | None = None

    async def __call__(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET"):
                self.stream = peer
                await peer.say(SSE_HEAD + ENDPOINT)
                await peer.left()
                return
            await peer.say(self._post(request))
            assert self.stream
            await self.stream.say_event(ANSWER)


@asynccontextmanager
async def reached(
    script: Script,
) -> AsyncIterator[tuple[LegacyUpstream, UrlListener, RawUpstream]]:
    listener = UrlListener()
    async with raw_upstream(script) as upstream:
        http = HttpClient(parse_origin(upstream.url), resends=False)
        ours = LegacyUpstream(http, "/sse", listener, Limits())
        try:
            yield ours, listener, upstream
        finally:
            await ours.close()
            await http.close()


async def test_a_post_is_answered_on_the_stream() -> None:
    async with reached(Sse()) as (ours, listener, upstream):
        await ours.open()
        ours.agree_on("2024-11-05")
        await ours.post(asking("ping"), ["1"], [])
        async with asyncio.timeout(20):
            while not listener.heard:
                await asyncio.sleep(0.001)
        assert (listener.heard, listener.failed) == ([ANSWER], [])
    posted = upstream.requests[1]
    assert posted.line == "POST /messages?id=1 HTTP/1.1"
    assert posted.all("mcp-protocol-version") == ["2024-11-05"]


async def test_a_refused_post_fails_its_request_only() -> None:
    refuse = Sse(lambda _: answer(b"", status="500 No"))
    async with reached(refuse) as (ours, listener, _):
        await ours.open()
        await ours.post(asking("ping"), ["5"], [])
        assert listener.failed == [(("5",), -32603, "The server answered HTTP 500 No")]
        assert listener.problems == []


async def test_the_end_of_the_stream_is_the_end_of_the_session() -> None:
    script = Sse()
    async with reached(script) as (ours, listener, _):
        await ours.open()
        assert script.stream
        await script.stream.say(LAST_CHUNK)
        await listener.was_missed.wait()
        assert listener.problems == ["StreamEnded: The event stream has ended"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(b""), "HTTP 200 OK with application/json: that is not MCP"),
        (SSE_HEAD + LAST_CHUNK, "The event stream ended without an endpoint event"),
        (
            SSE_HEAD + chunk(b"event: endpoint\ndata: http://evil.example/x\n\n"),
            "The endpoint event names another origin: http://evil.example/x",
        ),
    ],
)
async def test_a_stream_without_an_endpoint_has_a_reason(said: bytes, why: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)
        await peer.left()

    async with reached(script) as (ours, _, _):
        with pytest.raises(HttpFailed) as caught:
            await ours.open()
        assert str(caught.value) == why
