"""A client, us, and an upstream that wants a login; and other upstreams, made of a few pages."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.conversation.memory import Fetched, example
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client

PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'

PLACE = "/.well-known/oauth-protected-resource/mcp"

SERVER = "/.well-known/oauth-authorization-server"

CLIENT = "http://127.0.0.1:49152/callback"

FORM = b"Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"

JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"


async def fetched(_target: object) -> Fetched:
    return example("read_file", "delete_file")


@dataclass
class Between:
    upstream: OAuthUpstream
    proxy: RunningProxy
    client: RawClient

    async def see(self, path: str, headers: bytes = MCP_HEADERS) -> Answer:
        return await self.client.ask(get(path=path, headers=headers))

    async def document(self, path: str, headers: bytes = MCP_HEADERS) -> dict[str, Any]:
        got = await self.see(path, headers)
        assert got.status == 200, got
        found: dict[str, Any] = json.loads(got.body)
        return found

    async def register(self, *uris: str) -> Answer:
        body = json.dumps({"redirect_uris": list(uris or (CLIENT,))}).encode()
        return await self.client.ask(post(body, path="/register", headers=JSON))

    async def authorize(self, headers: bytes = MCP_HEADERS, **asked: str) -> Answer:
        usual = {"client_id": "client-1", "redirect_uri": CLIENT, "state": "s"}
        return await self.see("/authorize?" + urlencode(usual | asked), headers)

    async def ask_token(self, **asked: str) -> Answer:
        body = urlencode(asked).encode()
        return await self.client.ask(post(body, path="/token", headers=FORM))


@asynccontextmanager
async def between(
    home: Path, options: dict[str, Any] | None = None, **how: Any
) -> AsyncIterator[Between]:
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"], **(options or {})}
    with oauth_upstream(**how) as upstream:
        async with (
            proxy(ToolFilter(fetch=fetched), to=upstream.origin, home=home, **given) as it,
            raw_client(it.port) as client,
        ):
            await client.ask(post(PING))  # each client first learns that a login is wanted
            yield Between(upstream, it, client)


def query_of(got: Answer) -> dict[str, str]:
    (there,) = got.all("location")
    return {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}


@contextmanager
def answering(pages: dict[str, bytes], status: int = 200, **headers: str) -> Iterator[str]:
    """An upstream with these pages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(404 if body is None else status)
            for name, value in headers.items() if body is not None else ():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A trap: its URL, and the connections that it got."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            asked.append(str(self.client_address))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
