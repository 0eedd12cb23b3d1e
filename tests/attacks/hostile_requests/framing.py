"""Bytes that two HTTP parsers cut into requests differently."""

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks.hostile_requests.base import (
    ALLOWED,
    CALL,
    HOST,
    JSON,
    PING,
    SMUGGLED,
    Attack,
    chunked,
    post,
)


def in_framing() -> Iterator[Attack]:
    """Bytes that two HTTP parsers cut into requests differently."""
    te, cl = b"Transfer-Encoding", b"Content-Length"
    size = b"%d" % len(SMUGGLED)
    head = b"POST /mcp HTTP/1.1\r\n" + HOST + JSON
    zero = b"0\r\n\r\n"
    both = [
        ("CL.TE", te + b": chunked\r\n" + cl + b": %d\r\n" % (len(zero + SMUGGLED))),
        ("CL.TE, other order", cl + b": %d\r\n" % (len(zero + SMUGGLED)) + te + b": chunked\r\n"),
    ]
    for label, headers in both:
        yield Attack(label, head + headers + b"\r\n" + zero + SMUGGLED, 2)
    for label, value in [
        ("gzip, chunked", b": gzip, chunked"),
        ("chunked, gzip", b": chunked, gzip"),
        ("chunked twice in one", b": chunked, chunked"),
        ("identity", b": identity"),
        ("chunked, identity", b": chunked, identity"),
        ("xchunked", b": xchunked"),
        ("chunked with vertical tab", b": \x0bchunked"),
        ("chunked quoted", b': "chunked"'),
        ("chunked with parameter", b": chunked;a=b"),
        ("tab", b":\tchunked"),
        ("space before colon", b" : chunked"),
        ("folded", b":\r\n chunked"),
        ("folded with tab", b":\r\n\tchunked"),
        ("bare CR", b": x\rTransfer-Encoding: chunked"),
        ("NUL", b": chunked\0"),
        ("upper case", b": CHUNKED"),
        ("comma", b": ,chunked"),
        ("empty", b":"),
    ]:
        framed = chunked(CALL)
        yield Attack(f"TE {label}", head + te + value + b"\r\n\r\n" + framed)
        with_length = te + value + b"\r\n" + cl + b": %d\r\n" % len(framed)
        yield Attack(f"TE {label}, with CL", head + with_length + b"\r\n" + framed)
    for label, name in [
        ("underscore", b"Transfer_Encoding"),
        ("dot", b"Transfer.Encoding"),
        ("no dash", b"TransferEncoding"),
        ("trailing dash", b"Transfer-Encoding-"),
    ]:
        yield Attack(f"TE with {label}", head + name + b": chunked\r\n\r\n" + chunked(CALL))
    yield Attack("TE twice", head + (te + b": chunked\r\n") * 2 + b"\r\n" + chunked(CALL))
    yield Attack(
        "TE twice, one identity",
        head + te + b": identity\r\n" + te + b": chunked\r\n\r\n" + chunked(CALL),
    )
    yield Attack(
        "TE in HTTP/1.0", head.replace(b"1.1", b"1.0") + te + b": chunked\r\n\r\n" + chunked(CALL)
    )
    for label, value in [
        ("twice the same", size + b"\r\nContent-Length: " + size),
        ("twice, different", b"0\r\nContent-Length: " + size),
        ("list", size + b", " + size),
        ("list, different", b"0, " + size),
        ("plus", b"+" + size),
        ("minus", b"-" + size),
        ("leading zero", b"0" + size),
        ("hex", b"0x%x" % len(SMUGGLED)),
        ("underscore", b"1_0"),
        ("exponent", b"1e2"),
        ("point", size + b".0"),
        ("space inside", b"1 0"),
        ("empty", b""),
        ("huge", b"9" * 30),
        ("digits of another script", "\u0661\u0660".encode()),
        ("folded", b"\r\n " + size),
        ("bare CR", b"0\rContent-Length: " + size),
        ("bare LF", b"0\nContent-Length: " + size),
    ]:
        yield Attack(f"CL {label}", head + cl + b": " + value + b"\r\n\r\n" + SMUGGLED)
    for name in (b"Content_Length", b"Content.Length", b"ContentLength", b"Content-Length "):
        yield Attack(
            f"CL as {name.decode()}", head + name + b": " + size + b"\r\n\r\n" + SMUGGLED, 2
        )
    for method in (
        b"GET",
        b"HEAD",
        b"OPTIONS",
        b"DELETE",
        b"PUT",
        b"PATCH",
        b"TRACE",
        b"PROPFIND",
        b"CONNECT",
        b"get",
        b"Post",
        b"QUERY",
        b"FOO",
    ):
        for path in (b"/mcp", b"/unknown", b"/.well-known/oauth-protected-resource"):
            for label, body in (("a request", SMUGGLED), ("a call", CALL)):
                length = cl + b": %d\r\n" % len(body)
                line = method + b" " + path + b" HTTP/1.1\r\n"
                raw = line + HOST + JSON + length + b"\r\n" + body
                yield Attack(f"CL.0: {label} on {line.decode().strip()}", raw)
        raw = (
            method
            + b" /mcp HTTP/1.1\r\n"
            + HOST
            + JSON
            + te
            + b": chunked\r\n\r\n"
            + chunked(SMUGGLED)
        )
        yield Attack(f"chunked request on {method.decode()}", raw)
        yield Attack(
            f"behind {method.decode()}",
            method + b" /mcp HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED,
            2,
        )
    for label, framed in [
        ("extension", b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("extension with LF", b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("extension with a chunk", b"2;\n%x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("long extension", b"%x;%s\r\n%s\r\n0\r\n\r\n" % (len(CALL), b"a" * 9000, CALL)),
        ("upper hex", b"%X\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("leading zeros", b"%020x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("0x", b"0x%x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("plus", b"+%x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("negative", b"-1\r\n%s\r\n0\r\n\r\n" % CALL),
        ("space behind the size", b"%x \r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL)),
        ("no CR", b"%x\n%s\n0\n\n" % (len(CALL), CALL)),
        ("overflow", b"f" * 17 + b"\r\n" + CALL),
        ("one byte each", chunked(*(CALL[i : i + 1] for i in range(len(CALL))))),
        ("trailers", chunked(CALL, end=b"0\r\nX: y\r\n\r\n")),
        ("trailer that names the tool", chunked(PING, end=b"0\r\nMcp-Name: wipe_disk\r\n\r\n")),
        ("trailer with a length", chunked(PING, end=b"0\r\nContent-Length: 9\r\n\r\n") + SMUGGLED),
        (
            "trailer with a coding",
            chunked(PING, end=b"0\r\nTransfer-Encoding: x\r\n\r\n") + SMUGGLED,
        ),
        ("trailers with a host", chunked(CALL, end=b"0\r\nHost: evil.example\r\n\r\n")),
        ("trailers that end with LF", chunked(PING, end=b"0\r\nX: y\n\n") + SMUGGLED),
        ("trailers with a bare CR", chunked(PING, end=b"0\r\nX: y\r\r\n\r\n") + SMUGGLED),
        ("trailers that go on", chunked(PING, end=b"0\r\nX: y\r\n z\r\n\r\n") + SMUGGLED),
        ("a request as trailers", chunked(PING, end=b"0\r\n") + SMUGGLED),
        ("a request behind", chunked(PING) + SMUGGLED),
        ("empty, a request behind", zero + SMUGGLED),
        ("last chunk twice", chunked(PING) + zero + SMUGGLED),
    ]:
        yield Attack(f"chunks: {label}", head + te + b": chunked\r\n\r\n" + framed, 2)
    for label, raw in [
        ("allowed, then denied", post(ALLOWED) + SMUGGLED),
        ("denied, then denied", SMUGGLED * 2),
        ("ping, then denied", post(PING) + SMUGGLED),
        (
            "HTTP/1.0 keep-alive",
            post(PING, b"Connection: keep-alive\r\n").replace(b"1.1", b"1.0") + SMUGGLED,
        ),
        ("blank lines between", post(PING) + b"\r\n\r\n" + SMUGGLED),
        ("bare LF lines", SMUGGLED.replace(b"\r\n", b"\n")),
        ("bare CR lines", SMUGGLED.replace(b"\r\n", b"\r") + b"\r\n\r\n"),
        ("close, then denied", post(PING, b"Connection: close\r\n") + SMUGGLED),
        (
            "length longer",
            post(PING)[: -len(PING)].replace(b": 40", b": %d" % (40 + len(SMUGGLED)))
            + PING
            + SMUGGLED,
        ),
        (
            "length shorter",
            post(ALLOWED).replace(cl + b": %d" % len(ALLOWED), cl + b": 0") + SMUGGLED,
        ),
        ("expect 100", post(CALL, b"Expect: 100-continue\r\n")),
        ("expect 100, then denied", post(PING, b"Expect: 100-continue\r\n") + SMUGGLED),
        ("expect of another kind", post(CALL, b"Expect: 100-continue, x\r\n")),
        ("HTTP/0.9", b"POST /mcp\r\n\r\n" + SMUGGLED),
        ("HTTP/1.2", SMUGGLED.replace(b"HTTP/1.1", b"HTTP/1.2")),
        ("HTTP/2.0 as text", SMUGGLED.replace(b"HTTP/1.1", b"HTTP/2.0")),
        ("HTTP/3.0 as text", SMUGGLED.replace(b"HTTP/1.1", b"HTTP/3.0")),
        ("HTTP/9.9", SMUGGLED.replace(b"HTTP/1.1", b"HTTP/9.9")),
        ("http in lower case", SMUGGLED.replace(b"HTTP/1.1", b"http/1.1")),
        ("a body of HTTP/2.0 behind ping", post(PING).replace(b"1.1", b"2.0") + SMUGGLED),
    ]:
        yield Attack(f"pipeline: {label}", raw, 2)
