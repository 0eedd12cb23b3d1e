"""Attacks by an upstream, or by what it is made to say: lists of tools wherever one may stand.

Each is a request and the bytes that the upstream answers with. Nothing by which the denied tool
is known may come to the client, in whatever coding.
"""

from __future__ import annotations

import gzip
import quopri
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import brotli
import zstandard

from tests.attacks.corpus import rows
from tests.attacks.hostile_requests import FORM, HOST, LAST, chunked, post
from tests.attacks.stage import ALLOWED_TOOL, DENIED_TOOL
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer

LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
TOOLS = tool_list([ALLOWED_TOOL, DENIED_TOOL])
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
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
    "GET elsewhere": GET.replace(b"/mcp", b"/elsewhere"),
    "DELETE": b"DELETE /mcp HTTP/1.1\r\n" + HOST + b"Mcp-Session-Id: s\r\n\r\n",
    "OPTIONS": b"OPTIONS /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HEAD": b"HEAD /mcp HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/1.0": post(LIST).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a form": post(b"grant_type=x", path=b"/token", kind=FORM),
}


@dataclass(frozen=True)
class Exchange:
    name: str
    asked: bytes
    said: tuple[bytes, ...]
    """What the upstream writes, piece by piece; then it hangs up, if it ``ends``."""
    ends: bool = False


def event(data: bytes, more: bytes = b"") -> bytes:
    return more + b"data: " + data + b"\n\n"


def stream(*chunks: bytes, head: bytes = SSE, coding: bytes = b"", end: bytes = LAST) -> bytes:
    return head + b"Transfer-Encoding: %schunked\r\n\r\n" % coding + chunked(*chunks, end=end)


