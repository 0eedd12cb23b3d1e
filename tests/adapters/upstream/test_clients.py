"""What is posted to one path, and the answers: JSON, an event stream, or the stream of HTTP+SSE."""

from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.limits import Transport
from tests.adapters.upstream.mcp_script import (
    ACCEPTED,
    Answer,
    Legacy,
    asked,
    dialogue,
    failure,
    fetched_from,
    message_in,
    names,
    result,
    run,
    streamable,
    tool_list,
)
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, until


def streaming(*events: bytes, end: bytes = LAST_CHUNK) -> Answer:
    """Answer tools/list with these events; ID stands for the request's id."""

    def listed(request: RawRequest) -> bytes:
        number = str(message_in(request)["id"]).encode()
        return SSE_HEAD + b"".join(chunk(e.replace(b"ID", number)) for e in events) + end

    return streamable(listed)


async def test_a_page_is_kept_byte_for_byte() -> None:
    odd = b' {"id" :ID,\n"result":{"tools":[ ] ,"x":1.0e2,"y":"\\u00e9"},"jsonrpc":"2.0"}\t'

    def listed(request: RawRequest) -> bytes:
        return answer(odd.replace(b"ID", str(message_in(request)["id"]).encode()))

    assert (await fetched_from(dialogue(streamable(listed)))).pages == (odd.replace(b"ID", b"3"),)


async def test_an_answer_may_follow_other_events_on_a_stream() -> None:
    script = dialogue(
        streaming(
            b": hello\n\n",
            b"id: 1\ndata:\n\n",
            b"event: ping\ndata: 2026-01-01\n\n",
            b"data: still here\n\n",
            b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n',
            b'data: {"jsonrpc":"2.0","id":99,"result":{}}\n\n',
            b'event: message\r\ndata: {"jsonrpc":"2.0","id":ID,\r\n',
            b'data: "result":{"tools":[]}}\r\n\r\n',
        )
    )
    fetched, upstream = await run(script)
    assert fetched.pages == (b'{"jsonrpc":"2.0","id":3,\n"result":{"tools":[]}}',)
    assert len(upstream.peers) == 1


async def test_a_stream_that_stays_open_after_the_answer_is_closed() -> None:
    event = b'data: {"jsonrpc":"2.0","id":ID,"result":{"tools":[]}}\n\n'
    assert len((await fetched_from(dialogue(streaming(event, end=b"")))).pages) == 1


async def test_an_answer_may_come_in_a_batch() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message"}'
    reply = b'{"jsonrpc":"2.0", "id":ID,"result":{"tools":[]}}'
    script = dialogue(streaming(b"data: [" + note + b" , " + reply + b"]\n\n"))
    assert (await fetched_from(script)).pages == (reply.replace(b"ID", b"3"),)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (answer(b"", status="202 Accepted", kind=""), "with no Content-Type: that is not MCP"),
        (answer(b"x", status="500 Oh\tno"), "HTTP 500 Oh\\tno"),
        (SSE_HEAD + LAST_CHUNK, "The event stream ended without an answer"),
        (SSE_HEAD + chunk(b"data: {nonsense\n\n"), "The answer is not valid JSON"),
        (
            SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n"),
            "The event stream is compressed (br)",
        ),
    ],
)
async def test_an_answer_that_is_no_message_is_described(response: bytes, said: str) -> None:
    assert said in await failure(dialogue(streamable(lambda _: response)))


async def test_an_answer_that_is_too_long_is_not_read() -> None:
    script = dialogue(streamable(tool_list("a" * 2000)))
    assert await failure(script, limit=1000) == "The answer is longer than 1000 bytes"


@pytest.mark.parametrize("more", [b"data: xxx\n", b"x" * 1000])
async def test_an_event_without_an_end_is_not_read(more: bytes) -> None:
    say = streamable(tool_list())

    async def endless(peer: Peer) -> None:
        while message_in(request := await peer.request())["method"] != "tools/list":
            await peer.say(say(request))
        await peer.say(SSE_HEAD)
        while True:
            await peer.say(chunk(more) * 10_000)

    assert await failure(endless, limit=1000) == "An event is longer than 1000 bytes"


