"""Lists of tools: new, changed, of one user, and what stays hidden."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.filtered import INITIALIZE, LIST, Changing, Filtered, ask, call, filtered, not_found
from tests.hosts import HOSTS, MITMDUMP, filtering, hosted
from tests.mcp_upstream import RESULT, mcp_upstream, tool, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import TIMEOUT, Peer, RawRequest, answer, free_port, raw_upstream, until

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

HELLO = (
    b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"u","version":"1"}}}'
)

NOTICE = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
CHANGED = b"data: " + NOTICE + b"\n\n"
IN_SESSION = MCP_HEADERS + b"Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 2025-06-18\r\n"
MODERN = MCP_HEADERS + b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n"

LISTEN = (
    b'{"jsonrpc":"2.0","id":%s,"method":"subscriptions/listen","params":{"_meta":'
    b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"toolsListChanged":true}}}'
)
SUBSCRIPTION = b'{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}'
ACKNOWLEDGED = (
    b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":'
    + SUBSCRIPTION
    + b',"notifications":{%s}}}'
)
SUBSCRIBED = b"data: " + NOTICE[:-1] + b',"params":' + SUBSCRIPTION + b"}}\n\n"


@dataclass
class Scene:
    """An upstream whose clients keep a stream open until the list has changed."""

    declares: bool = True
    acknowledged: bytes = b""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    tools: list[bytes] = field(default_factory=lambda: [tool("read"), tool("delete_all")])

    @property
    def hello(self) -> bytes:
        return HELLO if self.declares else HELLO.replace(b'"listChanged":true', b"")

    async def respond(self, request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET /sse"):
            endpoint = b"event: endpoint\ndata: /messages?s=1\n\n"
            await self._stream(peer, endpoint, b"data: " + self.hello + b"\n\n")
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


type Change = Callable[[Filtered, Scene], Awaitable[None]]


async def edit(it: Filtered, _scene: Scene) -> None:
    it.set(show_secrets=["true"])  # changes no pattern
    it.set(deny=["^delete_"])


async def list_anew(it: Filtered, scene: Scene) -> None:
    await it.addon.proxy.changes.take_all_lists()  # the same: nobody is told
    scene.tools.append(tool("new"))
    await it.addon.proxy.changes.take_all_lists()


CHANGES = pytest.mark.parametrize("change", [edit, list_anew])

DECLARES = pytest.mark.parametrize("declares", [True, False], ids=["declared", "not declared"])


@asynccontextmanager
async def playing(
    scene: Scene, change: Change, home: Path
) -> AsyncIterator[tuple[Filtered, Callable[[], Awaitable[None]]]]:
    """Yield a client that opens its stream; and what changes what it may see."""
    given: Any = {"respond": scene.respond, "tools": scene.tools, "session": b"s1", "deny": ["^x"]}
    async with asyncio.timeout(TIMEOUT), filtered(home, **given) as it:
        it.upstream.declares_changes = scene.declares
        await it.exposed()

        async def happen() -> None:
            await change(it, scene)
            scene.go.set()

        yield it, happen


@CHANGES
@DECLARES
async def test_a_list_change_is_announced_on_the_streams_of_a_client(
    declares: bool, change: Change, tmp_path: Path
) -> None:
    """On the GET stream of its session, and on the stream of the older transport."""
    scene = Scene(declares)
    async with (
        playing(scene, change, tmp_path) as (it, happen),
        raw_client(it.port) as reader,
        raw_client(it.port) as older,
    ):
        await it.ask(INITIALIZE)
        await reader.say(get(headers=IN_SESSION))
        await reader.until(b": hello\n\n")
        await older.say(get(path="/sse"))
        await older.until(b"/messages?s=1\n\n")
        await it.ask(INITIALIZE, path="/messages?s=1")
        scene.asked.set()
        await older.until(b'"u"')
        await happen()
        for one in (reader, older):
            assert (await one.until(b": last")).count(CHANGED) == declares
        listed = (await it.client.ask(post(LIST, headers=IN_SESSION))).body
        assert (b"delete_all" in listed) is (change is list_anew)
        assert (b"new" in listed) is (change is list_anew)


AGREED = b'"toolsListChanged":true'


@CHANGES
@pytest.mark.parametrize(("id", "named", "agreed", "told"), [
    (b"7", b"7", AGREED, True), (b'"a b"', b'"a b"', AGREED, True),
    (b"7", b'"7"', AGREED, True),  # some write it as a text
    (b"7", b"7", b'"toolsListChanged":false', False),
    (b"7", b"7", AGREED + b',"toolsListChanged":false', False),
    (b"7", b"7", b'"promptsListChanged":true', False),
    (b"7", b"8", AGREED, False),
])  # fmt: skip
async def test_a_list_change_is_announced_to_subscribers(
    id: bytes, named: bytes, agreed: bytes, told: bool, change: Change, tmp_path: Path
) -> None:
    """Clients of 2026-07-28 have no session; the notification names what they asked with."""
    scene = Scene(acknowledged=ACKNOWLEDGED % (named, agreed))
    async with playing(scene, change, tmp_path) as (it, happen):
        await it.client.say(post(LISTEN % id, headers=MODERN))
        await it.client.until(b"acknowledged")
        await happen()
        heard = await it.client.until(b": last")
        assert (heard.count(SUBSCRIBED % named), heard.count(b"list_changed")) == (told, told)


# New snapshots while we run: each upstream's by itself, and one line says what has changed.


async def test_each_upstream_keeps_its_old_list_if_it_cannot_give_a_new_one(tmp_path: Path) -> None:
    """Two listeners in one process; the first upstream fails, the second has new tools."""
    lists, ports, is_down = Changing(), (free_port(), free_port()), False

    def failing(_request: RawRequest, id: str) -> bytes:
        if is_down:
            return answer(b"no", status="503 Service Unavailable", kind="text/plain")
        return answer(tool_list([tool("steady")], id=id))

    async with mcp_upstream(lists=failing) as one, mcp_upstream(lists=lists) as two:
        to, other = (f"{each.url}@{port}" for each, port in zip((one, two), ports, strict=True))
        words = ("deny=^delete_", "endpoint=/mcp", "--mode", f"reverse:{other}")
        async with hosted(MITMDUMP, to, tmp_path, *words) as it:
            await it.says(rf"MCP tool filter: http://127.0.0.1:{ports[1]}")
            assert await ask(ports[0], "steady") == RESULT
            is_down = True
            lists.names = ["stays", "comes"]
            it.interrupt(signal.SIGHUP)
            new = f"took a new list of {two.url}: new tool comes, tool goes is gone"
            await it.says(f"SIGHUP: {new}")
            await it.says(rf"Warning: SIGHUP: the old list of {one.url} stays: .*503")
            assert await ask(ports[0], "steady") == RESULT
            assert await ask(ports[1], "comes") == RESULT
            assert await ask(ports[0], "comes") == not_found("comes")
            await one.raw.stop()
            it.interrupt(signal.SIGHUP)
            await it.says(rf"the old list of {one.url} stays: Connection refused")
            assert await ask(ports[1], "stays") == RESULT


# An upstream that lists its tools only to users, and says how they log in, can be filtered.

CHALLENGE = '401 Unauthorized\r\nWWW-Authenticate: Bearer resource_metadata="/.well-known/x"'

TOKENS = {"Bearer ann": ["of_ann", "delete_ann"], "Bearer bob": ["of_bob"]}


async def users_only(peer: Peer) -> None:
    while True:
        await answer_user(await peer.request(), peer)


async def answer_user(request: RawRequest, peer: Peer) -> None:
    """Answer each known user with their own tools; refuse others."""
    [token] = request.all("authorization") or [""]
    said = json.loads(request.body or b"{}")
    if token not in TOKENS:
        await peer.say(answer(b"no", status=CHALLENGE, kind="text/plain"))
    elif said.get("method") == "tools/list":
        tools = [tool(name) for name in TOKENS[token]]
        await peer.say(answer(tool_list(tools, id=json.dumps(said["id"]))))
    else:
        await peer.say(answer(RESULT))


async def test_each_user_is_served_with_their_own_list(tmp_path: Path) -> None:
    reports: list[str] = []
    options = {"deny": ["^delete_"], "endpoint": ["/mcp"]}
    addon = ToolFilter(report=reports.append)
    async with (
        raw_upstream(users_only) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, **options) as running,
        raw_client(running.port) as client,
    ):

        async def ask(body: bytes, user: str) -> bytes:
            return await asked_by(running.port, body, "2025-11-25", user)

        assert (await client.ask(post(INITIALIZE))).status == 401
        assert "when the first client logs in" in reports[0]
        for user, tools in {"": [], "ann": ["of_ann"], "bob": ["of_bob"]}.items():
            for name in ("of_ann", "delete_ann", "of_bob"):
                if user or name == "delete_ann":
                    said = RESULT if name in tools else not_found(name)
                    assert await ask(call(name), user) == said
        assert b"of_ann" in await ask(LIST, "ann")
        assert b"delete_ann" not in await ask(LIST, "ann")
        assert b"of_bob" in await ask(LIST, "bob")


# A tool that is hidden for another reason than a pattern is named once for each kind of asker.

LONG = "x" * 257

FAULTY = [tool("read"), tool("read"), tool(LONG), b'{"name":7,"inputSchema":{}}', tool("delete_x")]

REASONS = (
    "lists read twice",
    "x… is longer than 256 characters: not exposed; to get the tool",
    "a tool without a name: not exposed",
)

NEW = "new tool later: hidden until you restart the filter; with --new-tools judge"


PAGE = LIST.replace(b"}", b',"params":{"cursor":"2"}}')
"""A page, which the snapshot does not answer."""


def lists(request: RawRequest, id: str) -> bytes:
    """List more to clients than to the filter's own fetch at start."""
    is_ours = b"mcp-tool-filter" in request.head.lower()
    is_at_start = is_ours and b"authorization" not in request.head.lower()
    return answer(tool_list([tool("read")] if is_at_start else [*FAULTY, tool("later")], id=id))


