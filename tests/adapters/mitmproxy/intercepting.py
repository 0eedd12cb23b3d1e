"""A client that goes through us, as a forward proxy, to an upstream."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.mcp_upstream import McpUpstream, Respond, mcp_upstream, tool
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import Answer, RawClient, raw_client, trusting
from tests.raw_upstream import (
    Peer,
    RawRequest,
    answer,
)

READ, DELETE = tool("read_file"), tool("delete_file")
JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

hosts = pytest.mark.parametrize("host", ["plain", "lean", "dump"])
ways = pytest.mark.parametrize("way", ["absolute", "tunnel", "tls"])


def request(method: str, **params: Any) -> bytes:
    said = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return json.dumps(said).encode()


def call(name: str) -> bytes:
    return request("tools/call", name=name, arguments={})


def not_found(name: str) -> dict[str, Any]:
    error = {"code": -32601, "message": f"Tool not found: {name}"}
    return {"jsonrpc": "2.0", "id": 7, "error": error}


@dataclass
class Between:
    """A client that goes through us to an upstream."""

    upstream: McpUpstream
    proxy: RunningProxy
    client: RawClient
    prefix: str

    async def send(
        self, body: bytes, *, path: str = "/mcp", headers: bytes = JSON, method: str = "POST"
    ) -> Answer:
        return await self.client.ask(self.written(body, path, headers, method))

    def written(self, body: bytes, path: str, headers: bytes, method: str = "POST") -> bytes:
        host = self.upstream.url.partition("//")[2]
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {host}\r\n".encode()
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        return head + headers + length + b"\r\n" + body


@asynccontextmanager
async def between(
    home: Path,
    way: str = "tunnel",
    *,
    host: object = "plain",
    respond: Respond | None = None,
    session: bytes = b"",
    **options: Any,
) -> AsyncIterator[Between]:
    options = {"deny": ["^delete_"], **options}
    tls = certified(home) if way == "tls" else None
    tools = [READ, DELETE]
    async with (
        mcp_upstream(tools=tools, respond=respond, session=session, tls=tls) as upstream,
        proxy(ToolFilter(), to=["regular"], home=home, host=host, **options) as running,
        raw_client(running.port) as client,
    ):
        if way != "absolute":
            await tunnel(client, upstream.url.partition("//")[2], trusting() if tls else None)
        prefix = upstream.url if way == "absolute" else ""
        yield Between(upstream, running, client, prefix)


async def tunnel(client: RawClient, to: str, tls: ssl.SSLContext | None) -> None:
    await client.say(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
    assert b" 200 " in await client.head()
    if tls:
        await client.writer.start_tls(tls, server_hostname="localhost")


async def names_listed(it: Between) -> list[str]:
    got = json.loads((await it.send(request("tools/list"))).body)
    return [one["name"] for one in got["result"]["tools"]]


async def echo(asked: RawRequest, peer: Peer) -> None:
    await peer.say(answer(asked.body, kind="application/octet-stream"))
