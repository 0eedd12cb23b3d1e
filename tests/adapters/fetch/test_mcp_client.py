"""What travels between us and an upstream that we ask, in each of the three ways."""

from __future__ import annotations

import asyncio

from tests.adapters.fetch.mcp_script import (
    ACCEPTED,
    dialogue,
    message_in,
    names,
    result,
    run,
    stateless,
    streamable,
    tool_list,
)
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Peer,
)


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
                while sum("method" not in message_in(r) for r in peer.upstream.requests) < 2:
                    await asyncio.sleep(0.001)
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


async def test_the_users_headers_go_with_every_request() -> None:
    script = dialogue(streamable(tool_list(), session="s"))
    _, upstream = await run(script, headers=(("X-Key", "k"), ("Authorization", "Bearer t")))
    assert all(r.all("x-key") == ["k"] for r in upstream.requests)
    assert all(r.all("authorization") == ["Bearer t"] for r in upstream.requests)


async def test_the_users_headers_cannot_break_our_requests() -> None:
    spoiling = (("Content-Length", "3"), ("Accept", "text/html"), ("Host", "example.com"))
    _, upstream = await run(dialogue(stateless(tool_list())), headers=spoiling)
    for request in upstream.requests:
        assert request.all("accept") == ["application/json, text/event-stream"]
        assert request.all("content-length") == [str(len(request.body))]
        assert request.all("host") == ["example.com"]
