"""The proxy in a process of its own, in front of an upstream with an allowed and a denied tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cli.launched import RunningLauncher, launched
from tests.mcp_upstream import McpUpstream, Respond, mcp_upstream, tool
from tests.raw_client import Answer, post, raw_client
from tests.raw_upstream import Peer, RawRequest

LIST = b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}'

CALL = b'{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"%s"}}'

NOT_FOUND = b'{"jsonrpc":"2.0","id":"1","error":{"code":-32601,"message":"Tool not found: rm_rf"}}'

LOST = b'{"jsonrpc":"2.0","id":"1","error":{"code":-32000,"message":"Upstream connection lost"}}'

TOOLS = [tool("read_file"), tool("rm_rf")]


async def silent(_request: RawRequest, peer: Peer) -> None:
    await peer.left()


async def ask(port: int, body: bytes) -> Answer:
    async with raw_client(port) as client:
        return await client.ask(post(body))


def names_in(answer: Answer) -> list[str]:
    return [each["name"] for each in json.loads(answer.body)["result"]["tools"]]


@asynccontextmanager
async def serving(
    upstream: McpUpstream, home: Path, *more: str, environment: dict[str, str] | None = None
) -> AsyncIterator[RunningLauncher]:
    words = ("--upstream", f"{upstream.url}/mcp", "--deny", "^rm_", *more)
    async with launched(*words, home=home, environment=environment) as it:
        await it.serving()
        yield it


@asynccontextmanager
async def proxied(
    home: Path, *more: str, respond: Respond | None = None
) -> AsyncIterator[tuple[RunningLauncher, McpUpstream]]:
    """The same, with an upstream of its own."""
    async with (
        mcp_upstream(tools=TOOLS, respond=respond) as upstream,
        serving(upstream, home, *more) as it,
    ):
        yield it, upstream
