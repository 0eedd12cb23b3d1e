"""Honest exchanges that strict filters break. Each passes byte for byte, both ways.

What a proxy must change is no more than the host, the codings it asks for, and how a body is cut
into chunks; ``plain`` leaves that out of the comparison.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from functools import cache

import brotli
import zstandard

from tests.attacks.answers import GET, PARTS, SSE, Exchange, measured, stream
from tests.attacks.corpus import cells, rows
from tests.attacks.hostile_requests import FORM, HEAD, HOST, chunked, post
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}'
NEXT_PAGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"2"}}'
OK = answer(RESULT)
_OF_ONE_CONNECTION = (
    rb"host|accept-encoding|transfer-encoding|content-length|connection|keep-alive|te"
)
_CHANGED = re.compile(rb"(?im)^(?:%b):.*\r\n" % _OF_ONE_CONNECTION)


def asking(name: str, asked: bytes, *said: bytes, ends: bool = False) -> Exchange:
    return Exchange(name, asked, said or (OK,), ends)


def calling(name: str, *said: bytes, ends: bool = False) -> Exchange:
    return Exchange(name, post(CALL), said, ends)


def saying(status: str, head: bytes, body: bytes) -> bytes:
    return measured(b"HTTP/1.1 %s\r\n%s" % (status.encode(), head), body)


def getting(path: bytes, head: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path, HOST, head)


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


def in_documents() -> Iterator[Exchange]:
    """What an upstream serves beside MCP."""
    token = answer(b'{"access_token":"x","token_type":"Bearer","scope":"tools:read"}')
    for label, body in rows("honest", "forms"):
        yield asking(f"OAuth form: {label}", post(body, path=b"/token", kind=FORM), token)
    registration = b'{"client_name":"c","redirect_uris":["http://localhost/cb"],"token_endpoint_auth_method":"none","grant_types":["authorization_code"]}'
    created = answer(b'{"client_id":"1","client_name":"c"}', status="201 Created")
    yield asking("OAuth registration", post(registration, path=b"/register"), created)
    for path, (kind, content) in cells("honest", "documents"):
        asked = getting(path.encode(), b"Accept: */*\r\n")
        yield asking(f"document {path}", asked, answer(content, kind=kind.decode()))


@cache
def calls() -> list[tuple[str, bytes]]:
    many = b",".join(b'"k%d":%d' % (n, n) for n in range(20000))
    long = CALL[:-2] + b',"arguments":{' + many + b"}}}"
    return [*rows("honest", "calls", **PARTS), ("arguments of many keys", long)]


@cache
def methods() -> list[tuple[str, bytes]]:
    return rows("honest", "messages")


@cache
def results() -> list[tuple[str, bytes]]:
    """Return what an upstream may answer."""
    return rows("honest", "results", **PARTS)


@cache
def events() -> list[tuple[str, bytes]]:
    """Return event streams."""
    found = rows("honest", "events", **PARTS)
    before = dict(found)["notifications before"]
    return [*found, ("a thousand", before[: before.index(b"\n\n") + 2] * 997 + before)]


def in_bodies() -> Iterator[Exchange]:
    for label, body in (*calls(), *methods()):
        is_question = b'"id"' in body and b'"result"' not in body
        said = OK if is_question else answer(b"", status="202 Accepted")
        yield asking(f"asks: {label}", post(body), said)
    for label, body in results():
        yield calling(f"answers: {label}", answer(body))
        if len(body) < 9000:
            said = b"data: %b\n\n" % body.strip()
            yield calling(f"answers in an event: {label}", SSE + b"\r\n", said, ends=True)
    for label, said in events():
        yield calling(f"stream: {label}", stream(said))
        yield asking(f"stream on GET: {label}", GET, stream(said))
        yield calling(f"stream with a length: {label}", measured(SSE, said))
        if label in ("large", "long by another name"):  # read in steps while a list is waited for
            yield asking(f"stream of a list: {label}", post(NEXT_PAGE), stream(said))
        yield calling(f"stream until the end: {label}", SSE + b"\r\n", said, ends=True)
        if len(said) < 2000:
            pieces = chunked(*(said[i : i + 1] for i in range(len(said))))
            yield asking(f"stream in bytes: {label}", GET, stream(end=b""), pieces)


def in_requests() -> Iterator[Exchange]:
    """A call in every dress that real clients give it."""
    for coding, body in {
        "gzip": gzip.compress(CALL),
        "deflate": zlib.compress(CALL),
        "br": brotli.compress(CALL),
        "zstd": zstandard.compress(CALL),
        "identity": CALL,
        "GZIP": gzip.compress(CALL),
    }.items():
        header = b"Content-Encoding: %s\r\n" % coding.encode()
        yield asking(f"request in {coding}", post(body, header))
    kinds = (
        "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON",
        'application/json; charset="utf-8"', "application/json; profile=x",
        "application/vnd.mcp+json", "text/plain",
    )  # fmt: skip
    for kind in kinds:
        header = b"Content-Type: %s\r\n" % kind.encode()
        yield asking(f"request as {kind}", post(CALL, kind=header))
    yield asking("request without a type", post(CALL, kind=b""))
    paths = (
        b"/", b"/mcp/", b"/mcp?session=1&x=%20y", b"/a/b%2Fc", b"/messages?sessionId=2b1f",
        b"/mcp?method=list", b"/mcp?redirect=http://x/", b"//double", b"/%E4%B8%AD",
    )  # fmt: skip
    for path in paths:
        yield asking(f"path {path.decode()}", post(CALL, path=path))
    for label, headers in rows("honest", "request headers"):
        yield asking(f"headers: {label}", post(CALL, headers))
    yield asking("a chunked request", stream(CALL[:9], CALL[9:], head=HEAD))
    trailed = stream(CALL, head=HEAD, end=b"0\r\nX-Checksum: abc\r\n\r\n")
    yield asking("a chunked request with trailers", trailed)
    for method, head in rows("honest", "other methods"):
        for status in ("200 OK", "204 No Content", "405 Method Not Allowed", "404 Not Found"):
            line = method.encode() + b" /mcp HTTP/1.1\r\n" + HOST + head + b"\r\n"
            size, body = (b"", b"") if "204" in status else (b"Content-Length: 3\r\n", b"no\n")
            said = b"HTTP/1.1 %s\r\nAllow: POST\r\nContent-Type: text/plain\r\n" % status.encode()
            said += size + b"\r\n" + (b"" if method == "HEAD" else body)
            yield asking(f"{method} answered {status}", line, said)


def in_responses() -> Iterator[Exchange]:
    """An answer in every dress that real servers give it."""
    for status, (head, body) in cells("honest", "errors"):
        yield calling(f"a call answered {status} {body[:12]!r}", saying(status, head, body))
    page = answer(b"<p>" * 100_000, status="500 X", kind="text/html")
    yield asking("a list answered by a long page", post(NEXT_PAGE), page)
    for label, head in rows("honest", "answer heads"):
        yield calling(f"answer head: {label}", measured(head, RESULT))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    yield calling("answer head: chunked", stream(RESULT[:5], RESULT[5:], head=head))
    head += b"\r\n"
    yield calling("until the end", head, RESULT, ends=True)
    yield calling("HTTP/1.0 upstream", head.replace(b"1.1", b"1.0"), RESULT, ends=True)
    yield calling("slow answer", *(OK[i : i + 7] for i in range(0, len(OK), 7)))
    for interim in (b"100 Continue", b"102 Processing", b"103 Early Hints"):
        label, line = interim.decode(), b"HTTP/1.1 " + interim + b"\r\n"
        yield calling(f"{label} before", line + b"\r\n", OK)
        yield calling(f"{label} twice in one", (line + b"X: y\r\n\r\n") * 2 + OK)
        streamed = line + b"\r\n" + stream(b"data: " + RESULT + b"\n\n")
        yield calling(f"{label} before a stream", streamed)
    notification = post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    response = post(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    for status, body in rows("honest", "accepted"):
        said = saying(status, b"", body)
        if "204" in status:
            said = b"HTTP/1.1 204 No Content\r\n\r\n"
        yield asking(f"a notification answered {status} {body!r}", notification, said)
        yield asking(f"a response answered {status} {body!r}", response, said)
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
        for where in ("/mcp/", "relative", "?x=1", "https://as.example/authorize?client_id=x"):
            said = saying(status, b"Location: %s\r\n" % where.encode(), b"")
            asked = getting(b"/authorize?response_type=code", b"")
            yield asking(f"redirect {status} to {where}", asked, said)
    yield calling("redirect of a call within", saying("307 X", b"Location: /mcp/\r\n", b""))
    known = getting(b"/app.js", b'If-None-Match: "a"\r\n')
    yield asking("304", known, b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n')


EXCHANGES = [*in_bodies(), *in_requests(), *in_documents(), *in_responses()]
