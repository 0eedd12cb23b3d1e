"""One session in front of an HTTP server; ``tests/rooms/stdio/test_pipe_command.py`` has more."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.sockets.client import HttpClient
from mcp_tool_filter.core.sockets.connect import HttpFailed, LoginNeeded
from mcp_tool_filter.rooms.logins.store import LoggedOut
from mcp_tool_filter.rooms.stdio.pipe import LegacyUpstream, Pipe, StreamableUpstream, words_for
from tests.make import answering, asking, calling
from tests.raw_upstream import SSE_HEAD, Peer, RawUpstream, Script, answer, chunk, raw_upstream
from tests.rooms.stdio.test_judge import Judged
from tests.rows import each_row
from tests.session_upstream import session_upstream

META = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientCapabilities":{}}'
)


class Client:
    """What stands at the other ends of stdin and stdout."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin = os.fdopen(stdin, "wb", buffering=0)
        self._stdout = os.fdopen(stdout, "rb")
        self.told: list[str] = []
        """What is on stderr."""

    async def asks(self, line: bytes) -> Any:
        self.says(line)
        return await self.hears()

    def says(self, line: bytes) -> None:
        self._stdin.write(line + b"\n")

    async def hears(self) -> Any:
        return json.loads(await asyncio.to_thread(self._stdout.readline))

    def leaves(self) -> None:
        self._stdin.close()

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()


@asynccontextmanager
async def piped(
    url: str,
    kind: type[StreamableUpstream | LegacyUpstream] = StreamableUpstream,
    limits: Limits | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Client, asyncio.Task[int]]]:
    (from_client, to_us), (from_us, to_client) = os.pipe(), os.pipe()
    client, limits = Client(to_us, from_us), limits or Limits()
    ends: dict[str, Any] = {"stdin": from_client, "stdout": to_client, "limits": limits}
    pipe = Pipe(Judged(["^delete_"]).judge, say=client.told.append, **ends, **settings)
    http = HttpClient(parse_origin(url.removesuffix("/mcp")))
    http.resends = False
    pipe.upstream = kind(http, "/mcp", pipe, limits)
    running = asyncio.create_task(pipe.run())
    try:
        yield client, running
    finally:
        client.close()
        await asyncio.wait([running])
        for thread in threading.enumerate():  # else it could read what has this number next
            if "(_read_client)" in thread.name:
                await asyncio.to_thread(thread.join)
        await http.close()
        os.close(from_client)
        os.close(to_client)


SUBSCRIBE = asking("subscriptions/listen", id='"s"', params=f"{{{META}}}")


async def test_a_subscription_does_not_keep_the_session_open() -> None:
    """Else this would take an hour."""
    with session_upstream() as upstream:
        async with piped(upstream.url, last_answers=3600) as (client, running):
            assert (await client.asks(SUBSCRIBE))["method"] == "notifications/subscriptions/ack"
            client.leaves()
            assert await running == 0


async def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    """A client whose stdin has ended still reads; a subscription has no answer to wait for."""
    with session_upstream() as upstream:
        async with piped(upstream.url, last_answers=0.1) as (client, running):
            await client.asks(SUBSCRIBE)
            client.says(calling("slow", id="7"))
            client.leaves()
            error = {"code": -32000, "message": "Upstream connection lost"}
            assert await client.hears() == {"jsonrpc": "2.0", "id": 7, "error": error}
            assert await running == 0


async def test_a_client_that_reads_nothing_does_not_keep_the_session_open() -> None:
    with session_upstream() as upstream:
        async with piped(upstream.url, last_answers=0.1, goodbye=0.1) as (client, running):
            client.says(calling("slow", id="7"))
            client.says(calling("big", id="8", arguments='{"bytes":1000000}'))
            client.leaves()
            assert await running == 0


async def test_an_internal_error_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_upstream() as upstream:
        async with piped(upstream.url) as (client, running):
            monkeypatch.setattr(f"{Pipe.__module__}.mirrored_headers", lambda *_: 1 / 0)
            client.says(calling("read_file"))
            assert await running == 1
        assert not upstream.calls()
    [what] = client.told
    assert what.startswith("Error: Internal error: ZeroDivisionError")
    assert what.endswith("\nShutting down proxy")


# Upstreams whose every byte is chosen here

ENDPOINT = b"event: endpoint\ndata: %b"
ANSWER = answering("{}", id="1")
MOVED = "307 Go\r\nLocation: "
ELSEWHERE = "http://elsewhere.example/mcp"
REFUSED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}'


def in_turn(*responses: bytes) -> Script:
    """Answer one request after the other, whatever connection they come on."""
    left = list(responses)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(left.pop(0))

    return script


@asynccontextmanager
async def piped_to(
    script: Script, **how: Any
) -> AsyncIterator[tuple[RawUpstream, Client, asyncio.Task[int]]]:
    async with raw_upstream(script) as upstream, piped(upstream.url, **how) as (client, running):
        yield upstream, client, running


def stream(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(chunk(event + b"\n\n") for event in events) + chunk(b"")


def status(status: str) -> bytes:
    return answer(b"", status=status)


def compressed(response: bytes) -> bytes:
    return response.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1)


NO_ANSWER = "The server sent no answer"


