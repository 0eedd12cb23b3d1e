"""An MCP upstream whose every byte a test can choose.

It shakes hands as a server of an older revision would and lists the tools it is given, in their
own bytes. What else it is asked, ``respond`` answers:

    async with mcp_upstream(tools=[tool("read_file")], respond=saying(RESULT)) as upstream:
        ...  # upstream.url, upstream.asked, upstream.of("tools/call")
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext

from tests.raw_upstream import Peer, RawRequest, RawUpstream, answer, raw_upstream, sending

type Respond = Callable[[RawRequest, Peer], Awaitable[None]]

REVISION = "2025-06-18"
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
_NO_SESSION = b'{"jsonrpc":"2.0","id":"x","error":{"code":-32600,"message":"No session"}}'
_HELLO = {
    "protocolVersion": REVISION,
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "raw", "version": "1"},
}


def tool(name: str, more: str = "") -> bytes:
    """One definition, in bytes that no serialiser would write."""
    odd = f'{{ "inputSchema" : {{"type":"object"}}, "name":{json.dumps(name)}{more}, "x":1.0}}'
    return odd.encode()


def tool_list(tools: Sequence[bytes], *, id: str = "1", more: bytes = b"") -> bytes:
    head = b'{"result":{"_meta" : {"n":1e2},"tools": [' + b" , ".join(tools) + b"]" + more
    return head + b'}, "id":' + id.encode() + b',"jsonrpc":"2.0"}'


@dataclass
class McpUpstream:
    raw: RawUpstream
    tools: Sequence[bytes]
    asked: list[RawRequest] = field(default_factory=list)
    """What came after the proxy's own fetch of the tools."""
    declares_changes: bool = True
    """It says at initialize that it announces changes of its list."""

    @property
    def url(self) -> str:
        return self.raw.url

    def of(self, method: str) -> list[RawRequest]:
        """The requests with a message of this method."""
        return [request for request in self.asked if _method_in(request) == method]


def saying(body: bytes) -> Respond:
    """Answer everything with this JSON."""
    return sending(answer(body))


@asynccontextmanager
async def mcp_upstream(
    *, tools: Sequence[bytes] = (), respond: Respond | None = None,
    session: bytes | Callable[[], bytes] = b"",
    lists: Callable[[RawRequest, str], bytes] | None = None,
    tls: SSLContext | None = None, port: int = 0,
) -> AsyncIterator[McpUpstream]:  # fmt: skip
    """Run one. ``lists`` answers tools/list otherwise; ``session`` is the id it hands out,
    or makes one for each."""
    respond = respond or saying(RESULT)

    async def script(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if not _is_of_the_fetch(request):
                running.asked.append(request)
            id = session() if callable(session) else session
            if (known := _known(request, running.tools, id, lists)) is not None:
                if not running.declares_changes:
                    known = known.replace(b'"listChanged": true', b'"listChanged":false')
                await peer.say(known)
            else:
                await respond(request, peer)

    async with raw_upstream(script, tls=tls, port=port) as raw:
        running = McpUpstream(raw, tools)
        yield running


def _known(
    request: RawRequest, tools: Sequence[bytes], session: bytes,
    lists: Callable[[RawRequest, str], bytes] | None,
) -> bytes | None:  # fmt: skip
    method, id = _method_in(request), _id_in(request)
    if method == "server/discover":
        return answer(_NO_SESSION, status="400 Bad Request")
    if method == "initialize":
        body = json.dumps({"jsonrpc": "2.0", "id": json.loads(id), "result": _HELLO}).encode()
        whole = answer(body)
        extra = b"\r\nMcp-Session-Id: " + session if session else b""
        return whole.replace(b"\r\n", extra + b"\r\n", 1)
    if method == "notifications/initialized":
        return answer(b"", status="202 Accepted")
    if request.line.startswith("DELETE"):
        return answer(b"", status="200 OK")
    if method == "tools/list":
        return lists(request, id) if lists else answer(tool_list(tools, id=id))
    return None


def _is_of_the_fetch(request: RawRequest) -> bool:
    return b"mcp-tool-filter" in request.head.lower() or b'"mcp-tool-filter"' in request.body


def _method_in(request: RawRequest) -> str | None:
    message = _read(request)
    method = message.get("method") if isinstance(message, dict) else None
    return method if isinstance(method, str) else None


def _id_in(request: RawRequest) -> str:
    message = _read(request)
    return json.dumps(message.get("id") if isinstance(message, dict) else None)


def _read(request: RawRequest) -> object:
    with suppress(ValueError):
        return json.loads(request.body)
    return None
