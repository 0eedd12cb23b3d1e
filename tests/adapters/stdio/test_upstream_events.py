"""What is heard of an event stream, and in which words a failure reaches the client."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.oauth.store import LoggedOut
from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import ConnectionLost, HttpFailed, LoginNeeded
from mcp_tool_filter.adapters.stdio.http_upstream import (
    receive_event,
    reporting_failure,
    words_for,
)
from mcp_tool_filter.adapters.upstream.replies import EventReader
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.sse import parse_event
from tests.adapters.stdio.url_listener import UrlListener
from tests.make import answering
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, chunk, raw_upstream

ANSWER = answering("{}", id="1")
URL = "https://mcp.example/mcp"


async def heard_of(*said: bytes, limits: Limits | None = None) -> list[bytes | CutLine]:
    """Return what is heard of a response with these chunks."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"".join(said))

    listener = UrlListener()
    async with raw_upstream(script) as upstream:
        http = HttpClient(parse_origin(upstream.url))
        try:
            async with http.exchange(b"GET", "/") as response:
                async for event in EventReader(response, (limits or Limits()).pending):
                    await receive_event(event, listener)
        finally:
            await http.close()
    return listener.heard


async def test_messages_are_heard_and_other_events_are_not() -> None:
    """A comment keeps a stream alive, and some servers send an event without data first."""
    events = (b": alive\n\n", b"data: \n\n", b"event: ping\ndata: {}\n\n", b"data: %s\n\n" % ANSWER)
    said = [chunk(event) for event in events]
    assert await heard_of(SSE_HEAD, *said, LAST_CHUNK) == [ANSWER]


async def test_chunk_boundaries_do_not_matter() -> None:
    event = b"data: %s\n\n" % ANSWER
    pieces = [chunk(event[place : place + 3]) for place in range(0, len(event), 3)]
    assert await heard_of(SSE_HEAD, *pieces, LAST_CHUNK) == [ANSWER]


async def test_the_beginning_of_an_event_that_is_too_long_is_heard() -> None:
    """The id of the request that it answers may be there."""
    long = b"data: %s\n\n" % answering('"' + "x" * 5000 + '"', id="1")
    said = [SSE_HEAD, chunk(long), chunk(b"data: %s\n\n" % ANSWER), LAST_CHUNK]
    cut, whole = await heard_of(*said, limits=Limits(pending=1000))
    assert isinstance(cut, CutLine)
    assert b'"id":1' in cut.beginning
    assert whole == ANSWER


async def test_a_compressed_stream_is_refused() -> None:
    """We did not ask for it, and what cannot be read must not pass."""
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    with pytest.raises(ProtocolError, match=r"compressed \(gzip\)"):
        await heard_of(head, LAST_CHUNK)


def lose(why: str, kind: type[Exception] = ConnectionLost) -> None:
    raise kind(why)


async def test_a_failure_answers_the_request_and_is_looked_into() -> None:
    listener = UrlListener()
    async with reporting_failure(listener, ["1"]):
        lose("Connection reset by upstream")
    text = "Upstream connection lost: Connection reset by upstream"
    assert listener.failed == [(("1",), -32000, text)]
    assert listener.problems == ["ConnectionLost: Connection reset by upstream"]


async def test_an_answer_that_cannot_be_read_fails_its_request_only() -> None:
    listener = UrlListener()
    async with reporting_failure(listener, ["1"]):
        lose("HTTP 307: redirected to http://elsewhere", ProtocolError)
    assert listener.failed == [(("1",), -32603, "HTTP 307: redirected to http://elsewhere")]
    assert listener.problems == []


async def test_a_request_that_has_its_answer_gets_no_error() -> None:
    listener = UrlListener()
    await receive_event(parse_event(b"data: %s\n\n" % ANSWER), listener)
    async with reporting_failure(listener, ["1"]):
        lose("gone")
    assert listener.failed == []
    assert listener.problems == ["ConnectionLost: gone"]


def test_a_missing_login_says_what_to_type() -> None:
    code, text = words_for(LoginNeeded(LoggedOut(URL)))
    assert code == -32010
    assert text == f"Not logged in to {URL}. Type: mcp-tool-filter login {URL}"


def test_an_upstreams_words_cannot_draw_on_a_terminal() -> None:
    _, text = words_for(HttpFailed("HTTP 500 \x1b[2J"))
    assert text.isprintable()