@each_row(("responses", "code", "said"), [
    ([answer(ANSWER)], None, ""), ([stream(b"data: " + ANSWER)], None, ""),
    ([status(f"{MOVED}/there"), answer(ANSWER)], None, ""),
    ([status(f"{MOVED}{ELSEWHERE}")], -32603, f"HTTP 307 Go: redirected to {ELSEWHERE}"),
    ([answer(b"", status="202 Accepted", kind="a/b")], -32603, NO_ANSWER),
    ([status("500 Oh\tno")], -32603, "The server answered HTTP 500 Oh\\tno"),
    ([status("404 Not Found")], -32601, "Method not found"),
    ([status("500")], -32603, "The server answered HTTP 500 Internal Server Error"),
    ([answer(b"x" * 2000)], -32603, "The answer is longer than 1000 bytes"),
    ([answer(REFUSED, status="400 Bad Request")], -32000, "no"),
    ([compressed(stream(b"data: " + ANSWER))], -32000, "compressed (gzip)"),
    ([stream(b"id: 7\nretry: 1\ndata: "), status("405 No")], -32603, NO_ANSWER),
])  # fmt: skip
async def test_a_request_gets_its_answer_or_a_reason(
    responses: Sequence[bytes], code: int | None, said: str
) -> None:
    how = {"limits": Limits(message=1000)}
    async with piped_to(in_turn(*responses), **how) as (upstream, client, running):
        heard = await client.asks(asking("ping"))
        client.leaves()
        assert await running == 0
    error = heard.get("error", {})
    assert (heard["id"], heard.get("result"), error.get("code")) == (1, None if code else {}, code)
    assert said in error.get("message", "")
    assert code != -32603 or "lost" not in error["message"]
    assert len(upstream.requests) == len(responses)


async def test_messages_are_heard_and_other_events_are_not() -> None:
    """A comment keeps a stream alive, and some servers send an event without data first."""
    long = b"data: %s" % answering('"' + "x" * 5000 + '"', id="1")
    last = b"data: " + answering("{}", id="2")
    said = stream(b": alive", b"data: ", b"event: ping\ndata: {}", long, last)
    async with piped_to(in_turn(said), limits=Limits(pending=1000)) as (_, client, _):
        client.says(b"[%s,%s]" % (asking("ping"), asking("ping", id="2")))
        heard = {one["id"]: one for one in (await client.hears(), await client.hears())}
        assert (heard[1]["error"]["code"], heard[2]["result"]) == (-32603, {})


def test_a_missing_login_says_what_to_type() -> None:
    url = "https://mcp.example/mcp"
    said = f"Not logged in to {url}. Type: mcp-tool-filter login {url}"
    assert words_for(LoginNeeded(LoggedOut(url))) == (-32010, said)


def test_an_upstreams_words_cannot_draw_on_a_terminal() -> None:
    _, text = words_for(HttpFailed("HTTP 500 \x1b[2J"))
    assert text.isprintable()


class Sse:
    """Answers what is posted on the stream."""

    def __init__(self, status: str = "202 Accepted") -> None:
        self._status = status
        self.stream: Peer | None = None

    async def __call__(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET"):
                self.stream = peer
                await peer.say(SSE_HEAD + chunk(ENDPOINT % b"/messages?id=1" + b"\n\n"))
                await peer.left()
                return
            await peer.say(answer(b"", status=self._status, kind="a/b"))
            if self._status.startswith("202"):
                assert self.stream
                await self.stream.say_event(ANSWER)


@pytest.mark.parametrize(
    ("status", "error"),
    [("202 Accepted", None), ("500 No", "The server answered HTTP 500 No")],
)
async def test_a_post_is_answered_on_the_stream(status: str, error: str | None) -> None:
    script = Sse(status)
    async with piped_to(script, kind=LegacyUpstream) as (upstream, client, running):
        heard = await client.asks(asking("ping"))
        assert heard.get("error", {}).get("message") == error
        assert error or heard == json.loads(ANSWER)
        assert upstream.requests[1].line == "POST /messages?id=1 HTTP/1.1"
        assert script.stream
        await script.stream.say(chunk(b""))
        assert await running == 1
    assert client.told == ["Error: Lost connection to upstream MCP\nShutting down proxy"]


async def test_a_redirect_of_a_post_is_for_this_message_only() -> None:
    """The stream has named the path: an upstream may lead one message to another worker."""

    class Moving(Sse):
        async def __call__(self, peer: Peer) -> None:
            if len(peer.upstream.requests) == 1:
                await peer.request()
                await peer.say(answer(b"", status="307 Go\r\nLocation: /other"))
            await super().__call__(peer)

    async with piped_to(Moving(), kind=LegacyUpstream) as (upstream, client, _):
        assert await client.asks(asking("ping")) == json.loads(ANSWER)
        assert await client.asks(asking("ping")) == json.loads(ANSWER)
        asked = [request.line.split()[1] for request in upstream.requests[1:]]
        assert asked == ["/messages?id=1", "/other", "/messages?id=1"]


EVIL = "http://evil.example/x"


@pytest.mark.parametrize(("said", "why"), [
    (answer(b""), "HTTP 200 OK with application/json: that is not MCP"),
    (SSE_HEAD + chunk(b""), "The event stream ended without an endpoint event"),
    (stream(ENDPOINT % EVIL.encode()), f"The endpoint event names another origin: {EVIL}"),
])  # fmt: skip
async def test_a_stream_without_an_endpoint_has_a_reason(said: bytes, why: str) -> None:
    async with piped_to(in_turn(said), kind=LegacyUpstream) as (_, _, running):
        with pytest.raises(HttpFailed) as caught:
            await running
        assert str(caught.value) == why
