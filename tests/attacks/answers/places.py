"""A plain list as the answer to everything, in every label and framing."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from tests.attacks.answers.base import (
    ASKED,
    SSE,
    TOOLS,
    Attack,
    event,
)
from tests.attacks.hostile_requests import chunked
from tests.attacks.stage import DENIED_TOOL
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer


def in_places() -> Iterator[Attack]:
    """A plain list as the answer to everything, in every label and framing."""
    kinds = [
        "application/json",
        "text/event-stream",
        "text/plain",
        "text/html",
        "image/png",
        "",
        "application/octet-stream",
        "application/json; charset=utf-8",
        "application/json; charset=utf-16",
        "application/json; charset=latin1",
        "APPLICATION/JSON",
        "application/mcp+json",
        "application/x-ndjson",
        "application/json-seq",
        "multipart/mixed; boundary=x",
        "text/event-stream; charset=utf-7",
        "application/json, text/event-stream",
        "text/event-stream, application/json",
        "text/event-stream;charset=utf-16",
        " text/event-stream ;x",
    ]
    for what, asked in ASKED.items():
        for kind in kinds:
            data = event(TOOLS) if "event-stream" in kind else TOOLS
            yield Attack(f"{kind} to {what}", (answer(data, kind=kind),), asked)
        for status in (
            "201 Created",
            "202 Accepted",
            "204 No Content",
            "206 Partial Content",
            "301 Moved",
            "304 Not Modified",
            "400 X",
            "401 X",
            "403 X",
            "404 X",
            "405 X",
            "409 X",
            "426 X",
            "500 X",
            "502 X",
            "599 X",
            "999 X",
        ):
            yield Attack(f"{status} to {what}", (answer(TOOLS, status=status),), asked)
    for what in ("tools/list", "GET", "resources/list", "a notification"):
        asked = ASKED[what]
        for status in ("202 Accepted", "204 No Content", "304 Not Modified", "404 X", "500 X"):
            head = SSE.replace(b"200 OK", status.encode())
            yield Attack(
                f"{status} stream to {what}",
                (head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(event(TOOLS)),),
                asked,
            )
            yield Attack(
                f"{status} stream with a length to {what}",
                (head + b"Content-Length: %d\r\n\r\n" % len(event(TOOLS)) + event(TOOLS),),
                asked,
            )
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        size = b"Content-Length: %d\r\n" % len(TOOLS)
        for label, said in {
            "until the end": head + b"\r\n" + TOOLS,
            "HTTP/1.0": head.replace(b"1.1", b"1.0") + b"\r\n" + TOOLS,
            "HTTP/1.0 with a length": head.replace(b"1.1", b"1.0") + size + b"\r\n" + TOOLS,
            "HTTP/1.0 chunked": head.replace(b"1.1", b"1.0")
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + chunked(TOOLS),
            "HTTP/2.0 as text": head.replace(b"1.1", b"2.0") + size + b"\r\n" + TOOLS,
            "HTTP/0.9": TOOLS,
            "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(TOOLS),
            "a byte each": head
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + chunked(*(TOOLS[i : i + 1] for i in range(len(TOOLS)))),
            "CL and TE": head + size + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(TOOLS),
            "TE twice": head
            + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(TOOLS),
            "TE gzip": head + b"Transfer-Encoding: gzip\r\n\r\n" + gzip.compress(TOOLS),
            "TE gzip, chunked": head
            + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
            + chunked(gzip.compress(TOOLS)),
            "TE deflate, chunked": head
            + b"Transfer-Encoding: deflate, chunked\r\n\r\n"
            + chunked(zlib.compress(TOOLS)),
            "TE identity": head + b"Transfer-Encoding: identity\r\n\r\n" + TOOLS,
            "TE gzip stream": SSE
            + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
            + chunked(gzip.compress(event(TOOLS))),
            "trailers": head
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + chunked(RESULT, end=b"0\r\nX-Tools: " + TOOLS + b"\r\n\r\n"),
            "CL twice": head + size + size + b"\r\n" + TOOLS,
            "CL too short": head + b"Content-Length: 2\r\n\r\n" + b"{}" + TOOLS,
            "CL too long": head + b"Content-Length: 9999\r\n\r\n" + TOOLS,
            "CL 0 and a body": head + b"Content-Length: 0\r\n\r\n" + TOOLS,
            "CL invalid": head + b"Content-Length: x\r\n\r\n" + TOOLS,
            "two answers": answer(RESULT) + answer(TOOLS),
            "an answer before": answer(RESULT, status="100 Continue") + answer(TOOLS),
            "100 with a body": b"HTTP/1.1 100 Continue\r\nContent-Length: %d\r\n\r\n" % len(TOOLS)
            + TOOLS
            + answer(RESULT),
            "103": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(TOOLS),
            "103 with a list": b"HTTP/1.1 103 Early Hints\r\nX: "
            + TOOLS
            + b"\r\n\r\n"
            + answer(RESULT),
            "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
            + TOOLS,
            "101 websocket": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x7e"
            + len(TOOLS).to_bytes(2, "big")
            + TOOLS,
            "a header": answer(RESULT).replace(b"\r\n", b"\r\nX-Tools: " + TOOLS + b"\r\n", 1),
            "the reason": answer(RESULT).replace(b"200 OK", b"200 " + DENIED_TOOL, 1),
            "bare LF": (head + size + b"\r\n").replace(b"\r\n", b"\n") + TOOLS,
            "split by a bare CR": b"HTTP/1.1 200 OK\r\nX: y\rContent-Length: 0\r\n"
            + size
            + b"\r\n"
            + TOOLS,
            "no HTTP": b"\x15\x03\x01" + TOOLS,
            "type twice": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            % len(event(TOOLS))
            + event(TOOLS),
            "type underscored": b"HTTP/1.1 200 OK\r\nContent_Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            % len(event(TOOLS))
            + event(TOOLS),
            "coding underscored": head
            + b"Content_Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(TOOLS))
            + gzip.compress(TOOLS),
        }.items():
            yield Attack(f"{label} to {what}", (said,), asked, ends=True)
