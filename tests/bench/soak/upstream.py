"""An upstream that answers late, in pieces, and hangs up: python -m tests.bench.soak.upstream

Prints its port. It speaks Streamable HTTP at /mcp and HTTP+SSE at /sse. ``echo`` returns the token
it is called with, in the way the call asks for; ``danger_zone`` must never be called, nor
``echo`` twice with one token: that ends it, and so the run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

ALLOWED, DENIED, MARK = "echo", "danger_zone", "burns-it-all"

type Json = dict[str, Any]

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_BEAT = 0.5  # seconds between what an open stream says
_numbers = count(1)
_heard: set[str] = set()
_posted: dict[str, Callable[[bytes], None]] = {}
"""How to reach the client of an HTTP+SSE session."""


def _tool(name: str, about: str) -> Json:
    return {"name": name, "description": about, "inputSchema": {"type": "object"}}


_TOOLS = {"tools": [_tool(ALLOWED, "Says it again."), _tool(DENIED, MARK)]}


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        for used in count():
            method, target, headers, body = await _read(reader)
            if not await _answer(writer, method, target, headers, body, is_used=used > 0):
                break
    writer.close()


async def _read(reader: StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = first.split(" ")
    fields = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    return method, target, headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def _answer(
    writer: StreamWriter,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes,
    *,
    is_used: bool,
) -> bool:
    """Answer one request; False if the connection is not to be used again."""
    if method == "GET" and target == "/sse":
        return await _legacy_stream(writer)
    if method == "GET":
        return await _own_stream(writer, headers.get("mcp-session-id", ""))
    if method == "DELETE":
        return await _write(writer, _whole(b""))
    message = json.loads(body)
    if target.startswith("/messages"):
        return await _answer_posted(writer, target.partition("=")[2], message)
    if "id" not in message:
        return await _write(writer, _whole(b"", status=b"202 Accepted"))
    result = _result(message)
    asked = message.get("params", {}).get("arguments", {})
    if message["method"] == "tools/call":
        await asyncio.sleep(asked["delay"])
        if asked["how"] == "reset" and is_used:
            writer.transport.abort()
            return False
    session = b"soak-%d" % next(_numbers) if message["method"] == "initialize" else b""
    if asked.get("how") == "sse":
        return await _in_pieces(writer, result)
    await _write(writer, _whole(result, session=session))
    if asked.get("how") == "then reset":
        await asyncio.sleep(asked["delay"] / 10)
        writer.transport.abort()
        return False
    return True


def _result(message: Json) -> bytes:
    match message["method"]:
        case "initialize":
            revision = message["params"]["protocolVersion"]
            info = {"name": "soak", "version": "1"}
            result: Json = {
                "protocolVersion": revision,
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            result = _TOOLS
        case "tools/call":
            if message["params"]["name"] != ALLOWED:
                sys.exit("a call has come that should have been refused")
            asked = message["params"]["arguments"]
            if asked["token"] in _heard:
                sys.exit("a call has come twice")
            _heard.add(asked["token"])
            text = asked["token"] + "." * asked["size"]
            result = {"content": [{"type": "text", "text": text}]}
        case "ping":
            result = {}
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


async def _answer_posted(writer: StreamWriter, session: str, message: Json) -> bool:
    if say := _posted.get(session):
        await _write(writer, _whole(b"Accepted", status=b"202 Accepted", kind=b"text/plain"))
        if "id" in message:
            await asyncio.sleep(message.get("params", {}).get("arguments", {}).get("delay", 0))
            say(_event(_result(message)))
        return True
    return await _write(writer, _whole(b"", status=b"404 Not Found"))


async def _legacy_stream(writer: StreamWriter) -> bool:
    session = f"legacy-{next(_numbers)}"

    def say(event: bytes) -> None:
        writer.write(_chunk(event))

    _posted[session] = say
    try:
        say_first = b"event: endpoint\ndata: /messages?session=%s\n\n" % session.encode()
        await _write(writer, _going_on() + _chunk(say_first))
        while True:
            await asyncio.sleep(_BEAT)
            await _write(writer, _chunk(b": still here\n\n"))
    finally:
        del _posted[session]


async def _own_stream(writer: StreamWriter, session: str) -> bool:
    """Say to a session its own name and a number, time and again; break off after a while."""
    await _write(writer, _going_on())
    for number in range(20):
        params = {"session": session, "number": number}
        said = {"jsonrpc": "2.0", "method": "notifications/soak", "params": params}
        await _write(writer, _chunk(_event(json.dumps(said).encode())))
        await asyncio.sleep(_BEAT)
    writer.transport.abort()
    return False


async def _in_pieces(writer: StreamWriter, message: bytes) -> bool:
    event = _event(message)
    await _write(writer, _going_on())
    for at in range(0, len(event), 5000):
        await _write(writer, _chunk(event[at : at + 5000]))
        await asyncio.sleep(0)
    return await _write(writer, b"0\r\n\r\n")


async def _write(writer: StreamWriter, raw: bytes) -> bool:
    writer.write(raw)
    await writer.drain()
    return True


def _whole(
    body: bytes, *, status: bytes = b"200 OK", session: bytes = b"", kind: bytes = _JSON
) -> bytes:
    own = b"Mcp-Session-Id: %s\r\n" % session if session else b""
    said = b"Content-Type: %s\r\n" % kind if body else b""
    return b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n%s" % (
        status,
        own,
        said,
        len(body),
        body,
    )


def _going_on() -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % _EVENTS


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: %s\n\n" % message


async def _main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
