"""HTTP+SSE (2024-11-05): all answers come on one stream."""

from __future__ import annotations

import pytest

from mcp_tool_filter.protocol.limits import Transport
from tests.adapters.upstream.mcp_script import (
    ACCEPTED,
    Legacy,
    asked,
    failure,
    fetched_from,
    message_in,
    names,
    run,
    tool_list,
)
from tests.raw_upstream import (
    LAST_CHUNK,
    Peer,
    RawRequest,
    answer,
)


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


async def test_a_page_is_the_data_of_its_event() -> None:
    fetched = await fetched_from(Legacy(tools_list=tool_list("a")), endpoint="/sse")
    assert fetched.pages[0].startswith(b'{"jsonrpc": "2.0", "id": 2')


@pytest.mark.parametrize("said", ["messages?id=1", "/messages?id=1", "./messages?id=1"])
async def test_the_path_to_post_to_may_be_relative(said: str) -> None:
    assert names(await fetched_from(Legacy(said, tools_list=tool_list("a")), "/sse")) == ["a"]


async def test_the_path_to_post_to_may_be_a_url_by_another_loopback_name() -> None:
    class Absolute(Legacy):
        async def begin(self, peer: Peer) -> None:
            self.endpoint = f"http://localhost:{peer.upstream.port}/messages?id=1"
            await super().begin(peer)

    assert names(await fetched_from(Absolute(tools_list=tool_list("a")), "/sse")) == ["a"]


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
