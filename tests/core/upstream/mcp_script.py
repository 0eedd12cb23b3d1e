"""Scripts for ``raw_upstream``: upstreams that speak MCP in each of its ways, byte for byte.

    async with raw_upstream(streamable(tool_list("a"))) as upstream:
        fetched = await fetch(target(upstream.url))

A script is a dialogue: a function from a request to the bytes that answer it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target
from tests.raw_upstream import (
    SSE_HEAD,
    Peer,
    RawRequest,
    RawUpstream,
    Script,
    answer,
    chunk,
    raw_upstream,
)

type Answer = Callable[[RawRequest], bytes]

ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
NOT_FOUND = answer(b"nothing here", status="404 Not Found", kind="text/plain")
NOT_ALLOWED = answer(b"", status="405 Method Not Allowed", kind="text/plain")


def target(url: str, endpoint: str | None = "/mcp", **more: Any) -> Target:
    usual = {"headers": (), "connect_timeout": 20.0, "list_timeout": 20.0, "tls": None}
    return Target(url=url, endpoint=endpoint, **{**usual, "limit": 1024 * 1024, **more})


def message_in(request: RawRequest) -> dict[str, Any]:
    """What a POST says; nothing for other requests."""
    found: dict[str, Any] = json.loads(request.body or b"{}")
    return found


def asked(upstream: RawUpstream) -> list[str]:
    """Method, path and MCP method of all requests that came, in order."""
    said = (
        (one.line.split(" ")[:2], message_in(one).get("method", "")) for one in upstream.requests
    )
    return [" ".join([*line, method]).strip() for line, method in said]


def dialogue(say: Answer) -> Script:
    """Answer one request after the other on each connection."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.say(say(await peer.request()))

    return script


def result(request: RawRequest, result: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": message_in(request)["id"], "result": result}
    return json.dumps(message).encode()


def error(request: RawRequest, code: int, text: str, data: Any = None) -> bytes:
    said = {"code": code, "message": text} | ({"data": data} if data else {})
    return json.dumps({"jsonrpc": "2.0", "id": message_in(request)["id"], "error": said}).encode()


def tool_list(*names: str, next_cursor: str | None = None) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"tools": tools} | ({"nextCursor": next_cursor} if next_cursor else {})


TOOLS: dict[str, Any] = {"capabilities": {"tools": {}}}


def introduction(revision: str, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
    own = TOOLS if capabilities is None else {"capabilities": capabilities}
    return {
        "protocolVersion": revision,
        "serverInfo": {"name": "scripted", "version": "1.2"},
        **own,
    }


def streamable(
    listed: Answer | dict[str, Any],
    *,
    revision: str = "2025-06-18",
    session: str | None = None,
    capabilities: dict[str, Any] | None = None,
) -> Answer:
    """An upstream of 2025 that answers with JSON at /mcp."""

    def say(request: RawRequest) -> bytes:
        if not request.line.startswith("POST /mcp "):
            return ACCEPTED if request.line.startswith("DELETE /mcp ") else NOT_FOUND
        match message_in(request).get("method"):
            case "initialize":
                known = introduction(revision, capabilities)
                return with_session(answer(result(request, known)), session)
            case "notifications/initialized":
                return ACCEPTED
            case "tools/list" if callable(listed):
                return listed(request)
            case "tools/list":
                assert not callable(listed)
                return answer(result(request, listed))
            case _:
                return answer(error(request, -32600, "no session"), status="400 Bad Request")

    return say


def stateless(listed: dict[str, Any]) -> Answer:
    """An upstream of 2026-07-28 at /mcp."""
    info = {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "3"}}
    found = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "_meta": info, **TOOLS}

    def say(request: RawRequest) -> bytes:
        match message_in(request).get("method"):
            case "server/discover":
                return answer(result(request, found))
            case "tools/list":
                return answer(result(request, listed))
            case _:
                unknown = error(request, -32022, "Unsupported", {"supported": ["2026-07-28"]})
                return answer(unknown, status="400 Bad Request")

    return say


def with_session(response: bytes, session: str | None) -> bytes:
    header = f"\r\nMcp-Session-Id: {session}" if session else ""
    return response.replace(b"\r\n\r\n", f"{header}\r\n\r\n".encode(), 1)


class Legacy:
    """An upstream of 2024-11-05; ``answers`` maps an MCP method to its result."""

    def __init__(self, endpoint: str = "/messages?id=1", **answers: dict[str, Any]) -> None:
        self.endpoint = endpoint
        self.answers = {"initialize": introduction("2024-11-05")} | answers
        self.stream: Peer | None = None

    async def __call__(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.line.startswith("GET /sse "):
                await self.begin(peer)
            elif request.line.startswith("POST /messages?id=1 "):
                await peer.say(ACCEPTED)
                await self.hear(request)
            else:
                await peer.say(NOT_FOUND)

    async def begin(self, peer: Peer) -> None:
        self.stream = peer
        endpoint = self.endpoint.replace("PORT", str(peer.upstream.port))
        await peer.say(SSE_HEAD + chunk(f"event: endpoint\ndata: {endpoint}\n\n".encode()))

    async def hear(self, request: RawRequest) -> None:
        assert self.stream
        method = message_in(request).get("method", "").replace("/", "_")
        if method in self.answers:
            await self.stream.say_event(result(request, self.answers[method]))


async def fetched_from(script: Script, endpoint: str | None = "/mcp", **more: Any) -> Fetched:
    """Run an upstream and fetch from it."""
    return (await run(script, endpoint, **more))[0]


async def run(
    script: Script, endpoint: str | None = "/mcp", **more: Any
) -> tuple[Fetched, RawUpstream]:
    """Fetch from an upstream; return what was fetched and what the upstream has seen."""

    async with raw_upstream(script) as upstream:
        return await fetch(target(upstream.url, endpoint, **more)), upstream


async def failure(script: Script, endpoint: str | None = "/mcp", **more: Any) -> str:
    """Why an upstream could not be fetched from."""
    with pytest.raises(StartError) as caught:
        await run(script, endpoint, **more)
    return caught.value.why


def refusing(status: str) -> Script:
    """Answer everything with the same status; further header lines may stand in it."""
    return dialogue(lambda _request: answer(b"", status=status, kind="text/plain"))


def names(fetched: Fetched) -> list[str]:
    """The tools on all pages."""
    pages = [json.loads(page) for page in fetched.pages]
    return [tool["name"] for page in pages for tool in page["result"]["tools"]]
