"""Clients are notified that their list has changed: after an edit, and after a new list.

Each hears of it where its kind listens, and only if the upstream has declared that it tells them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import INITIALIZE, LIST
from tests.mcp_upstream import RESULT, mcp_upstream, tool, tool_list
from tests.proxy import TIMEOUT, RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer, free_port
from tests.websocket import accept, connect

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
HELLO = (
    b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"u","version":"1"}}}'
)
SILENT_HELLO = HELLO.replace(b'"listChanged":true', b"")
NOTICE = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
CHANGED = b"data: " + NOTICE + b"\n\n"
LAST = b'{"jsonrpc":"2.0","method":"notifications/last"}'
IN_SESSION = MCP_HEADERS + b"Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 2025-06-18\r\n"
MODERN = MCP_HEADERS + b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n"
LISTEN = (
    b'{"jsonrpc":"2.0","id":%s,"method":"subscriptions/listen","params":{"_meta":'
    b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"toolsListChanged":true}}}'
)
ACKNOWLEDGED = (
    b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":'
    b'{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{%s}}}'
)
SUBSCRIBED = (
    b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed",'
    b'"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}\n\n'
)


@dataclass
class Scene:
    """An upstream whose clients keep a stream open until the list has changed."""

    declares: bool = True
    acknowledged: bytes = b""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    tools: list[bytes] = field(default_factory=lambda: [tool("read"), tool("delete_all")])

    async def respond(self, request: RawRequest, peer: Peer) -> None:
        if b"upgrade: websocket" in request.head.lower():
            await self._speak_over_websocket(request, peer)
        elif request.line.startswith("GET /sse"):
            hello = HELLO if self.declares else SILENT_HELLO
            endpoint = b"event: endpoint\ndata: /messages?s=1\n\n"
            await self._stream(peer, endpoint, b"data: " + hello + b"\n\n")
        elif request.line.startswith("GET"):
            await self._stream(peer, b": hello\n\n")
        elif b"subscriptions/listen" in request.body:
            await self._stream(peer, b"data: " + self.acknowledged + b"\n\n")
        else:
            await peer.say(answer(RESULT))

    async def _stream(self, peer: Peer, *begin: bytes) -> None:
        await peer.say(STREAM + begin[0])
        for more in begin[1:]:
            await self.asked.wait()
            await peer.say(more)
        await self.go.wait()
        await peer.say(b": last\n\n")
        await peer.left()

    async def _speak_over_websocket(self, request: RawRequest, peer: Peer) -> None:
        end = await accept(peer.reader, peer.writer, request.head)
        await end.hear()
        await end.say(HELLO if self.declares else SILENT_HELLO)
        await self.go.wait()
        await end.say(LAST)
        await end.hear()

    def lists(self, _request: RawRequest, id: str) -> bytes:
        return answer(tool_list(self.tools, id=id))


type Change = Callable[[ToolFilter, RunningProxy, Scene], Awaitable[None]]


async def edit(_tool_filter: ToolFilter, running: RunningProxy, _scene: Scene) -> None:
    running.master.options.update(tools_list=["upstream"])  # changes no pattern
    running.master.options.update(deny=["^delete_"])


async def list_anew(tool_filter: ToolFilter, _running: RunningProxy, scene: Scene) -> None:
    await tool_filter.proxy.changes.take_all_lists()  # the same: nobody is told
    scene.tools.append(tool("new"))
    await tool_filter.proxy.changes.take_all_lists()


CHANGES = pytest.mark.parametrize("change", [edit, list_anew])
DECLARES = pytest.mark.parametrize("declares", [True, False], ids=["declared", "not declared"])


async def play(
    scene: Scene,
    change: Change,
    home: Path,
    client: Callable[[RunningProxy, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """Let a client open its stream; then ``change`` what it may see."""
    tool_filter = ToolFilter(report=lambda _text: None)
    options = {"deny": ["^x"], "endpoint": ["/mcp"]}
    upstreams = mcp_upstream(respond=scene.respond, lists=scene.lists, session=b"s1")
    async with upstreams as upstream:
        upstream.declares_changes = scene.declares
        async with proxy(tool_filter, to=upstream.url, home=home, **options) as running:
            await tool_filter.proxy.ready.wait()

            async def happen() -> None:
                await change(tool_filter, running, scene)
                scene.go.set()

            async with asyncio.timeout(TIMEOUT):
                await client(running, happen)


@CHANGES
@DECLARES
async def test_a_list_change_is_announced_on_the_sessions_stream(
    declares: bool, change: Change, tmp_path: Path
) -> None:
    async def client(running: RunningProxy, happen: Callable[[], Awaitable[None]]) -> None:
        async with raw_client(running.port) as asker, raw_client(running.port) as reader:
            await asker.ask(post(INITIALIZE, headers=MCP_HEADERS))
            await reader.say(get(headers=IN_SESSION))
            await reader.until(b": hello\n\n")
            await happen()
            assert (await reader.until(b": last")).count(CHANGED) == declares
            listed = (await asker.ask(post(LIST, headers=IN_SESSION))).body
            assert (b"delete_all" in listed) is (change is list_anew)
            assert (b"new" in listed) is (change is list_anew)

    await play(Scene(declares), change, tmp_path, client)


@CHANGES
@DECLARES
async def test_a_list_change_is_announced_on_the_older_transport(
    declares: bool, change: Change, tmp_path: Path
) -> None:
    scene = Scene(declares)

    async def client(running: RunningProxy, happen: Callable[[], Awaitable[None]]) -> None:
        async with raw_client(running.port) as asker, raw_client(running.port) as reader:
            await reader.say(get(path="/sse"))
            await reader.until(b"/messages?s=1\n\n")
            hello = INITIALIZE.replace(b'"id":1', b'"id":0')
            await asker.ask(post(hello, path="/messages?s=1"))
            scene.asked.set()
            await reader.until(b'"u"')
            await happen()
            assert (await reader.until(b": last")).count(CHANGED) == declares

    await play(scene, change, tmp_path, client)


@CHANGES
@DECLARES
async def test_a_list_change_is_announced_over_a_websocket(
    declares: bool, change: Change, tmp_path: Path
) -> None:
    async def client(running: RunningProxy, happen: Callable[[], Awaitable[None]]) -> None:
        async with raw_client(running.port) as opener:
            end = await connect(opener.reader, opener.writer)
            await end.say(INITIALIZE.replace(b'"id":1', b'"id":0'))
            assert b"serverInfo" in (await end.hear() or b"")
            await happen()
            heard = [await end.hear()]
            while heard[-1] != LAST:
                heard.append(await end.hear())
            assert heard.count(NOTICE) == declares

    await play(Scene(declares), change, tmp_path, client)


@CHANGES
@pytest.mark.parametrize(
    ("id", "named", "agreed", "told"),
    [
        (b"7", b"7", b'"toolsListChanged":true', True),
        (b'"a b"', b'"a b"', b'"toolsListChanged":true', True),
        (b"7", b'"7"', b'"toolsListChanged":true', True),  # some write it as a text
        (b"7", b"7", b'"toolsListChanged":false', False),
        (b"7", b"7", b'"promptsListChanged":true', False),
        (b"7", b"8", b'"toolsListChanged":true', False),
    ],
)
async def test_a_list_change_is_announced_to_subscribers(
    id: bytes, named: bytes, agreed: bytes, told: bool, change: Change, tmp_path: Path
) -> None:
    """Clients of 2026-07-28 have no session; the notification names what they asked with."""

    async def client(running: RunningProxy, happen: Callable[[], Awaitable[None]]) -> None:
        async with raw_client(running.port) as reader:
            await reader.say(post(LISTEN % id, headers=MODERN))
            await reader.until(b"acknowledged")
            await happen()
            heard = await reader.until(b": last")
            assert heard.count(SUBSCRIBED % named) == told
            assert heard.count(b"list_changed") == told

    await play(Scene(acknowledged=ACKNOWLEDGED % (named, agreed)), change, tmp_path, client)


async def test_only_clients_of_the_changed_upstream_are_told(tmp_path: Path) -> None:
    changing, other, ports = Scene(), Scene(), [free_port(), free_port()]
    tool_filter = ToolFilter(report=lambda _text: None)
    async with (
        mcp_upstream(respond=changing.respond, lists=changing.lists, session=b"s1") as one,
        mcp_upstream(respond=other.respond, lists=other.lists, session=b"s1") as two,
        proxy(
            tool_filter,
            to=[f"reverse:{one.url}@{ports[0]}", f"reverse:{two.url}@{ports[1]}"],
            home=tmp_path,
            deny=["^x"],
            endpoint=["/mcp"],
        ),
    ):
        await tool_filter.proxy.ready.wait()
        heard: list[bytes] = []
        async with asyncio.timeout(TIMEOUT):
            for scene, port in zip((changing, other), ports, strict=True):
                async with raw_client(port) as asker, raw_client(port) as reader:
                    await asker.ask(post(INITIALIZE, headers=MCP_HEADERS))
                    await reader.say(get(headers=IN_SESSION))
                    await reader.until(b": hello\n\n")
                    changing.tools.append(tool(f"new_{port}"))
                    await tool_filter.proxy.changes.take_all_lists()
                    scene.go.set()
                    heard.append(await reader.until(b": last"))
        assert [CHANGED in one for one in heard] == [True, False]
