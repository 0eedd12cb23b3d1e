"""Attacks by a client: some server, somewhere, would take each for a call of the denied tool.

Each is bytes on a connection. None of them may bring the tool's name to the upstream, in whatever
coding; an attack that is let through without the name was disarmed.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import quopri
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import brotli
import zstandard

from tests.attacks.corpus import rows
from tests.attacks.stage import DENIED

PLAIN = f'{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{DENIED}"}}}}'
CALL = PLAIN.encode()
ALLOWED = CALL.replace(DENIED.encode(), b"read_file")
PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
LAST = b"0\r\n\r\n"
HEAD = b"POST /mcp HTTP/1.1\r\n" + HOST + JSON
SMUGGLED = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(CALL), CALL)
PARTS = {
    "CALL": CALL,
    "ALLOWED": ALLOWED,
    "PING": PING,
    "HEAD": HEAD,
    "JSON": JSON,
    "SMUGGLED": SMUGGLED,
}


@dataclass(frozen=True)
class Attack:
    name: str
    raw: bytes
    answers: int = 1
    """How many answers to wait for."""


def post(body: bytes, headers: bytes = b"", *, path: bytes = b"/mcp", kind: bytes = JSON) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s%s%s\r\n%s" % (path, HOST, kind, headers, length, body)


def chunked(*chunks: bytes, end: bytes = LAST) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


@cache
def bodies() -> list[tuple[str, bytes]]:
    """Return calls of the denied tool in every spelling, and what some parser makes one of."""
    codecs = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-7", "cp037")
    coded = [(codec, PLAIN.encode(codec)) for codec in codecs]
    return rows("requests", "calls") + coded + rows("requests", "calls that are no UTF-8, or long")


def in_bodies() -> Iterator[Attack]:
    for label, body in bodies():
        yield Attack(f"body: {label}", post(body))
    small = [(label, body) for label, body in bodies() if len(body) < 1000]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"):
        for label, body in small[:3] + small[-20:-8]:
            said = post(body, kind=b"Content-Type: %s\r\n" % kind.encode())
            yield Attack(f"{kind}: {label}", said)
    paths = b"/", b"/sse", b"/messages?a=1", b"//mcp", b"/mcp/../mcp", b"/%6dcp", b"/oauth/token"
    for path in paths:
        for label, body in small[:2] + small[16:24]:
            yield Attack(f"{path.decode()}: {label}", post(body, path=path))


def in_codings() -> Iterator[Attack]:
    """A body that the upstream undoes otherwise than the proxy."""
    raw_deflate = zlib.compressobj(wbits=-15)
    packed = gzip.compress(CALL)
    named = (
        "gzip",
        "gzip, gzip",
        "identity, gzip",
        "gzip,",
        "x-gzip",
        "GZIP",
        '"gzip"',
        "gzip;q=1",
    )
    untrue = "gzip", "deflate", "br", "rot13", "compress", "none", "identity", ""
    for label, coding, body in [
        *(("packed once", coding, packed) for coding in named),
        *(("not packed", coding, CALL) for coding in untrue),
        ("two members", "gzip", gzip.compress(PING) + packed),
        (
            "a message in two members",
            "gzip",
            gzip.compress(PING[:-1]) + gzip.compress(b',"method":"tools/call"}'),
        ),
        ("cut short", "gzip", packed[:-6]),
        ("junk behind", "gzip", gzip.compress(PING) + b"junk" + packed),
        ("a call behind", "gzip", gzip.compress(PING) + CALL),
        ("zlib", "deflate", zlib.compress(CALL)),
        ("raw", "deflate", raw_deflate.compress(CALL) + raw_deflate.flush()),
        ("stored, so that it reads as JSON", "deflate", _stored(CALL)),
        ("brotli", "br", brotli.compress(CALL)),
        ("brotli and behind", "br", brotli.compress(PING) + brotli.compress(CALL)),
        ("zstd", "zstd", zstandard.compress(CALL)),
        ("two frames", "zstd", zstandard.compress(PING) + zstandard.compress(CALL)),
        ("skippable frame", "zstd", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(CALL)),
        ("twice", "gzip, gzip", gzip.compress(packed)),
        ("quopri", "quopri", quopri.encodestring(CALL.replace(b"wipe", b"=77ipe"))),
        ("base64", "base64", base64.b64encode(CALL)),
        ("hex", "hex", CALL.hex().encode()),
        ("bz2", "bz2", bz2.compress(CALL)),
        ("uu", "uu", b"begin 666 x\n" + CALL),
        ("utf-7", "utf-7", PLAIN.encode("utf-7")),
        ("unicode_escape", "unicode_escape", CALL.replace(b"wipe", rb"\x77ipe")),
        ("aws-chunked", "aws-chunked", chunked(CALL)),
    ]:
        header = b"Content-Encoding: %s\r\n" % coding.encode()
        yield Attack(f"coding {coding}: {label}", post(body, header))
    both = b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"
    yield Attack("coding given twice", post(packed, both))
    for spelling in ("Content_Encoding", "Content.Encoding", "CONTENT-ENCODING "):
        yield Attack(f"coding as {spelling}", post(packed, b"%s: gzip\r\n" % spelling.encode()))
    charsets = (
        "utf-7", "utf-16", "utf-16le", "unicode_escape", "quopri", "cp037", "rot13", "gbk",
        "shift_jis", "hz", "iso-2022-jp", "utf-8; charset=utf-7", "'utf-7'", "UTF-7",
    )  # fmt: skip
    for charset in charsets:
        kind = b"Content-Type: application/json; charset=%s\r\n" % charset.encode()
        body = PLAIN.encode("utf-16-le") if "16" in charset else CALL
        yield Attack(f"charset {charset}", post(body, kind=kind))
        folded = b"Content-Type: application/json;CHARSET*0=%s\r\n" % charset.encode()
        yield Attack(f"charset in parts {charset}", post(body, kind=folded))
    yield Attack("UTF-7 in the body", post(b"+AHs-" + PLAIN.encode("utf-7")[1:]))
    for spelling in ("quoted-printable", "base64", "x-uuencode"):
        own = b"Content-Transfer-Encoding: %s\r\n" % spelling.encode()
        yield Attack(f"transfer encoding {spelling}", post(CALL, own))


def _stored(data: bytes) -> bytes:
    """Raw deflate that begins with a brace, for a server that does not undo it."""
    length = len(data)
    block = b"\x01" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little") + data
    return b'{"a":"' + block


def in_framing() -> Iterator[Attack]:
    """Bytes that two HTTP parsers cut into requests differently."""
    te, cl = b"Transfer-Encoding", b"Content-Length"
    is_chunked = te + b": chunked\r\n"
    length = cl + b": %d\r\n" % len(LAST + SMUGGLED)
    yield Attack("CL.TE", HEAD + is_chunked + length + b"\r\n" + LAST + SMUGGLED, 2)
    yield Attack("CL.TE, other order", HEAD + length + is_chunked + b"\r\n" + LAST + SMUGGLED, 2)
    framed = chunked(CALL)
    for label, value in rows("requests", "Transfer-Encoding"):
        yield Attack(f"TE {label}", HEAD + te + value + b"\r\n\r\n" + framed)
        with_length = te + value + b"\r\n" + cl + b": %d\r\n" % len(framed)
        yield Attack(f"TE {label}, with CL", HEAD + with_length + b"\r\n" + framed)
    for label, name in [
        ("underscore", b"Transfer_Encoding"),
        ("dot", b"Transfer.Encoding"),
        ("no dash", b"TransferEncoding"),
        ("trailing dash", b"Transfer-Encoding-"),
    ]:
        yield Attack(f"TE with {label}", HEAD + name + b": chunked\r\n\r\n" + framed)
    yield Attack("TE twice", HEAD + is_chunked * 2 + b"\r\n" + framed)
    identity = te + b": identity\r\n"
    yield Attack("TE twice, one identity", HEAD + identity + is_chunked + b"\r\n" + framed)
    older = HEAD.replace(b"1.1", b"1.0")
    yield Attack("TE in HTTP/1.0", older + is_chunked + b"\r\n" + framed)
    for label, value in rows("requests", "Content-Length", **PARTS):
        yield Attack(f"CL {label}", HEAD + cl + b": " + value + b"\r\n\r\n" + SMUGGLED)
    for name in (b"Content_Length", b"Content.Length", b"ContentLength", b"Content-Length "):
        raw = HEAD + name + b": %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED
        yield Attack(f"CL as {name.decode()}", raw, 2)
    methods = (
        b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"PATCH", b"TRACE", b"PROPFIND", b"CONNECT",
        b"get", b"Post", b"QUERY", b"FOO",
    )  # fmt: skip
    for method in methods:
        for path in (b"/mcp", b"/unknown", b"/.well-known/oauth-protected-resource"):
            for label, body in (("a request", SMUGGLED), ("a call", CALL)):
                length = cl + b": %d\r\n" % len(body)
                line = method + b" " + path + b" HTTP/1.1\r\n"
                raw = line + HOST + JSON + length + b"\r\n" + body
                yield Attack(f"CL.0: {label} on {line.decode().strip()}", raw)
        line = method + b" /mcp HTTP/1.1\r\n" + HOST
        raw = line + JSON + is_chunked + b"\r\n" + chunked(SMUGGLED)
        yield Attack(f"chunked request on {method.decode()}", raw)
        yield Attack(f"behind {method.decode()}", line + b"\r\n" + SMUGGLED, 2)
    single = [("one byte each", chunked(*(CALL[i : i + 1] for i in range(len(CALL)))))]
    for label, framed in rows("requests", "chunks", **PARTS) + single:
        yield Attack(f"chunks: {label}", HEAD + is_chunked + b"\r\n" + framed, 2)
    for label, raw in rows("requests", "one behind the other", **PARTS):
        yield Attack(f"pipeline: {label}", raw, 2)


def in_heads() -> Iterator[Attack]:
    """Headers that make a message of an innocent body, or of none."""
    innocent = {
        "ping": PING, "allowed": ALLOWED, "an empty object": b"{}", "nothing": b"", "null": b"null",
        "an empty list": b"[]", "a response": PING.replace(b'"method":"ping"', b'"result":{}'),
        "no name": ALLOWED.replace(b'{"name":"read_file"}', b"{}"),
    }  # fmt: skip
    for label, headers in rows("requests", "fields"):
        for what, body in innocent.items():
            yield Attack(f"head {label}, body {what}", post(body, headers))
        yield Attack(f"head {label} on GET", b"GET /mcp HTTP/1.1\r\n" + HOST + headers + b"\r\n")
    for label, target in rows("requests", "targets"):
        for verb in (b"GET", b"POST"):
            raw = verb + b" " + target + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n"
            yield Attack(f"target {label} on {verb.decode()}", raw)
    override = b"X-HTTP-Method-Override: POST\r\nX-Method-Override: POST\r\n"
    get = post(CALL, override, kind=b"").replace(b"POST", b"GET", 1)
    yield Attack("override on GET", get)
    yield Attack("override on PUT", post(CALL, override).replace(b"POST", b"PUT", 1))
    for label, line in rows("requests", "request lines"):
        yield Attack(f"line {label}", line + SMUGGLED[SMUGGLED.index(b"\r\n") :])


def in_upgrades() -> Iterator[Attack]:
    """Ways out of HTTP. What follows at once is what a tunnel would carry."""
    for label, headers in rows("requests", "upgrades"):
        for method in (b"GET", b"POST", b"OPTIONS"):
            raw = method + b" /mcp HTTP/1.1\r\n" + HOST + headers + b"\r\n" + SMUGGLED
            yield Attack(f"upgrade {label} on {method.decode()}", raw, 2)
        raw = b"GET /ws HTTP/1.1\r\n" + HOST + headers + b"\r\n" + masked(CALL) + SMUGGLED
        yield Attack(f"upgrade {label}, frame behind", raw, 2)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    yield Attack("HTTP/2 by prior knowledge", preface + SMUGGLED)
    yield Attack("PROXY protocol", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + SMUGGLED)
    second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\x7f\0\0\1" * 2 + b"\0\1\0\2"
    yield Attack("PROXY protocol 2", second + SMUGGLED)
    yield Attack("TLS alert", b"\x15\x03\x01\x00\x02\x02\x28" + SMUGGLED)
    yield Attack("no HTTP at all", CALL + b"\r\n\r\n")
    yield Attack("a line of JSON", CALL + b"\n\n" + CALL + b"\r\n\r\n")


def masked(data: bytes, first: int = 0x81) -> bytes:
    """A WebSocket frame from a client; the mask of zeros leaves its bytes as they are."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([first]) + length + b"\0\0\0\0" + data


ATTACKS = [*in_bodies(), *in_codings(), *in_framing(), *in_heads(), *in_upgrades()]
