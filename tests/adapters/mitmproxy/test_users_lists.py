"""An upstream that lists its tools only to users, and says how they log in, can be filtered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.upstream.fetch import fetch
from mcp_tool_filter.adapters.upstream.target import Target
from mcp_tool_filter.errors import FetchFailed, ListsAfterLogin
from tests.adapters.mitmproxy.filtered import INITIALIZE, LIST, call, not_found
from tests.mcp_upstream import RESULT, tool, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer, raw_upstream

CHALLENGE = '401 Unauthorized\r\nWWW-Authenticate: Bearer resource_metadata="/.well-known/x"'
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{"tools":{}},"serverInfo":{"name":"u","version":"1"}}}'
)
TOKENS = {"Bearer ann": ["of_ann", "delete_ann"], "Bearer bob": ["of_bob"]}


def target(url: str, *headers: tuple[str, str]) -> Target:
    return Target(
        url=url,
        endpoint="/mcp",
        headers=headers,
        connect_timeout=10,
        list_timeout=10,
        tls=None,
        limit=1 << 20,
    )


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


async def test_a_401_that_says_how_to_log_in_is_recognised() -> None:
    async with raw_upstream(users_only) as upstream:
        with pytest.raises(ListsAfterLogin) as wanted:
            await fetch(target(upstream.url))
        assert wanted.value.path == "/mcp"
        with pytest.raises(FetchFailed) as failed:
            await fetch(target(upstream.url, ("Authorization", "Bearer wrong")))
        assert not isinstance(failed.value, ListsAfterLogin)


async def test_each_user_is_served_with_their_own_list(tmp_path: Path) -> None:
    reports: list[str] = []
    options = {"deny": ["^delete_"], "endpoint": ["/mcp"]}
    async with (
        raw_upstream(users_only) as upstream,
        proxy(
            ToolFilter(report=reports.append), to=upstream.url, home=tmp_path, **options
        ) as running,
        raw_client(running.port) as client,
    ):

        async def ask(body: bytes, user: bytes) -> bytes:
            version = b"MCP-Protocol-Version: 2025-11-25\r\n"
            headers = (
                MCP_HEADERS
                + version
                + (b"Authorization: Bearer " + user + b"\r\n" if user else b"")
            )
            return (await client.ask(post(body, headers=headers))).body

        refused = await client.ask(post(INITIALIZE, headers=MCP_HEADERS))
        assert refused.status == 401
        assert "when the first client logs in" in reports[0]
        assert await ask(call("delete_ann"), b"") == not_found("delete_ann")
        assert await ask(call("delete_ann"), b"ann") == not_found("delete_ann")
        assert await ask(call("of_bob"), b"ann") == not_found("of_bob")
        assert await ask(call("of_ann"), b"ann") == RESULT
        assert await ask(call("of_ann"), b"bob") == not_found("of_ann")
        assert b"of_ann" in await ask(LIST, b"ann")
        assert b"delete_ann" not in await ask(LIST, b"ann")
        assert b"of_bob" in await ask(LIST, b"bob")


async def test_the_start_can_require_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_filter = ToolFilter(report=lambda _text: None)
    ended = asyncio.Event()
    said: list[str] = []

    def fail(why: str) -> None:
        said.append(why)
        ended.set()

    monkeypatch.setattr(tool_filter.proxy, "fail", fail)
    async with (
        raw_upstream(users_only) as upstream,
        proxy(tool_filter, to=upstream.url, home=tmp_path, deny=["^x"], require_list=["true"]),
    ):
        async with asyncio.timeout(20):
            await ended.wait()
        tool_filter.proxy.ready.set()
    assert "401" in said[0]


@pytest.mark.parametrize("has_sessions", [False, True], ids=["without session", "in sessions"])
async def test_a_user_identified_by_the_url_gets_their_own_list(
    has_sessions: bool, tmp_path: Path
) -> None:
    """Some upstreams take a token in the URL; some have several servers, each at its own path."""
    lists = {"/mcp": ["shared"], "/mcp?token=ann": ["shared", "of_ann"], "/other": ["elsewhere"]}

    def session_at(url: str) -> bytes:
        return b"Mcp-Session-Id: s%d\r\n" % list(lists).index(url) if has_sessions else b""

    async def answer_url(peer: Peer) -> None:
        while True:
            request = await peer.request()
            url, said = request.line.split()[1], json.loads(request.body or b"{}")
            id = json.dumps(said.get("id"))
            if said.get("method") == "tools/list":
                await peer.say(answer(tool_list([tool(name) for name in lists[url]], id=id)))
            elif said.get("method") == "server/discover":
                await peer.say(answer(b"no", status="400 Bad Request", kind="text/plain"))
            elif said.get("method") == "initialize":
                hello = HELLO.replace(b'"id":1', b'"id":' + id.encode())
                await peer.say(answer(hello).replace(b"\r\n", b"\r\n" + session_at(url), 1))
            else:
                await peer.say(answer(RESULT))

    options = {"deny": ["^delete_"], "endpoint": ["/mcp"]}
    async with (
        raw_upstream(answer_url) as upstream,
        proxy(
            ToolFilter(report=lambda _: None), to=upstream.url, home=tmp_path, **options
        ) as running,
        raw_client(running.port) as client,
    ):

        async def ask(body: bytes, url: str) -> bytes:
            headers = MCP_HEADERS + b"MCP-Protocol-Version: 2025-11-25\r\n" + session_at(url)
            return (await client.ask(post(body, path=url, headers=headers))).body

        for url in lists:
            if has_sessions:
                await client.ask(post(INITIALIZE, path=url, headers=MCP_HEADERS))
        for _ in range(2):
            for url, names in lists.items():
                for name in ("shared", "of_ann", "elsewhere", "delete_it"):
                    is_there = name in names
                    assert await ask(call(name), url) == (RESULT if is_there else not_found(name))
                listed = json.loads(await ask(LIST, url))["result"]["tools"]
                assert [one["name"] for one in listed] == names
