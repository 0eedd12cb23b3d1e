"""A server of the Python SDK 1.30 that lists other tools to each user, by their token."""

from __future__ import annotations

from fixtures import arguments, serve
from mcp import types
from mcp.server.lowlevel import Server
from server_mcp1 import streamable_app

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


args = arguments(__doc__ or "", "streamable")
serve(streamable_app(server, args), args.port)
