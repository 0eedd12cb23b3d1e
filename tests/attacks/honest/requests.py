"""Honest requests: codings, types, paths, headers, methods."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterator

import brotli
import zstandard

from tests.attacks.honest.base import CALL, Exchange
from tests.attacks.hostile_requests import HOST, JSON, chunked, post


def in_requests() -> Iterator[Exchange]:
    """A call in every dress that real clients give it."""
    for label, coding, body in [
        ("gzip", "gzip", gzip.compress(CALL)),
        ("deflate", "deflate", zlib.compress(CALL)),
        ("br", "br", brotli.compress(CALL)),
        ("zstd", "zstd", zstandard.compress(CALL)),
        ("identity", "identity", CALL),
        ("GZIP", "GZIP", gzip.compress(CALL)),
    ]:
        yield Exchange(
            f"request in {label}", post(body, b"Content-Encoding: %s\r\n" % coding.encode())
        )
    for kind in (
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
        'application/json; charset="utf-8"',
        "application/json; profile=x",
        "application/vnd.mcp+json",
        "text/plain",
    ):
        yield Exchange(
            f"request as {kind}", post(CALL, kind=b"Content-Type: %s\r\n" % kind.encode())
        )
    yield Exchange("request without a type", post(CALL, kind=b""))
    for path in (
        b"/",
        b"/mcp/",
        b"/mcp?session=1&x=%20y",
        b"/a/b%2Fc",
        b"/messages?sessionId=2b1f",
        b"/mcp?method=list",
        b"/mcp?redirect=http://x/",
        b"//double",
        b"/%E4%B8%AD",
    ):
        yield Exchange(f"path {path.decode()}", post(CALL, path=path))
    coded = base64.b64encode("r\u00e9".encode())
    for label, headers in {
        "session": b"Mcp-Session-Id: abc-1\r\nMCP-Protocol-Version: 2025-06-18\r\n",
        "authorization": b"Authorization: Bearer abc.def\r\nCookie: a=b; c=d\r\n",
        "mirrored": b"Mcp-Method: tools/call\r\nMcp-Name: read_file\r\nMCP-Protocol-Version: 2026-07-28\r\n",
        "mirrored in base64": b"Mcp-Method: tools/call\r\nMcp-Name: =?base64?"
        + base64.b64encode(b"read_file")
        + b"?=\r\n",
        "mirrored parameter": b"Mcp-Method: tools/call\r\nMcp-Name: read_file\r\nMcp-Param-Region: =?base64?"
        + coded
        + b"?=\r\n",
        "vendor": b"X-Vendor: \xc3\xa9 \"'()\r\nX-Empty:\r\ntraceparent: 00-1-2-01\r\nX-Twice: a\r\nX-Twice: b\r\n",
        "origin": b"Origin: http://localhost:5173\r\nReferer: http://localhost:5173/\r\nSec-Fetch-Mode: cors\r\n",
        "browser": b"User-Agent: Mozilla/5.0 (X11)\r\nAccept-Language: en;q=0.5\r\nDNT: 1\r\nCache-Control: no-cache\r\nPragma: no-cache\r\n",
        "keep-alive": b"Keep-Alive: timeout=5\r\nTE: trailers\r\nVia: 1.1 x\r\nX-Forwarded-For: 1.2.3.4\r\n",
        "underscore": b"x_api_key: abc\r\n",
        "30 KB": b"Cookie: a=" + b"x" * 30000 + b"\r\n",
    }.items():
        yield Exchange(f"headers: {label}", post(CALL, headers))
    yield Exchange(
        "a chunked request",
        b"POST /mcp HTTP/1.1\r\n"
        + HOST
        + JSON
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + chunked(CALL[:9], CALL[9:]),
    )
    yield Exchange(
        "a chunked request with trailers",
        b"POST /mcp HTTP/1.1\r\n"
        + HOST
        + JSON
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + chunked(CALL, end=b"0\r\nX-Checksum: abc\r\n\r\n"),
    )
    for method, head in [
        ("GET", b""),
        ("HEAD", b""),
        ("OPTIONS", b"Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n"),
        ("DELETE", b"Mcp-Session-Id: s\r\n"),
    ]:
        for status in ("200 OK", "204 No Content", "405 Method Not Allowed", "404 Not Found"):
            line = method.encode() + b" /mcp HTTP/1.1\r\n" + HOST + head + b"\r\n"
            body = b"" if method == "HEAD" or "204" in status else b"no\n"
            said = b"HTTP/1.1 %s\r\nAllow: POST\r\nContent-Type: text/plain\r\n%s\r\n%s" % (
                status.encode(),
                b"" if "204" in status else b"Content-Length: 3\r\n",
                body,
            )
            yield Exchange(f"{method} answered {status}", line, (said,))
