"""A quick MCP upstream: what it says was written before it was asked.

    python -m tests.bench.upstream 20 2000      prints its ports, one for each number of tools

The tool ``answer`` takes ``{"bytes": 1024, "as": "json", "what": "text"}``, or ``"sse"``, and
``"rows"``, ``"rows in a text"`` or ``"base64"``. Every tenth tool is
called ``danger_…``, and denied by whatever filter is in front of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

DENY = "^danger_"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_INFO = {"name": "bench", "version": "1"}
_SENTENCE = 'A line such as tools return it, with a "quote" and an end.\n'
_GOING_ON = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)

type Json = dict[str, Any]


def tool_names(number: int) -> list[str]:
    """
    >>> tool_names(3)
    ['answer', 'danger_1', 'tool_2']
    """
    return ["answer", *(f"{'danger' if n % 10 == 1 else 'tool'}_{n}" for n in range(1, number))]


def definition(name: str) -> Json:
    """As large as most are: some 450 bytes."""
    text = {"type": "string", "description": "Path of the file, relative to the project's folder"}
    limit = {"type": "integer", "description": "At most so many", "minimum": 1, "default": 100}
    return {
        "name": name,
        "title": name.replace("_", " "),
        "description": "Finds what was asked for and returns it line by line, the newest first.",
        "inputSchema": {
            "type": "object",
            "properties": {"path": text, "limit": limit},
            "required": ["path"],
            "additionalProperties": False,
        },
    }


class Connection(asyncio.Protocol):
    """One client, which waits for an answer before it asks again."""

    def __init__(self, tools: bytes) -> None:
        self._tools = tools
        self._heard = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while (end := self._heard.find(b"\r\n\r\n") + 4) > 3:
            length = _LENGTH.search(self._heard, 0, end)
            whole = end + (int(length[1]) if length else 0)
            if len(self._heard) < whole:
                return
            method, body = bytes(self._heard[:4]), bytes(self._heard[end:whole])
            del self._heard[:whole]
            self._transport.write(self._answer(method, body))

    def _answer(self, method: bytes, body: bytes) -> bytes:
        if method == b"GET ":
            return _GOING_ON
        if method == b"DELE":
            return _answered(b"")
        asked = json.loads(body)
        if "id" not in asked:
            return _answered(b"", status=b"202 Accepted")
        id = json.dumps(asked["id"]).encode()
        match asked["method"], asked.get("params"):
            case "tools/call", {"name": "answer", "arguments": {"bytes": size, "as": how, **more}}:
                return _called(id, size, how, str(more.get("what", "text")))
            case "tools/list", _:
                return _answered(_result(id, self._tools))
            case "initialize", {"protocolVersion": revision}:
                return _answered(_result(id, _welcome(revision)), session=True)
            case "ping", _:
                return _answered(_result(id, b"{}"))
        error = b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}'
        return _answered(error % id)


@lru_cache
def _called(id: bytes, size: int, how: str, what: str) -> bytes:
    result = _result(id, json.dumps(tool_result(size, what)).encode())
    return _as_event(result) if how == "sse" else _answered(result)


def tool_result(size: int, what: str) -> Json:
    """Make a result of about so many bytes."""
    if what == "base64":
        return {
            "content": [
                {"type": "image", "mimeType": "image/png", "data": "iVBORw0K" * (size // 8)}
            ]
        }
    if what == "text":
        return _text((_SENTENCE * (size // len(_SENTENCE) + 1))[:size])
    rows = [
        {"id": n, "name": f"row {n}", "ok": n % 3 == 0, "size": n * 1.5} for n in range(size // 53)
    ]
    if what == "rows":
        return {"content": [], "structuredContent": {"rows": rows}}
    return _text(json.dumps(rows))


def _text(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}]}


@cache
def _welcome(revision: str) -> bytes:
    said = {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": _INFO}
    return json.dumps(said).encode()


def _result(id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, result)


_sessions = 0


def _answered(body: bytes, *, status: bytes = b"200 OK", session: bool = False) -> bytes:
    global _sessions
    _sessions += session
    own = b"Mcp-Session-Id: bench-%d\r\n" % _sessions if session else b""
    kind = b"Content-Type: application/json\r\n" if body else b""
    return b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n%s" % (status, own, kind, len(body), body)


def _as_event(body: bytes) -> bytes:
    event = b"event: message\ndata: %s\n\n" % body
    return b"%s%x\r\n%s\r\n0\r\n\r\n" % (_GOING_ON, len(event), event)


def _speaking(number: int) -> Callable[[], Connection]:
    tools = {"tools": [definition(name) for name in tool_names(number)]}
    said = json.dumps(tools, separators=(",", ":")).encode()
    return lambda: Connection(said)


async def serve(numbers: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_speaking(number), "127.0.0.1", 0) for number in numbers]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve([int(word) for word in sys.argv[1:]]))