def measured(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


PARTS = {
    "read_file": ALLOWED_TOOL, "wipe_disk": DENIED_TOOL, "RESULT": RESULT, "TOOLS": TOOLS,
    "EVENT": event(TOOLS), "HEAD": HEAD, "FIRST": TOOLS[: len(TOOLS) // 2],
    "SECOND": TOOLS[len(TOOLS) // 2 :],
}  # fmt: skip


def to(what: str, label: str, *said: bytes, ends: bool = False) -> Exchange:
    return Exchange(f"{label} to {what}", ASKED[what], said, ends)


def in_codings() -> Iterator[Exchange]:
    """Answers in a coding that was not requested."""
    raw = zlib.compressobj(wbits=-15)
    raw_deflated = raw.compress(TOOLS) + raw.flush()
    for what in ("tools/list", "GET elsewhere", "a notification"):
        for coding, body in {
            "gzip": gzip.compress(TOOLS),
            "gzip of two members": gzip.compress(RESULT) + gzip.compress(TOOLS),
            "gzip cut short": gzip.compress(TOOLS)[:-4],
            "gzip and behind": gzip.compress(RESULT) + TOOLS,
            "gzip that is none": TOOLS,
            "deflate": zlib.compress(TOOLS),
            "deflate raw": raw_deflated,
            "br": brotli.compress(TOOLS),
            "zstd": zstandard.compress(TOOLS),
            "zstd of two frames": zstandard.compress(RESULT) + zstandard.compress(TOOLS),
            "gzip, gzip": gzip.compress(gzip.compress(TOOLS)),
            "x-gzip": gzip.compress(TOOLS),
            "compress": gzip.compress(TOOLS),
            "quopri": quopri.encodestring(TOOLS),
            "utf-7": TOOLS.decode().encode("utf-7"),
            "unknown": gzip.compress(TOOLS),
            "identity": TOOLS,
        }.items():
            value = coding if "," in coding else coding.partition(" ")[0]
            for status in ("200 OK", "500 X"):
                kind = f"application/json\r\nContent-Encoding: {value}"
                yield to(what, f"{coding} with {status}", answer(body, status=status, kind=kind))
        packed = zlib.compressobj(wbits=31)
        flushed = packed.compress(event(TOOLS)) + packed.flush(zlib.Z_SYNC_FLUSH)
        said = stream(flushed, head=SSE + b"Content-Encoding: gzip\r\n", end=b"")
        yield to(what, "gzip stream", said)
    for charset in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "cp037"):
        with_charset = f"application/json; charset={charset}"
        for kind in ("application/json", "text/plain", with_charset, "text/event-stream"):
            body = event(TOOLS) if "event" in kind else TOOLS
            coded, label = body.decode().encode(charset), f"{charset} as {kind}"
            for what in ("tools/list", "GET"):
                yield to(what, label, answer(coded, kind=kind))
            said = answer(coded, kind=kind, status="500 X")
            yield Exchange(f"{label} with 500", ASKED["tools/list"], (said,))


@cache
def messages() -> list[tuple[str, bytes]]:
    """Return messages in which some client finds the denied tool."""
    return rows("answers", "messages", **PARTS)


def in_messages() -> Iterator[Exchange]:
    listing = ASKED["tools/list"]
    for label, body in messages():
        yield to("tools/list", label, answer(body))
        if len(body) >= 1000:
            said = SSE + b"\r\n" + event(body)
            yield Exchange(f"{label} in a stream", listing, (said,), ends=True)
            continue
        if "instead of" not in label:  # a list of mere names may be anything
            yield to("resources/list", label, answer(body))
            yield to("a call", label, answer(body))
        data = b"\ndata: ".join(body.splitlines())
        for how, asked, said in [
            ("to GET", ASKED["GET elsewhere"], answer(body)),
            ("with 500", listing, answer(body, status="500 X")),
            ("with 404 as text", listing, answer(body, status="404 X", kind="text/plain")),
            ("as HTML to GET", GET, answer(body, kind="text/html")),
            ("in a stream", listing, stream(event(data))),
            ("in a GET stream", GET, stream(event(data))),
            ("in a named event", GET, stream(event(data, b"event: x\n"))),
        ]:
            yield Exchange(f"{label} {how}", asked, (said,))


def in_places() -> Iterator[Exchange]:
    """A plain list as the answer to everything, in every label and framing."""
    kinds = [
        "application/json", "text/event-stream", "text/plain", "text/html", "image/png", "",
        "application/octet-stream", "application/json; charset=utf-8",
        "application/json; charset=utf-16", "application/json; charset=latin1", "APPLICATION/JSON",
        "application/mcp+json", "application/x-ndjson", "application/json-seq",
        "multipart/mixed; boundary=x", "text/event-stream; charset=utf-7",
        "application/json, text/event-stream", "text/event-stream, application/json",
        "text/event-stream;charset=utf-16", " text/event-stream ;x",
    ]  # fmt: skip
    statuses = [
        "201 Created", "202 Accepted", "204 No Content", "206 Partial Content", "301 Moved",
        "304 Not Modified", "400 X", "401 X", "403 X", "404 X", "405 X", "409 X", "426 X", "500 X",
        "502 X", "599 X", "999 X",
    ]  # fmt: skip
    for what in ASKED:
        for kind in kinds:
            data = event(TOOLS) if "event-stream" in kind else TOOLS
            yield to(what, kind, answer(data, kind=kind))
        for status in statuses:
            yield to(what, status, answer(TOOLS, status=status))
    packed, one_each = gzip.compress(TOOLS), (TOOLS[i : i + 1] for i in range(len(TOOLS)))
    framed = [
        ("a byte each", stream(*one_each, head=HEAD)),
        ("TE gzip", HEAD + b"Transfer-Encoding: gzip\r\n\r\n" + packed),
        ("TE gzip, chunked", stream(packed, head=HEAD, coding=b"gzip, ")),
        ("TE deflate, chunked", stream(zlib.compress(TOOLS), head=HEAD, coding=b"deflate, ")),
        ("TE gzip stream", stream(gzip.compress(event(TOOLS)), coding=b"gzip, ")),
        ("coding underscored", measured(HEAD + b"Content_Encoding: gzip\r\n", packed)),
    ]
    for what in ("tools/list", "GET", "resources/list", "a notification"):
        for status in ("202 Accepted", "204 No Content", "304 Not Modified", "404 X", "500 X"):
            head = SSE.replace(b"200 OK", status.encode())
            yield to(what, f"{status} stream", stream(event(TOOLS), head=head))
            yield to(what, f"{status} stream with a length", measured(head, event(TOOLS)))
        for label, said in rows("answers", "framing", **PARTS) + framed:
            yield to(what, label, said, ends=True)


def in_streams() -> Iterator[Exchange]:
    """Lists in event streams, in every framing."""
    listing = ASKED["tools/list"]
    for label, events in rows("answers", "streams", **PARTS):
        for what in ("tools/list", "GET"):
            yield to(what, label, stream(events))
        if len(events) < 5000:
            yield Exchange(f"{label} with a length", listing, (measured(SSE, events),))
            whole = SSE + b"\r\n" + events
            yield Exchange(f"{label} until the end", listing, (whole,), ends=True)
            pieces = tuple(events[i : i + 3] for i in range(0, len(events), 3))
            yield Exchange(f"{label} in pieces", listing, (SSE + b"\r\n", *pieces), ends=True)
            once = stream(*(events[i : i + 1] for i in range(len(events))))
            yield Exchange(f"{label} a byte each", RESUME, (once,))


ATTACKS = [
    Exchange(f"{room.__name__}: {one.name}", one.asked, one.said, one.ends)
    for room in (in_messages, in_places, in_codings, in_streams)
    for one in room()
]
