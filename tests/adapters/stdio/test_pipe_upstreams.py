"""An upstream at a URL, as the pipe hears it; every byte that it says is chosen here.

``tests/cli/commands/test_pipe.py`` has more, with the whole program around it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from mcp_tool_filter.adapters.oauth.store import LoggedOut
from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import ConnectionLost, HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.stdio.pipe import (
    LegacyUpstream,
    Pipe,
    StreamableUpstream,
    reporting_failure,
    words_for,
)
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from tests.make import answering, asking
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    RawUpstream,
    Script,
    answer,
    chunk,
    raw_upstream,
)

ANSWER = answering("{}", id="1")
ASK = asking("ping")


@dataclass
class UrlListener:
    heard: list[bytes | CutLine] = field(default_factory=list)
    failed: list[tuple[tuple[str, ...], int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    was_missed: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, said: bytes | CutLine) -> None:
        self.heard.append(said)

    def waits_for(self, ids: Sequence[str]) -> bool:
        answered = [str(json.loads(one).get("id")) for one in self.heard if isinstance(one, bytes)]
        return not set(ids) <= {*answered, *(id for ids, *_ in self.failed for id in ids)}

    async def fail(self, ids: Sequence[str], code: int, text: str) -> None:
        if waiting := tuple(id for id in ids if self.waits_for([id])):
            self.failed.append((waiting, code, text))

    async def missed(self, error: HttpFailed) -> None:
        self.problems.append(f"{type(error).__name__}: {error}")
        self.was_missed.set()


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
async def reached[Kind: (StreamableUpstream, LegacyUpstream)](
    kind: type[Kind], script: Script, limits: Limits | None = None
) -> AsyncIterator[tuple[Kind, UrlListener, RawUpstream]]:
    listener = UrlListener()
    async with raw_upstream(script) as upstream:
        http = HttpClient(parse_origin(upstream.url), resends=False)
        ours = kind(http, "/mcp", cast("Pipe", listener), limits or Limits())
        try:
            yield ours, listener, upstream
        finally:
            await ours.close()
            await http.close()


def posting(
    *responses: bytes, limits: Limits | None = None
) -> AbstractAsyncContextManager[tuple[StreamableUpstream, UrlListener, RawUpstream]]:
    """Reach an upstream that answers each POST itself."""
    return reached(StreamableUpstream, in_turn(*responses), limits)


@pytest.mark.parametrize("said", [answer(ANSWER), stream(b"data: " + ANSWER)])
async def test_an_answer_keeps_its_bytes(said: bytes) -> None:
    async with posting(said) as (ours, listener, _):
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
    async with posting(moved, answer(ANSWER)) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        assert (listener.heard, listener.failed, listener.problems) == (heard, failed, [])


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
    async with posting(said, limits=Limits(message=1000)) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        [(ids, code, text)] = listener.failed
        assert ids == ("1",)
        assert code == failure[0]
        assert failure[1] in text
        assert listener.problems == []


async def test_an_error_in_a_refusal_reaches_the_request_that_it_is_for() -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}'
    async with posting(answer(body, status="400 Bad Request")) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        assert listener.heard == [
            b'{"jsonrpc":"2.0","id":1,"error":{"code": -32000, "message": "no"}}'
        ]
        assert listener.failed == []


async def test_an_upstream_without_resumption_is_not_asked_again() -> None:
    first = stream(b"id: 7\nretry: 1\ndata: ")
    refused = answer(b"", status="405 No")
    async with posting(first, refused) as (ours, listener, upstream):
        await ours.post(ASK, ["1"], [])
        assert listener.failed == [(("1",), -32603, "The server sent no answer")]
    assert len(upstream.requests) == 2


async def test_messages_are_heard_and_other_events_are_not() -> None:
    """A comment keeps a stream alive, and some servers send an event without data first. Of an
    event that is too long the beginning is heard: the id of what it answers may be there."""
    long = b"data: %s" % answering('"' + "x" * 5000 + '"', id="1")
    said = stream(b": alive", b"data: ", b"event: ping\ndata: {}", long, b"data: " + ANSWER)
    async with posting(said, limits=Limits(pending=1000)) as (ours, heard, _):
        await ours.post(ASK, ["1", "2"], [])
    cut, whole = heard.heard
    assert isinstance(cut, CutLine)
    assert b'"id":1' in cut.beginning
    assert whole == ANSWER


async def test_a_compressed_stream_is_refused() -> None:
    """We did not ask for it, and what cannot be read must not pass."""
    said = stream(b"data: " + ANSWER).replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1)
    async with posting(said) as (ours, listener, _):
        await ours.post(ASK, ["1"], [])
        [(ids, _, why)] = listener.failed
    assert (ids, listener.heard) == (("1",), [])
    assert "compressed (gzip)" in why


def lose() -> None:
    raise ConnectionLost("gone")


async def test_a_request_that_has_its_answer_gets_no_error() -> None:
    listener: Any = UrlListener(heard=[ANSWER])
    async with reporting_failure(listener, ["1"]):
        lose()
    assert listener.failed == []
    assert listener.problems == ["ConnectionLost: gone"]


def test_a_missing_login_says_what_to_type() -> None:
    code, text = words_for(LoginNeeded(LoggedOut("https://mcp.example/mcp")))
    assert code == -32010
    assert text == (
        "Not logged in to https://mcp.example/mcp."
        " Type: mcp-tool-filter login https://mcp.example/mcp"
    )


def test_an_upstreams_words_cannot_draw_on_a_terminal() -> None:
    _, text = words_for(HttpFailed("HTTP 500 \x1b[2J"))
    assert text.isprintable()


ENDPOINT = chunk(b"event: endpoint\ndata: /messages?id=1\n\n")
ACCEPTED = answer(b"", status="202 Accepted", kind="a/b")


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


async def test_a_post_is_answered_on_the_stream() -> None:
    async with reached(LegacyUpstream, Sse()) as (ours, listener, upstream):
        await ours.open()
        ours.poster.revision = "2024-11-05"
        await ours.post(asking("ping"), ["1"], [])
        async with asyncio.timeout(TIMEOUT):
            while not listener.heard:
                await asyncio.sleep(0.001)
        assert (listener.heard, listener.failed) == ([ANSWER], [])
    posted = upstream.requests[1]
    assert posted.line == "POST /messages?id=1 HTTP/1.1"
    assert posted.all("mcp-protocol-version") == ["2024-11-05"]


async def test_a_refused_post_fails_its_request_only() -> None:
    refuse = Sse(lambda _: answer(b"", status="500 No"))
    async with reached(LegacyUpstream, refuse) as (ours, listener, _):
        await ours.open()
        await ours.post(asking("ping"), ["5"], [])
        assert listener.failed == [(("5",), -32603, "The server answered HTTP 500 No")]
        assert listener.problems == []


async def test_the_end_of_the_stream_is_the_end_of_the_session() -> None:
    script = Sse()
    async with reached(LegacyUpstream, script) as (ours, listener, _):
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

    async with reached(LegacyUpstream, script) as (ours, _, _):
        with pytest.raises(HttpFailed) as caught:
            await ours.open()
        assert str(caught.value) == why
