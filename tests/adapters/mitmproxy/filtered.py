"""A tool filter in a real mitmproxy, between an upstream with two tools and a client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.mcp_upstream import RESULT, McpUpstream, Respond, mcp_upstream, saying, tool
from tests.proxy import RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.served import served

READ, DELETE = tool("read_file"), tool("delete_file", ', "description":"gone \\u00e9"')
ENDPOINT = ["/mcp"]
ANSWERING = saying(RESULT)
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
)


@dataclass
class Filtered:
    upstream: McpUpstream
    client: RawClient
    proxy: RunningProxy

    @property
    def port(self) -> int:
        return self.proxy.port

    async def ask(self, body: bytes, headers: bytes = b"", path: str = "/mcp") -> Answer:
        return await self.client.ask(post(body, path=path, headers=MCP_HEADERS + headers))


@asynccontextmanager
async def filtered(
    home: Path,
    *scripts: object,
    addon: ToolFilter | None = None,
    host: str = "plain",
    respond: Respond = ANSWERING,
    lists: Callable[[RawRequest, str], bytes] | None = None,
    tools: Sequence[bytes] = (READ, DELETE),
    session: bytes = b"",
    on_sockets: bool = False,
    **options: Any,
) -> AsyncIterator[Filtered]:
    """Run a filter; the scripts come after ours, as with ``-s``. ``host`` as in ``tests.proxy``."""
    given = {"deny": ["^delete_"], "endpoint": ENDPOINT, **options}
    upstreams = mcp_upstream(tools=tools, respond=respond, lists=lists, session=session)
    async with upstreams as upstream:
        if on_sockets:
            running: Any = served(to=upstream.url, home=home, **given)
        else:
            addons = (addon or ToolFilter(), *scripts)
            running = proxy(*addons, to=upstream.url, home=home, host=host, **given)
        async with running as it, raw_client(it.port) as client:
            yield Filtered(upstream, client, it)


def call(name: str, arguments: str = "{}", id: str = "1") -> bytes:
    params = f'{{"name":{json.dumps(name)},"arguments":{arguments}}}'
    return f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}'.encode()


def not_found(name: str, id: str = "1") -> bytes:
    error = f'{{"code":-32601,"message":"Tool not found: {name}"}}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


def stumble(*_args: object, **_given: object) -> None:
    raise ZeroDivisionError("a bug")


def lost(id: str) -> bytes:
    error = '{"code":-32000,"message":"Upstream connection lost"}'
    return f'{{"jsonrpc":"2.0","id":{id},"error":{error}}}'.encode()


class Script:
    """A script behind the filter: one hook."""

    def __init__(self, hook: str, run: Callable[[Any], Any]) -> None:
        setattr(self, hook, run)


LIST = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'


async def legacy_upstream(request: RawRequest, peer: Peer) -> None:
    """HTTP+SSE: each POST is accepted, and the GET stream says nothing but where to post."""
    if request.line.startswith("GET /sse"):
        endpoint = peer.upstream.url.encode() + b"/messages?session=1"
        await peer.say(SSE_HEAD + chunk(b"event: endpoint\ndata: " + endpoint + b"\n\n"))
        await peer.left()
    else:
        await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
