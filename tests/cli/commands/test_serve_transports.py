"""``serve`` over every transport: each request meets the policy of its own server."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.launched import RunningLauncher, launched
from tests.make import calling
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, tool
from tests.raw_client import MCP_HEADERS, get, h2_client, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer
from tests.websocket import accept, connect

JSON = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]


@asynccontextmanager
async def two(
    folder: Path, respond: Respond | None = None, top: str = ""
) -> AsyncIterator[tuple[RunningLauncher, int, McpUpstream, McpUpstream]]:
    """Serve two upstreams with the tools a and b: one denies a, the other b."""
    tools = [tool("a"), tool("b")]
    async with AsyncExitStack() as opened:
        one = await opened.enter_async_context(mcp_upstream(tools=tools, respond=respond))
        other = await opened.enter_async_context(mcp_upstream(tools=tools))
        file = folder / "servers.toml"
        file.write_text(
            f"{top}\n[servers.one]\nurl = '{one.url}'\ndeny = '^a$'\n"
            f"[servers.other]\nurl = '{other.url}'\ndeny = '^b$'\n"
        )
        it = await opened.enter_async_context(launched("serve", "--config", str(file), home=folder))
        found = await it.says(r"MCP tool filter: http://\S*:(\d+) -> 2 servers")
        yield it, int(found[1]), one, other


async def test_over_http2_each_stream_goes_to_its_server(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, port, one, other), h2_client(port) as client:
        numbers = {
            (name, called): client.ask(body=calling(called), path=f"/{name}/mcp", headers=JSON)
            for name in ("one", "other")
            for called in ("a", "b")
        }
        for (name, called), number in numbers.items():
            stream = await client.over(number)
            is_refused = (name, called) in {("one", "a"), ("other", "b")}
            assert (b"Tool not found" in stream.data) is is_refused, (name, called)
        assert [len(each.of("tools/call")) for each in (one, other)] == [1, 1]
        for path in ("/one/../other/mcp", "/one/%2e%2e/other/mcp", "//other/mcp", "other/mcp", "*"):
            stream = await client.over(client.ask(body=calling("a"), path=path, headers=JSON))
            assert stream.headers.get(b":status") in (b"400", b"404", None), path
        assert [len(each.of("tools/call")) for each in (one, other)] == [1, 1]


async def test_one_connection_may_ask_several_servers(tmp_path: Path) -> None:
    """Answers come in the order of the requests; a whole URL may be the target."""
    async with two(tmp_path) as (_, port, one, other), raw_client(port) as client:
        paths = ["/one/mcp", "/other/mcp", "/one/mcp", "http://localhost/other/mcp"]
        for called, refused in (("a", [True, False] * 2), ("b", [False, True] * 2)):
            await client.say(b"".join(post(calling(called), path=path) for path in paths))
            answers = [await client.answer() for _ in paths]
            assert [b"Tool not found" in each.body for each in answers] == refused
        assert [len(each.of("tools/call")) for each in (one, other)] == [2, 2]
        target = "http://localhost/one/../other/mcp"
        assert (await client.ask(post(calling("a"), path=target))).status == 404
        assert len(other.of("tools/call")) == 2


async def test_whatever_else_can_be_a_target_belongs_to_nobody(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, port, one, other):
        for line in (b"OPTIONS *", b"CONNECT other:80", b"GET one/mcp", b"POST ?/one/mcp"):
            async with raw_client(port) as client:
                request = line + b" HTTP/1.1\r\n" + MCP_HEADERS + b"\r\n"
                assert (await client.ask(request)).status in (400, 404), line
        assert not one.asked
        assert not other.asked


async def test_a_websocket_is_filtered_by_its_server(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        assert request.line.startswith("GET /mcp ")
        end = await accept(peer.reader, peer.writer, request.head)
        while (message := await end.hear()) is not None:
            heard.append(message)
            await end.say(RESULT)

    async with two(tmp_path, respond) as (_, port, _, _), raw_client(port) as client:
        end = await connect(client.reader, client.writer, "/one/mcp")
        await end.say(calling("a"))
        assert b"Tool not found" in (await end.hear() or b"")
        await end.say(calling("b"))
        assert b'"result"' in (await end.hear() or b"")
        assert heard == [calling("b")]


async def test_a_server_card_names_the_server_here_and_no_hidden_tool(tmp_path: Path) -> None:
    origin = ""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        tools = [json.loads(tool(name)) for name in ("a", "b")]
        card = {"name": "x", "remotes": [{"type": "streamable-http", "url": origin}]}
        await peer.say(answer(json.dumps(card | {"tools": tools}).encode()))

    async with two(tmp_path, respond) as (_, port, one, _), raw_client(port) as client:
        origin = f"{one.url}/mcp"
        found = await client.ask(get(path="/one/.well-known/mcp/server-card"))
        card = json.loads(found.body)
        [remote] = card["remotes"]
        assert re.fullmatch(r"http://[^/]+/one/mcp", remote["url"])
        assert [each["name"] for each in card["tools"]] == ["b"]


async def test_a_flooded_or_broken_server_delays_no_other(tmp_path: Path) -> None:
    """The other one answers while every call of the first one waits, and takes all connections that
    it can get."""
    may_answer = asyncio.Event()
    waiting: list[RawRequest] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        waiting.append(request)
        await may_answer.wait()
        if b'"id":0,' in request.body:
            peer.writer.transport.abort()
            return
        await peer.say(answer(RESULT))

    async with AsyncExitStack() as opened:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
        try:
            it, port, _, _ = await opened.enter_async_context(two(tmp_path, respond))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        clients = [await opened.enter_async_context(raw_client(port)) for _ in range(40)]
        for number, client in enumerate(clients):
            await client.say(post(calling("b", id=str(number)), path="/one/mcp"))
        async with asyncio.timeout(TIMEOUT):
            while len(waiting) < len(clients):
                await asyncio.sleep(0.01)
        for flood in [await opened.enter_async_context(h2_client(port)) for _ in range(3)]:
            asked = [flood.ask(body=calling("b"), path="/one/mcp", headers=JSON) for _ in range(80)]
        assert b"-32000" in (await flood.over(asked[-1])).data, "there are no more"
        async with raw_client(port) as client:
            for _ in range(20):
                found = await client.ask(post(calling("a"), path="/other/mcp"))
                assert b'"result"' in found.body
        assert not may_answer.is_set()
        may_answer.set()
        answers = [await client.answer() for client in clients]
        assert [b'"result"' in one.body for one in answers] == [False] + [True] * 39
        it.process.terminate()
        assert await it.exit_code() == 0


@pytest.mark.parametrize("drains", [True, False])
async def test_open_calls_are_answered_when_a_server_or_the_process_ends(
    drains: bool, tmp_path: Path
) -> None:
    """A call of a removed server gets an error; SIGTERM waits for the others as --drain says."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def respond(_request: RawRequest, peer: Peer) -> None:
        asked.set()
        await may_answer.wait()
        await peer.say(answer(RESULT))

    async with two(tmp_path, respond, "drain = 20") as (it, port, _, _), raw_client(port) as client:
        await client.say(post(calling("b"), path="/one/mcp"))
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
        if drains:
            it.process.terminate()
            may_answer.set()
            assert b'"result"' in (await client.answer()).body
            assert await it.exit_code() == 0
            return
        file = tmp_path / "servers.toml"
        file.write_text(
            "drain = 20\n[servers.other]" + file.read_text().split("[servers.other]")[1]
        )
        it.process.send_signal(signal.SIGHUP)
        error = json.loads((await client.answer()).body)["error"]
        assert error["code"] == -32000
        assert not may_answer.is_set()
        async with raw_client(port) as other:
            assert b'"result"' in (await other.ask(post(calling("a"), path="/other/mcp"))).body
        may_answer.set()
