"""A small MCP server for the demo: Streamable HTTP, from 2025-03-26 to 2026-07-28.

It only repeats what it was asked to do, and remembers which tools were called.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

from mcp_tool_filter import __version__
from mcp_tool_filter.adapters.http_server import ServedRequest, ServedResponse, http_server
from mcp_tool_filter.cli.commands.demo_tools import NAMES, TOOLS
from mcp_tool_filter.protocol.limits import (
    INITIALIZE_REVISIONS,
    KNOWN_REVISIONS,
    R2025_11_25,
    R2026_07_28,
)

PATH = "/mcp"
_INFO = {"name": "demo", "version": __version__}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_MODERN = {
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": _INFO},
}
_CACHEABLE = {"ttlMs": 60_000, "cacheScope": "public"}

type JsonObject = dict[str, Any]


@dataclass
class DemoUpstream:
    """The running server, and the tools that were called."""

    port: int = 0
    calls: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def answer(self, request: ServedRequest) -> ServedResponse:
        status, said = self._answer_http(request)
        body = json.dumps(said, separators=(",", ":")).encode() if said else b""
        return ServedResponse(status, [(b"content-type", b"application/json")], body)

    def _answer_http(self, request: ServedRequest) -> tuple[int, JsonObject | None]:
        if request.path != PATH:
            return 404, None
        if request.method != "POST":
            return 405, None
        try:
            message = json.loads(request.body)
            method, params = message["method"], message.get("params") or {}
        except (ValueError, TypeError, KeyError):
            return 400, _error(None, -32600, "Invalid Request")
        if "id" not in message:
            return 202, None
        return self._answer(message["id"], method, params)

    def _answer(self, id: object, method: str, params: JsonObject) -> tuple[int, JsonObject]:
        said = params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion")
        if said not in (None, R2026_07_28):
            return 400, _error(id, -32022, "Unsupported protocol version", _supported(said))
        modern = _MODERN if said else {}
        match method:
            case "server/discover" if said:
                return 200, _result(id, _discovery() | modern)
            case "initialize" if not said:
                return 200, _result(id, _welcome(params))
            case "ping":
                return 200, _result(id, modern)
            case "tools/list":
                cacheable = _CACHEABLE if said else {}
                return 200, _result(id, {"tools": TOOLS} | cacheable | modern)
            case "tools/call":
                return 200, self._call(id, params, modern)
        return 404 if said else 200, _error(id, -32601, "Method not found")

    def _call(self, id: object, params: JsonObject, modern: JsonObject) -> JsonObject:
        name = str(params.get("name"))
        if name not in NAMES:
            return _error(id, -32602, f"Unknown tool: {name}")
        self.calls.append(name)
        text = f"demo: {name} was called with {json.dumps(params.get('arguments', {}))}"
        return _result(id, {"content": [{"type": "text", "text": text}]} | modern)


@asynccontextmanager
async def demo_upstream(
    port: int = 0, tls: SSLContext | None = None
) -> AsyncIterator[DemoUpstream]:
    """Run one on loopback."""
    upstream = DemoUpstream()
    async with http_server(upstream.answer, port=port, tls=tls) as server:
        upstream.port = server.port
        yield upstream


def _discovery() -> JsonObject:
    supported = {"supportedVersions": [*KNOWN_REVISIONS[1:]]}
    return supported | {"capabilities": _CAPABILITIES, **_CACHEABLE}


def _welcome(params: JsonObject) -> JsonObject:
    wanted = params.get("protocolVersion")
    revision = wanted if wanted in INITIALIZE_REVISIONS[1:] else R2025_11_25
    return {"protocolVersion": revision, "capabilities": _CAPABILITIES, "serverInfo": _INFO}


def _supported(requested: object) -> JsonObject:
    return {"supported": [R2026_07_28], "requested": requested}


def _result(id: object, result: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _error(id: object, code: int, message: str, data: JsonObject | None = None) -> JsonObject:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": id, "error": error}
