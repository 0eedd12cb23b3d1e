"""A forward proxy in front of another proxy: requests in tunnels go through tunnels of that one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mitmproxy.addons.proxyauth import ProxyAuth
from mitmproxy.addons.upstream_auth import UpstreamAuth

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.intercepting import DELETE, JSON, READ, call, not_found, tunnel
from tests.mcp_upstream import mcp_upstream
from tests.proxy import certified, proxy
from tests.raw_client import Answer, raw_client, trusting

LOGIN = b"Proxy-Authorization: Basic dTpw\r\n"


@dataclass
class Behind:
    """A proxy that notes what it is asked."""

    heads: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            target = head.split(b" ")[1].decode()
            where = target.removeprefix("http://").partition("/")[0].rpartition(":")
            there = await asyncio.open_connection(where[0], int(where[2]))
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                there[1].write(
                    head.replace(target.encode(), b"/" + target.encode().split(b"/", 3)[3])
                )
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def a_proxy() -> AsyncIterator[Behind]:
    behind = Behind()
    server = await asyncio.start_server(behind.serve, "127.0.0.1", 0)
    behind.port = server.sockets[0].getsockname()[1]
    yield behind
    server.close()


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("way", ["absolute", "tunnel", "tls"])
async def test_requests_go_on_to_the_proxy_behind(
    way: str, is_direct: bool, tmp_path: Path
) -> None:
    tls = certified(tmp_path) if way == "tls" else None
    addon = ToolFilter()
    async with (
        mcp_upstream(tools=[READ, DELETE], tls=tls) as upstream,
        a_proxy() as behind,
        proxy(
            addon, UpstreamAuth(), to=[f"upstream:http://127.0.0.1:{behind.port}"], home=tmp_path,
            deny=["^delete_"], ssl_insecure=True, upstream_auth="u:p",
        ) as running,
        raw_client(running.port) as client,
    ):  # fmt: skip
        assert addon.interception is not None
        addon.interception.is_direct = lambda _host: is_direct
        host = upstream.url.partition("//")[2]
        if way != "absolute":
            await tunnel(client, host, trusting() if tls else None)
        prefix = upstream.url if way == "absolute" else ""

        async def ask(body: bytes, path: str = "/mcp") -> Answer:
            head = f"POST {prefix}{path} HTTP/1.1\r\nHost: {host}\r\n".encode() + JSON
            return await client.ask(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

        assert json.loads((await ask(call("delete_file"))).body) == not_found("delete_file")
        assert (await ask(call("read_file"))).status == 200
        assert (await ask(b"other", "/other")).status == 200
        assert bool(behind.heads) is not is_direct
        assert all(LOGIN.lower() in head.lower() for head in behind.heads)
        assert (
            all(b"roxy-auth" not in one.head for one in upstream.raw.requests) or way == "absolute"
        )


@pytest.mark.parametrize("login", [b"", LOGIN])
@pytest.mark.parametrize("way", ["absolute", "tunnel"])
async def test_a_client_needs_the_login_that_mitmproxys_option_asks_for(
    way: str, login: bytes, tmp_path: Path
) -> None:
    async with (
        mcp_upstream(tools=[READ, DELETE]) as upstream,
        proxy(
            ToolFilter(), ProxyAuth(), to=["regular"], home=tmp_path, deny=["^x"], proxyauth="u:p"
        ) as running,
        raw_client(running.port) as client,
    ):
        host = upstream.url.partition("//")[2].encode()
        line = b"CONNECT %b" % host if way == "tunnel" else b"GET http://%b/x" % host
        await client.say(line + b" HTTP/1.1\r\nHost: x\r\n" + login + b"\r\n")
        head = await client.head()
        assert head.split(b" ")[1] == (b"200" if login else b"407")
        assert (b"Proxy-Authenticate: Basic realm=" in head) is not bool(login)
        if login and way == "tunnel":
            body = call("read_file")
            length = b"Content-Length: %d\r\n" % len(body)
            got = await client.ask(
                b"POST /mcp HTTP/1.1\r\nHost: x\r\n" + JSON + length + b"\r\n" + body
            )
            assert got.status == 200
        assert not any(b"roxy-auth" in one.head for one in upstream.raw.requests)
