"""A server of the Python SDK 1.30 that lists other tools to each user, by their token."""

from __future__ import annotations

import argparse
import contextlib
import socket
from collections.abc import AsyncIterator

from fixtures import _Announcing
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn import Config

server: Server[object] = Server("users")


def names() -> list[str]:
    request = server.request_context.request
    user = request.headers.get("authorization", "").removeprefix("Bearer ")
    return ["shared", *([f"of_{user}", f"delete_of_{user}"] if user else [])]


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    return [types.Tool(name=name, inputSchema={"type": "object"}) for name in names()]


@server.call_tool()
async def call_tool(name: str, _arguments: dict[str, object]) -> list[types.TextContent]:
    if name not in names():
        raise ValueError("not yours")
    return [types.TextContent(type="text", text=f"did {name}")]


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--journal")
args = parser.parse_args()
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", args.port))
manager = StreamableHTTPSessionManager(app=server)


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with manager.run():
        yield


app = Starlette(routes=[Mount("/", app=manager.handle_request)], lifespan=lifespan)
_Announcing(Config(app, log_level="warning", lifespan="on")).run(sockets=[listener])
