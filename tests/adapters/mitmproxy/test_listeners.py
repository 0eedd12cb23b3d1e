"""One listener for each upstream, ready before the first client is served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.conversation.memory import Fetched
from tests.adapters.mitmproxy.filtered import (
    DELETE,
    ENDPOINT,
    LIST,
    READ,
    call,
    filtered,
    not_found,
)
from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.proxy import proxy
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk, free_port


class TestConnections:
    async def test_events_arrive_one_by_one_and_a_client_that_leaves_is_noticed(
        self, tmp_path: Path
    ) -> None:
        left = asyncio.Event()

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD)
            await peer.say_event(RESULT)
            await peer.left()
            left.set()

        async with filtered(tmp_path, respond=respond) as between:
            await between.client.say(get())
            await between.client.head()
            assert await between.client.chunk() == b"data: " + RESULT + b"\n\n"
            between.client.close()
            await asyncio.wait_for(left.wait(), 10)

    async def test_a_comment_without_a_blank_line_is_not_held_back(self, tmp_path: Path) -> None:
        """It is all that keeps a quiet stream alive."""

        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD + chunk(b":\r\n"))
            await peer.left()

        async with filtered(tmp_path, respond=respond) as between:
            await between.client.say(get())
            await between.client.head()
            assert await between.client.chunk() == b":\r\n"

    async def test_twenty_concurrent_calls_get_their_own_answers(self, tmp_path: Path) -> None:
        async def respond(request: RawRequest, peer: Peer) -> None:
            id = json.loads(request.body)["id"]
            await asyncio.sleep(0.02 * (20 - id))
            await peer.say(answer(RESULT.replace(b'"id":1', b'"id":%d' % id)))

        async with filtered(tmp_path, respond=respond) as between:

            async def one(number: int) -> int:
                async with raw_client(between.port) as client:
                    got = await client.ask(post(call("read_file", id=str(number))))
                    return int(json.loads(got.body)["id"])

            assert await asyncio.gather(*map(one, range(20))) == list(range(20))

    async def test_each_listener_has_its_own_upstream_and_snapshot(self, tmp_path: Path) -> None:
        async with (
            mcp_upstream(tools=[tool("one"), tool("delete_1")]) as one,
            mcp_upstream(tools=[tool("two"), tool("delete_2")]) as two,
            proxy(
                ToolFilter(),
                to=[f"reverse:{each.url}@{free_port()}" for each in (one, two)],
                home=tmp_path,
                deny=["^delete_"],
                endpoint=ENDPOINT,
            ) as it,
        ):
            for server, mine, other in zip(
                it.server.servers, ("one", "two"), ("two", "one"), strict=True
            ):
                async with raw_client(server.listen_addrs[0][1]) as client:
                    listed = (await client.ask(post(LIST))).body
                    assert [t["name"] for t in json.loads(listed)["result"]["tools"]] == [mine]
                    got = await client.ask(post(call(other)))
                    assert got.body == not_found(other)
                    assert (await client.ask(post(call(mine)))).body == RESULT

    async def test_requests_wait_until_the_tools_are_known(self, tmp_path: Path) -> None:
        gate = asyncio.Event()

        async def slowly(target: Target) -> Fetched:
            await gate.wait()
            return await fetch(target)

        async with (
            mcp_upstream(tools=[READ, DELETE]) as upstream,
            proxy(
                ToolFilter(fetch=slowly), to=upstream.url, home=tmp_path, deny=["^delete_"]
            ) as it,
            raw_client(it.port) as client,
        ):
            await client.say(post(call("delete_file")))
            await asyncio.sleep(0.05)
            gate.set()
            assert (await client.answer()).body == not_found("delete_file")
            assert upstream.asked == []
