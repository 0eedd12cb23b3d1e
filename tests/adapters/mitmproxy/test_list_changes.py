"""After an edit of the patterns, clients with an open stream hear that their list has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import INITIALIZE, LIST
from tests.mcp_upstream import RESULT, mcp_upstream, tool
from tests.proxy import TIMEOUT, proxy
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n"
CHANGED = b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
IN_SESSION = MCP_HEADERS + b"Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 2025-06-18\r\n"


@pytest.mark.parametrize("declares", [True, False], ids=["declared", "not declared"])
async def test_an_edit_of_the_patterns_is_told_on_open_streams(
    declares: bool, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(STREAM)
            await go.wait()
            await peer.say(b": more\n\n")
            await asyncio.Event().wait()
        await peer.say(answer(RESULT))

    tool_filter = ToolFilter(report=lambda _text: None)
    tools = [tool("read"), tool("delete_all")]
    options = {"deny": ["^x"], "endpoint": ["/mcp"]}
    async with (
        mcp_upstream(tools=tools, respond=respond, session=b"s1") as upstream,
        proxy(tool_filter, to=upstream.url, home=tmp_path, **options) as running,
        raw_client(running.port) as client,
        raw_client(running.port) as reader,
    ):
        if not declares:
            upstream.declares_changes = False
        await client.ask(post(INITIALIZE, headers=MCP_HEADERS))
        await reader.say(get(headers=IN_SESSION))
        async with asyncio.timeout(TIMEOUT):
            await reader.until(b": hello\n\n")
            running.master.options.update(tools_list=["upstream"])  # changes no pattern
            running.master.options.update(deny=["^delete_"])
            go.set()
            assert (await reader.until(b": more")).count(CHANGED) == declares
        listed = (await client.ask(post(LIST, headers=IN_SESSION))).body
        assert b"read" in listed
        assert b"delete_all" not in listed
