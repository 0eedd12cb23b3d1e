"""An upstream that answers late, in pieces, and hangs up: python -m tests.bench.soak.upstream

Prints its port. It speaks Streamable HTTP at /mcp and HTTP+SSE at /sse. ``echo`` returns the token
it is called with, in the way the call asks for; ``danger_zone`` must never be called, nor
``echo`` twice with one token: that ends it, and so the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import count
from typing import Any

from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, raw_upstream

ALLOWED, DENIED, MARK = "echo", "danger_zone", "burns-it-all"

type Json = dict[str, Any]

_BEAT = 0.5  # seconds between what an open stream says
_numbers = count(1)
_heard: set[str] = set()
_streams: dict[str, Peer] = {}
"""The stream of each HTTP+SSE session."""


def _tool(name: str, about: str) -> Json:
    return {"name": name, "description": about, "inputSchema": {"type": "object"}}


_TOOLS = {"tools": [_tool(ALLOWED, "Says it again."), _tool(DENIED, MARK)]}


async def serve(peer: Peer) -> None:
    try:
        while True:
            peer.upstream.requests.clear()  # they would pile up
            await _answer(peer, await peer.request())
    finally:
        peer.upstream.peers.remove(peer)
        peer.close()


async def _answer(peer: Peer, request: RawRequest) -> None:
    method, target, _ = request.line.split(" ")
    if method == "GET" and target == "/sse":
        return await _legacy_stream(peer)
    if method == "GET":
        return await _own_stream(peer, "".join(request.all("mcp-session-id")))
    if method == "DELETE":
        return await peer.say(answer(b""))
    message = json.loads(request.body)
    if target.startswith("/messages"):
        return await _answer_posted(peer, target.partition("=")[2], message)
    if "id" not in message:
        return await peer.say(answer(b"", status="202 Accepted"))
    return await _answer_message(peer, message)


async def _answer_message(peer: Peer, message: Json) -> None:
    result = _result(message)
    asked = message.get("params", {}).get("arguments", {})
    if message["method"] == "tools/call":
        await asyncio.sleep(asked["delay"])
        if asked["how"] == "reset" and len(peer.requests) > 1:
            return peer.writer.transport.abort()
    if asked.get("how") == "sse":
        event = b"event: message\ndata: %s\n\n" % result
        await peer.say(SSE_HEAD)
        for at in range(0, len(event), 5000):
            await peer.say(chunk(event[at : at + 5000]))
            await asyncio.sleep(0)
        return await peer.say(LAST_CHUNK)
    said = answer(result)
    if message["method"] == "initialize":
        own = b"\r\nMcp-Session-Id: soak-%d\r\n" % next(_numbers)
        said = said.replace(b"\r\n", own, 1)
    await peer.say(said)
    if asked.get("how") == "then reset":
        await asyncio.sleep(asked["delay"] / 10)
        peer.writer.transport.abort()
    return None


def _result(message: Json) -> bytes:
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            result: Json = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "soak", "version": "1"},
            }
        case "tools/list":
            result = _TOOLS
        case "tools/call":
            asked = params["arguments"]
            if params["name"] != ALLOWED:
                _end("a call has come that should have been refused")
            if asked["token"] in _heard:
                _end("a call has come twice")
            _heard.add(asked["token"])
            text = asked["token"] + "." * asked["size"]
            result = {"content": [{"type": "text", "text": text}]}
        case "ping":
            result = {}
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


def _end(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


async def _answer_posted(peer: Peer, session: str, message: Json) -> None:
    if not (stream := _streams.get(session)):
        return await peer.say(answer(b"", status="404 Not Found"))
    await peer.say(answer(b"Accepted", status="202 Accepted", kind="text/plain"))
    if "id" in message:
        await asyncio.sleep(message.get("params", {}).get("arguments", {}).get("delay", 0))
        stream.writer.write(chunk(b"event: message\ndata: %s\n\n" % _result(message)))
    return None


async def _legacy_stream(peer: Peer) -> None:
    session = f"legacy-{next(_numbers)}"
    _streams[session] = peer
    try:
        place = b"event: endpoint\ndata: /messages?session=%s\n\n" % session.encode()
        await peer.say(SSE_HEAD + chunk(place))
        while True:
            await asyncio.sleep(_BEAT)
            await peer.say(chunk(b": still here\n\n"))
    finally:
        del _streams[session]


async def _own_stream(peer: Peer, session: str) -> None:
    """Say to a session its own name and a number, time and again; break off after a while."""
    await peer.say(SSE_HEAD)
    for number in range(20):
        params = {"session": session, "number": number}
        said = {"jsonrpc": "2.0", "method": "notifications/soak", "params": params}
        await peer.say_event(json.dumps(said).encode())
        await asyncio.sleep(_BEAT)
    peer.writer.transport.abort()


async def _main() -> None:
    async with raw_upstream(serve) as upstream:
        print(upstream.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
