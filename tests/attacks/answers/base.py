"""What the attacks by an upstream are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tests.attacks.hostile_requests import HOST, chunked, post
from tests.attacks.stage import ALLOWED_TOOL, DENIED_TOOL
from tests.mcp_upstream import tool_list

LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
TOOLS = tool_list([ALLOWED_TOOL, DENIED_TOOL])
TEXT = TOOLS.decode()
DEFINITION = DENIED_TOOL.decode()
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GET = b"GET /mcp HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
RESUME = GET[:-2] + b"Last-Event-ID: 4\r\n\r\n"
ASKED = {
    "tools/list": post(LIST),
    "resources/list": post(LIST.replace(b"tools", b"resources")),
    "a ping": post(LIST.replace(b"tools/list", b"ping")),
    "a call": post(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}'),
    "a notification": post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
    "a response": post(b'{"jsonrpc":"2.0","id":1,"result":{}}'),
    "a batch": post(b"[" + LIST + b"," + LIST.replace(b"1,", b"2,") + b"]"),
    "GET": GET,
    "a resumed GET": RESUME,
    "GET elsewhere": GET.replace(b"/mcp", b"/.well-known/mcp"),
    "DELETE": b"DELETE /mcp HTTP/1.1\r\n" + HOST + b"Mcp-Session-Id: s\r\n\r\n",
    "OPTIONS": b"OPTIONS /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HEAD": b"HEAD /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0": post(LIST).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a form": post(
        b"grant_type=x", path=b"/token", kind=b"Content-Type: application/x-www-form-urlencoded\r\n"
    ),
}


@dataclass(frozen=True)
class Attack:
    name: str
    said: tuple[bytes, ...]
    """What the upstream writes, piece by piece; then it hangs up, if it ``ends``."""
    asked: bytes = ASKED["tools/list"]
    ends: bool = False


def event(data: bytes, more: bytes = b"") -> bytes:
    return more + b"data: " + data + b"\n\n"


def stream(*events: bytes) -> bytes:
    return SSE + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*events)
