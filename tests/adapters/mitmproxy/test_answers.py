"""Answers of the upstream that depend on how it connects them: the older transport, large ones."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.engine.exchange import Answer
from mcp_tool_filter.engine.upstream import Upstream
from tests.adapters.mitmproxy.filtered import (
    INITIALIZE,
    call,
    filtered,
)
from tests.adapters.upstream.mcp_script import introduction, message_in, result
from tests.adapters.upstream.mcp_script import tool_list as listed
from tests.mcp_upstream import RESULT, saying
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, answer, chunk, raw_upstream
from tests.served import served


class TestLegacyStreams:
    """HTTP+SSE: clients ignore the answer to a POST; all messages come on the GET stream."""

    @pytest.mark.parametrize("on_sockets", [False, True])
    async def test_the_list_of_a_client_does_not_take_its_stream(
        self, tmp_path: Path, on_sockets: bool
    ) -> None:
        """Some upstreams answer only on the latest stream. The client sees no list of ours."""
        streams: list[Peer] = []

        async def script(peer: Peer) -> None:
            while True:
                request = await peer.request()
                if request.line.startswith("GET"):
                    streams.append(peer)
                    await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: /m?1\n\n"))
                    continue
                await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
                method, names = message_in(request).get("method"), ["read_file", "delete_file"]
                if request.all("authorization"):
                    names.append("mine")
                said = {"initialize": introduction("2024-11-05"), "tools/list": listed(*names)}
                if "id" in message_in(request):
                    assert isinstance(method, str)
                    await streams[-1].say_event(result(request, said.get(method, {})))

        options: dict[str, Any] = {"deny": ["^delete_"], "endpoint": ["/sse"]}
        async with raw_upstream(script) as upstream:
            if on_sockets:
                running: Any = served(to=upstream.url, **options)
            else:
                running = proxy(ToolFilter(), to=upstream.url, home=tmp_path, **options)
            async with running as it, raw_client(it.port) as ann, raw_client(it.port) as poster:
                headers = MCP_HEADERS + b"Authorization: Bearer ann\r\n"
                await ann.say(get(path="/sse", headers=headers))
                await ann.head()
                await ann.chunk()
                for body in (
                    INITIALIZE.replace(b"2025-06-18", b"2024-11-05"),
                    call("mine"),
                    call("unknown", id="2"),
                ):
                    got = await poster.ask(post(body, path="/m?1", headers=headers))
                    assert got.status == 202
                heard = [json.loads((await ann.chunk()).removeprefix(b"data: ")) for _ in range(3)]
        assert [one["id"] for one in heard] == [0, 1, 2]
        assert [one.get("error", {}).get("code") for one in heard] == [None, None, -32601]
        methods = [message_in(one).get("method") for one in upstream.requests]
        assert methods.count("tools/list") == 2
        assert [one.all("authorization") for one in upstream.requests if not one.body] == [
            [], ["Bearer ann"],
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["read_file", "delete_file"])
async def test_an_answer_is_freed_at_once(tmp_path: Path, name: str) -> None:
    """Until garbage collection, the next large answer would need new memory from the system."""
    async with filtered(tmp_path) as on:
        await on.ask(call(name))
        gc.collect()
        gc.disable()
        try:
            await on.ask(call(name))
            assert not [one for one in gc.get_objects() if isinstance(one, Answer)]
        finally:
            gc.enable()


async def test_a_large_answer_comes_in_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs mitmproxy as much as a small answer; it asks for 64 KiB at a time."""
    sizes: list[int] = []
    receive = Upstream.receive

    def noting(self: Upstream, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(Upstream, "receive", noting)
    large = RESULT.replace(b"[]", b'["' + b"x" * 8_000_000 + b'"]')
    async with filtered(tmp_path, respond=saying(large)) as between:
        assert (await between.ask(call("read_file"))).body == large
    assert max(sizes) > 65535