async def test_requests_of_the_upstream_on_the_stream_are_answered() -> None:
    """It may wait for us before it goes on."""
    say = streamable(tool_list("a"), session="s1")

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            message = message_in(request)
            if message.get("method") == "tools/list":
                await peer.say(SSE_HEAD)
                await peer.say_event(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
                await peer.say_event(b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}')
                await until(
                    lambda: sum("method" not in message_in(r) for r in peer.upstream.requests) >= 2
                )
                await peer.say_event(result(request, tool_list("a")))
                await peer.say(LAST_CHUNK)
            else:
                await peer.say(say(request) if "method" in message else ACCEPTED)

    fetched, upstream = await run(script)
    said = [r for r in upstream.requests if r.body and "method" not in message_in(r)]
    assert names(fetched) == ["a"]
    assert sorted((message_in(r) for r in said), key=lambda m: str(m["id"])) == [
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "Method not found"}},
        {"jsonrpc": "2.0", "id": "p", "result": {}},
    ]
    assert all(r.all("mcp-session-id") == ["s1"] for r in said)


async def test_the_users_headers_go_with_every_request_and_break_none() -> None:
    theirs = (("X-Key", "k"), ("Authorization", "Bearer t"), ("Host", "example.com"))
    spoiling = (("Content-Length", "3"), ("Accept", "text/html"))
    _, upstream = await run(
        dialogue(streamable(tool_list(), session="s")), headers=(*theirs, *spoiling)
    )
    for request in upstream.requests:
        for name, value in theirs:
            assert request.all(name) == [value]
        assert request.all("content-length") == ([str(len(request.body))] if request.body else [])
        accepted = ["application/json, text/event-stream"]
        assert request.line.startswith("DELETE") or request.all("accept") == accepted


async def test_the_old_transport_begins_with_its_stream() -> None:
    fetched, upstream = await run(Legacy(tools_list=tool_list("a")), endpoint="/sse")
    assert names(fetched) == ["a"]
    assert (fetched.transport, fetched.revision) == (Transport.LEGACY_SSE, "2024-11-05")
    assert (fetched.endpoint, fetched.sessions) == ("/sse", False)
    assert asked(upstream) == [
        "GET /sse",
        "POST /messages?id=1 initialize",
        "POST /messages?id=1 notifications/initialized",
        "POST /messages?id=1 tools/list",
    ]
    assert upstream.requests[-1].all("mcp-protocol-version") == ["2024-11-05"]
    assert fetched.pages[0].startswith(b'{"jsonrpc": "2.0", "id": 2')


@pytest.mark.parametrize(
    "said", ["messages?id=1", "./messages?id=1", "http://localhost:PORT/messages?id=1"]
)
async def test_the_path_to_post_to_may_be_relative_or_a_url_by_another_loopback_name(
    said: str,
) -> None:
    assert names(await fetched_from(Legacy(said, tools_list=tool_list("a")), "/sse")) == ["a"]


@pytest.mark.parametrize("said", ["http://elsewhere.example/messages?id=1", "http://["])
async def test_nothing_is_posted_to_another_origin(said: str) -> None:
    assert await failure(Legacy(said), "/sse") == f"The endpoint event names another origin: {said}"


async def test_an_answer_may_arrive_before_the_post_is_accepted() -> None:
    """Some upstreams answer the POST only once all is done."""

    class Backwards(Legacy):
        async def __call__(self, peer: Peer) -> None:
            while "id" not in message_in(request := await peer.request()):
                await (self.begin(peer) if request.line.startswith("GET") else peer.say(ACCEPTED))
            await self.hear(request)
            await peer.left()

    assert names(await fetched_from(Backwards(tools_list=tool_list("a")), "/sse")) == ["a"]


async def test_requests_of_the_upstream_in_between_are_answered() -> None:
    class Asking(Legacy):
        async def hear(self, request: RawRequest) -> None:
            message = message_in(request)
            if message.get("method") == "tools/list":
                self.listing = request
                assert self.stream
                await self.stream.say_event(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
            elif message.get("id") == "p":
                await super().hear(self.listing)
            else:
                await super().hear(request)

    fetched, upstream = await run(Asking(tools_list=tool_list("a")), "/sse")
    assert names(fetched) == ["a"]
    assert message_in(upstream.requests[-1]) == {"jsonrpc": "2.0", "id": "p", "result": {}}


async def test_a_refused_post_ends_the_wait() -> None:
    class Refusing(Legacy):
        async def __call__(self, peer: Peer) -> None:
            await peer.request()
            if self.stream:
                await peer.say(answer(b"no such session", status="400 Bad Request"))
            else:
                await self.begin(peer)
            await peer.left()

    assert await failure(Refusing(), "/sse") == "HTTP 400 Bad Request"


async def test_a_stream_that_ends_ends_the_wait() -> None:
    class Ending(Legacy):
        async def hear(self, request: RawRequest) -> None:
            assert self.stream
            if message_in(request)["method"] == "tools/list":
                await self.stream.say(LAST_CHUNK)
            else:
                await super().hear(request)

    assert await failure(Ending(), "/sse") == "The event stream ended without an answer"
