"""Make up what a client and an upstream say on one connection, much of it strange.

Each number gives another talk, and always the same one. Whatever is made up ends by itself: nobody
waits for more of a message, so a reader can read until the proxy hangs up.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL
from tests.make import chunks
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer, chunk

_CALL = b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"%s","arguments":{}}}'
_ALLOWED = _CALL % (b"1", b"read_file")
_DENIED = _CALL % (b'"q"', DENIED.encode())
_MESSAGES = (
    _ALLOWED, _DENIED, b"[%s,%s]" % (_ALLOWED, _DENIED), b"[%s]" % _DENIED, _ALLOWED + _DENIED,
    _CALL % (b"2", b"wipe\\u005fdisk"), _DENIED.replace(b"method", b"Method"), _DENIED[:-3],
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', b'{"jsonrpc":"2.0","id":5,"method":"ping"}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}', b"\xef\xbb\xbf" + _DENIED,
    b"no JSON",
    _ALLOWED.replace(b"{}", b'{"text":"%s"}' % (b"x" * 70_000)), gzip.compress(_DENIED, mtime=0),
)  # fmt: skip
_HEADERS = (
    b"Mcp-Session-Id: s1", b"Mcp-Session-Id: s2", b"MCP-Protocol-Version: 2025-06-18",
    b"Mcp-Method: tools/call", b"Mcp-Name: read_file", b"Mcp_Name: %s" % DENIED.encode(),
    b"Mcp-Name: =?base64?cmVhZF9maWxl?=", b"Authorization: Bearer a", b"Cookie: a=b",
    b"Content-Type: application/json; charset=utf-16", b"Content-Encoding: gzip", b"TE: trailers",
    b"Connection: keep-alive", b"Range: bytes=0-9", b"X-Empty:", b"X-Accent: \xe9", b"Upgrade: h2c",
    b"Origin: http://evil.example", b"Accept-Encoding: gzip", b"X-Folded: a\r\n b", b"Accept: */*",
)  # fmt: skip
_UNREADABLE = (b"Content-Length: +1", b"Content-Length: 1, 1", b"Transfer-Encoding: x", b"no colon")
_TRAILERS = (b"", b"", b"", b"X-T: 1\r\n", b"Mcp-Name: %s\r\n" % DENIED.encode(), b"bad\r\n")
_LIST = tool_list([ALLOWED_TOOL, DENIED_TOOL], id="1")
_ANSWERS = (
    RESULT, _LIST, b"[%s,%s]" % (RESULT, _LIST), b'{"jsonrpc":"2.0","id":1,"result":{}}', b"hello",
    b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}', b"",
    RESULT.replace(b"[]", b'[{"type":"text","text":"%s"}]' % (b"y" * 150_000)),
)  # fmt: skip
_STATUS = ("200 OK", "200 OK", "200 OK", "202 Accepted", "204 No Content", "206 Part", "404 Gone")
_SIZES = (1, 3, 17, 300, 5000, 100_000)


@dataclass(frozen=True)
class Talk:
    asked: list[bytes]
    """What the client says, as it is sent piece by piece."""
    answers: list[list[bytes]]
    """What the upstream says to each request."""


def talk(number: int) -> Talk:
    random = Random(number)
    asked = b"".join(_request(random) for _ in range(random.randint(1, 5)))
    answers = [_pieces(random, _answer(random)) for _ in range(5)]
    last = b"GET /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    return Talk(_pieces(random, asked + last), answers)


def _request(random: Random) -> bytes:
    method = random.choice([b"POST"] * 5 + [b"GET", b"DELETE", b"OPTIONS", b"PUT"])
    path = random.choice([b"/mcp"] * 4 + [b"/", b"/other?a=b", b"//mcp"])
    body = random.choice(_MESSAGES) if method == b"POST" or random.random() < 0.2 else b""
    headers = [b"Host: localhost", b"Content-Type: application/json"]
    headers += random.sample(_HEADERS, random.choice([0, 0, 1, 2, 3]))
    if random.random() < 0.05:
        headers.append(random.choice(_UNREADABLE))
    if body and random.random() < 0.5:
        headers.append(b"Transfer-Encoding: chunked")
        body = _chunked(random, body)
    elif body:
        headers.append(b"Content-Length: %d" % len(body))
    random.shuffle(headers)
    lines = [_spelled(random, line) for line in headers]
    before = b"\r\n" if random.random() < 0.05 else b""
    return before + b"\r\n".join([b"%s %s HTTP/1.1" % (method, path), *lines, b"", body])


def _spelled(random: Random, header: bytes) -> bytes:
    name, colon, value = header.partition(b":")
    return random.choice([name, name, name.lower(), name.upper()]) + colon + value


def _answer(random: Random) -> bytes:
    body = random.choice(_ANSWERS)
    if random.random() < 0.4:
        body = b"".join(_event(random) for _ in range(random.randint(1, 6)))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(random, body)
    status = random.choice(_STATUS)
    if status.startswith("204"):
        body = b""
    whole = answer(body, status=status)
    if random.random() < 0.2:
        whole = random.choice([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 x\r\n\r\n"]) + whole
    return whole


def _event(random: Random) -> bytes:
    end = random.choice([b"\n", b"\r\n", b"\r"])
    before = random.choice([b"", b"id: 3" + end, b": ping" + end, b"event: message" + end])
    return before + b"data: " + random.choice(_ANSWERS[:4]) + end + end


def _chunked(random: Random, body: bytes) -> bytes:
    pieces = chunks(body, random.choices(_SIZES[1:] if len(body) < 5000 else _SIZES[4:], k=3))
    return b"".join([*map(chunk, pieces), b"0\r\n", random.choice(_TRAILERS), b"\r\n"])


def _pieces(random: Random, whole: bytes) -> list[bytes]:
    sizes: Sequence[int] = random.choices(_SIZES[3:] if len(whole) > 5000 else _SIZES, k=3)
    return [whole] if random.random() < 0.4 else chunks(whole, sizes)
