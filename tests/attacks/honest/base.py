"""What the honest exchanges are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.attacks.hostile_requests import HOST
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}'
NEXT_PAGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"2"}}'
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
GET = b"GET /mcp HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
OK = answer(RESULT)
_OF_ONE_CONNECTION = (
    rb"host|accept-encoding|transfer-encoding|content-length|connection|keep-alive|te"
)
_CHANGED = re.compile(rb"(?im)^(?:%b):.*\r\n" % _OF_ONE_CONNECTION)


@dataclass(frozen=True)
class Exchange:
    name: str
    asked: bytes
    said: tuple[bytes, ...] = (OK,)
    ends: bool = False
    """The upstream hangs up behind its answer."""


def plain(raw: bytes) -> tuple[list[bytes], bytes]:
    """Return a request or an answer as it should be the same on both sides of the proxy."""
    final = re.sub(rb"\A(?:HTTP/1\.1 1\d\d .*?\r\n\r\n)+", b"", raw, flags=re.DOTALL)
    head, _, body = final.partition(b"\r\n\r\n")
    if re.search(rb"(?im)^transfer-encoding: chunked", head):
        body = _unchunked(body)
    head = head.replace(b"HTTP/1.0", b"HTTP/1.1", 1)  # the version of one connection
    lines = _CHANGED.sub(b"", head + b"\r\n").split(b"\r\n")
    return [re.sub(rb":\s*", b": ", line, count=1).strip() for line in lines], body


def _unchunked(raw: bytes) -> bytes:
    body, at = b"", 0
    while (end := raw.find(b"\r\n", at)) >= 0 and (size := int(raw[at:end].partition(b";")[0], 16)):
        body += raw[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return body