async def asked_by(port: int, body: bytes, revision: str, user: str = "") -> bytes:
    headers = MCP_HEADERS + f"MCP-Protocol-Version: {revision}\r\n".encode()
    headers += f"Authorization: Bearer {user}\r\n".encode() if user else b""
    async with raw_client(port) as client:
        return (await client.ask(post(body, headers=headers))).body


async def check(port: int, stderr: Callable[[], str]) -> None:
    """Ask as several kinds of asker, twice; read what the user reads."""
    for _ in range(2):
        assert b"later" not in await asked_by(port, PAGE, "2025-06-18")
        assert b"later" in await asked_by(port, LIST, "2025-11-25")
        asks_for_the_list = call("read")
        assert await asked_by(port, asks_for_the_list, "2025-11-25", "ann") == RESULT
    await until(lambda: "credentials)" in stderr())
    said = stderr()
    [new] = [line for line in said.splitlines() if NEW in line]
    assert "2025-06-18" in new
    for reason in REASONS:
        lines = [line for line in said.splitlines() if reason in line]
        assert all(line.startswith("Warning: ") for line in lines)
        assert [line for line in lines if "2025-06-18" in line] == lines[:1]
        assert len([line for line in lines if line.endswith("credentials)")]) == 1
        assert len(lines) == 3
    assert "delete_x" not in said  # a pattern hides it
    assert "ann" not in said


@pytest.mark.parametrize("more", [(), ("-q",), ("-v",)], ids=["usual", "quiet", "verbose"])
@pytest.mark.parametrize("host", HOSTS)
async def test_hidden_tools_are_named(host: str, more: tuple[str, ...], tmp_path: Path) -> None:
    words = (*more, "deny=^delete_,^none")
    async with filtering(host, tmp_path, *words, lists=lists, port=free_port()) as it:
        await check(it.port, lambda: it.stderr)
        assert it.stderr.count('Warning: the pattern "^none" matches no tool\n') == 1
