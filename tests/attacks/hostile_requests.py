"""Attacks by a client: some server, somewhere, would take each for a call of the denied tool.

Each is bytes on a connection. None of them may bring the tool's name to the upstream, in whatever
coding; an attack that is let through without the name was disarmed.
"""
# ruff: noqa: E501 - tables

from __future__ import annotations

import base64
import gzip
import json
import quopri
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

import brotli
import zstandard

from tests.attacks.stage import DENIED

PLAIN = f'{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{DENIED}"}}}}'
CALL = PLAIN.encode()
ALLOWED = CALL.replace(DENIED.encode(), b"read_file")
PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
LAST = b"0\r\n\r\n"
SMUGGLED = b"POST /mcp HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (HOST, JSON, len(CALL), CALL)


@dataclass(frozen=True)
class Attack:
    name: str
    raw: bytes
    answers: int = 1
    """How many answers to wait for."""


def post(body: bytes, headers: bytes = b"", *, path: bytes = b"/mcp", kind: bytes = JSON) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s%s%s\r\n%s" % (path, HOST, kind, headers, length, body)


def quoted(raw: bytes) -> bytes:
    return quote_from_bytes(raw, safe="").encode()


def chunked(*chunks: bytes, end: bytes = LAST) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield calls of the denied tool in every spelling, and what some parser makes one of."""
    name, allowed_behind = f'"{DENIED}"', ',"params":{"name":"read_file"}}'
    for label, text in {
        "plain": PLAIN,
        "spaced": f' \n{{ "method" : "tools/call" , "params":{{ "name" : {name} }},"id":7,'
        '"jsonrpc":"2.0"}\t',
        "escaped name": PLAIN.replace("wipe", "\\u0077ipe"),
        "escaped method": PLAIN.replace("tools/call", "tools\\/call"),
        "escaped keys": PLAIN.replace('"name"', '"n\\u0061me"').replace(
            '"params"', '"p\\u0061rams"'
        ),
        "escaped method key": PLAIN.replace('"method"', '"\\u006dethod"'),
        "notification": PLAIN.replace('"id":7,', ""),
        "null id": PLAIN.replace("7", "null"),
        "object id": PLAIN.replace("7", "{}"),
        "bool id": PLAIN.replace("7", "true"),
        "5000 digit id": PLAIN.replace("7", "7" * 5000),
        "no version": PLAIN.replace('"jsonrpc":"2.0",', ""),
        "version 1.0": PLAIN.replace("2.0", "1.0"),
        "version number": PLAIN.replace('"2.0"', "2.0"),
        "result beside": PLAIN.replace('"id"', '"result":{},"id"'),
        "error beside": PLAIN.replace('"id"', '"error":{"code":1,"message":""},"id"'),
        "name twice, allowed first": PLAIN.replace('{"name"', '{"name":"read_file","name"'),
        "name twice, allowed last": PLAIN.replace(f"{name}}}", f'{name},"name":"read_file"}}'),
        "name in another case": PLAIN.replace('{"name"', '{"name":"read_file","Name"'),
        "name in upper case only": PLAIN.replace('"name"', '"NAME"'),
        "name with NUL": PLAIN.replace('{"name"', '{"name":"read_file","name\\u0000x"'),
        "name after BOM": PLAIN.replace('{"name"', '{"name":"read_file","\\ufeffname"'),
        "params twice": PLAIN.replace('"params"', '"params":{"name":"read_file"},"params"'),
        "params twice, allowed last": PLAIN[:-1] + allowed_behind,
        "params in another case": PLAIN[:-1].replace('"params"', '"Params"') + allowed_behind,
        "params with long s": PLAIN[:-1].replace('"params"', '"param\u017f"') + allowed_behind,
        "method twice": PLAIN.replace('"method"', '"method":"ping","method"'),
        "method twice, ping last": PLAIN[:-1] + ',"method":"ping"}',
        "method in another case": PLAIN.replace('"method"', '"method":"ping","Method"'),
        "method with NUL": PLAIN.replace("tools/call", "tools/call\\u0000"),
        "method in upper case": PLAIN.replace("tools/call", "TOOLS/CALL"),
        "method with a space": PLAIN.replace("tools/call", "tools/call "),
        "method with a slash": PLAIN.replace("tools/call", "/tools/call"),
        "method dotted": PLAIN.replace("tools/call", "tools.call"),
        "method with a fullwidth slash": PLAIN.replace("tools/call", "tools\uff0fcall"),
        "method as URL": PLAIN.replace("tools/call", "tools%2Fcall"),
        "method as list": PLAIN.replace('"tools/call"', '["tools/call"]'),
        "name as list": PLAIN.replace(name, f"[{name}]"),
        "name as object": PLAIN.replace(name, f'{{"toString":{name}}}'),
        "params as list": PLAIN.replace(f'{{"name":{name}}}', f"[{name}]"),
        "params as text": PLAIN.replace(f'{{"name":{name}}}', json.dumps(f'{{"name":{name}}}')),
        "proto": PLAIN.replace(f'{{"name":{name}}}', f'{{"__proto__":{{"name":{name}}}}}'),
        "proto in the envelope": '{"__proto__":' + PLAIN + "}",
        "as an index": '{"0":' + PLAIN + "}",
        "within a message": PING[:-1].decode() + f',"message":{PLAIN}}}',
        "wrapped": f'{{"jsonrpc":"2.0","payload":{PLAIN}}}',
        "as text": json.dumps(PLAIN),
        "name with a space": PLAIN.replace(DENIED, DENIED + " "),
        "name with a line end": PLAIN.replace(DENIED, DENIED + "\\n"),
        "name in upper case letters": PLAIN.replace(DENIED, DENIED.upper()),
        "name in full width": PLAIN.replace(DENIED, "wipe\uff3fdisk"),
        "name with a zero width space": PLAIN.replace(DENIED, DENIED + "\u200b"),
        "name with half a surrogate": PLAIN.replace(DENIED, DENIED + "\\ud800"),
        "batch": f"[{PLAIN}]",
        "batch behind an allowed": f"[{ALLOWED.decode()},{PLAIN}]",
        "batch of batches": f"[[{PLAIN}]]",
        "batch with same ids": f"[{ALLOWED.decode()},{PLAIN},{PING.decode()}]",
        "batch with a number": f"[1,{PLAIN}]",
        "batch of notifications": f"[{PLAIN.replace('7', '8')},{PLAIN.replace(chr(34) + 'id' + chr(34) + ':7,', '')}]",
        "trailing comma": PLAIN[:-1] + ",}",
        "comment": "/*" + PLAIN + "*/" + PLAIN,
        "comment inside": PLAIN.replace('"id"', '/* */"id"'),
        "line comment": "//x\n" + PLAIN,
        "single quotes": PLAIN.replace('"', "'"),
        "bare keys": PLAIN.replace('"jsonrpc"', "jsonrpc"),
        "NaN": PLAIN.replace('"id"', '"x":NaN,"id"'),
        "plus": PLAIN.replace('"id"', '"x":+1,"id"'),
        "hex": PLAIN.replace('"id"', '"x":0x1,"id"'),
        "raw control in the name": PLAIN.replace(DENIED, DENIED + "\x01"),
        "two values": PING.decode() + PLAIN,
        "two lines": PING.decode() + "\n" + PLAIN,
        "record separators": "\x1e" + PING.decode() + "\n\x1e" + PLAIN + "\n",
        "as server-sent event": f"data: {PLAIN}\n\n",
        "anti-hijacking prefix": ")]}',\n" + PLAIN,
        "BOM": "\ufeff" + PLAIN,
        "space of another kind": "\u00a0" + PLAIN,
        "form feed before": "\x0c" + PLAIN,
        "NUL behind": PLAIN + "\0",
        "NUL before": "\0" + PLAIN,
        "deep": PLAIN.replace(f"{name}}}", f'{name},"arguments":' + "[" * 129 + "]" * 129 + "}"),
        "very deep": PLAIN.replace(f"{name}}}", f'{name},"a":' + "[" * 90000 + "]" * 90000 + "}"),
        "very deep before": '{"a":' + "[" * 90000 + "]" * 90000 + "," + PLAIN[1:],
        "unclosed": PLAIN[:-1],
        "unclosed deep": PLAIN + "[" * 100_000,
        "XML": f"<methodCall><methodName>tools/call</methodName><name>{DENIED}</name></methodCall>",
        "YAML": f"jsonrpc: '2.0'\nid: 7\nmethod: tools/call\nparams: {{name: {DENIED}}}\n",
        "form": f"jsonrpc=2.0&id=7&method=tools/call&params[name]={DENIED}",
        "form of JSON": "payload=" + PLAIN,
    }.items():
        yield label, text.encode("utf-8", "surrogatepass")
    for codec in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-7", "cp037"):
        yield codec, PLAIN.encode(codec)
    yield "overlong UTF-8", CALL.replace(b"wipe", b"\xc1\xb7ipe")
    yield "invalid UTF-8", CALL.replace(b"wipe", b"\xffwipe")
    yield "surrogates in UTF-8", CALL.replace(b"wipe", b"\xed\xa0\x80wipe")
    yield "over the limit", CALL[:-1] + b',"x":"' + b"x" * (10 << 20) + b'"}'
    yield "name behind 10 MB", CALL.replace(b'{"name', b'{"a":"' + b"x" * (10 << 20) + b'","name')


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
    two = gzip.compress(PING) + gzip.compress(CALL)
    split = gzip.compress(PING[:-1]) + gzip.compress(b',"method":"tools/call"}')
    raw_deflate = zlib.compressobj(wbits=-15)
    raw_deflated = raw_deflate.compress(CALL) + raw_deflate.flush()
    stored = _stored(CALL)
    for label, coding, body in [
        ("gzip", "gzip", gzip.compress(CALL)),
        ("two members", "gzip", two),
        ("a message in two members", "gzip", split),
        ("cut short", "gzip", gzip.compress(CALL)[:-6]),
        ("junk behind", "gzip", gzip.compress(PING) + b"junk" + gzip.compress(CALL)),
        ("a call behind", "gzip", gzip.compress(PING) + CALL),
        ("not gzip at all", "gzip", CALL),
        ("zlib", "deflate", zlib.compress(CALL)),
        ("raw", "deflate", raw_deflated),
        ("stored, so that it reads as JSON", "deflate", stored),
        ("not deflate at all", "deflate", CALL),
        ("brotli", "br", brotli.compress(CALL)),
        ("brotli and behind", "br", brotli.compress(PING) + brotli.compress(CALL)),
        ("not brotli at all", "br", CALL),
        ("zstd", "zstd", zstandard.compress(CALL)),
        ("two frames", "zstd", zstandard.compress(PING) + zstandard.compress(CALL)),
        ("skippable frame", "zstd", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(CALL)),
        ("twice", "gzip, gzip", gzip.compress(gzip.compress(CALL))),
        ("named twice", "gzip, gzip", gzip.compress(CALL)),
        ("list", "identity, gzip", gzip.compress(CALL)),
        ("empty members", "gzip,", gzip.compress(CALL)),
        ("x-gzip", "x-gzip", gzip.compress(CALL)),
        ("upper case", "GZIP", gzip.compress(CALL)),
        ("quoted", '"gzip"', gzip.compress(CALL)),
        ("parameter", "gzip;q=1", gzip.compress(CALL)),
        ("quopri", "quopri", quopri.encodestring(CALL.replace(b"wipe", b"=77ipe"))),
        ("base64", "base64", base64.b64encode(CALL)),
        ("hex", "hex", CALL.hex().encode()),
        ("bz2", "bz2", __import__("bz2").compress(CALL)),
        ("uu", "uu", b"begin 666 x\n" + CALL),
        ("rot13", "rot13", CALL),
        ("utf-7", "utf-7", PLAIN.encode("utf-7")),
        ("unicode_escape", "unicode_escape", CALL.replace(b"wipe", rb"\x77ipe")),
        ("aws-chunked", "aws-chunked", chunked(CALL)),
        ("compress", "compress", CALL),
        ("unknown", "none", CALL),
        ("identity", "identity", CALL),
        ("empty", "", CALL),
    ]:
        header = b"Content-Encoding: %s\r\n" % coding.encode()
        yield Attack(f"coding {coding}: {label}", post(body, header))
    packed, both = gzip.compress(CALL), b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"
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
    disguised = b"+AHs-" + PLAIN.encode("utf-7")[1:]
    yield Attack("UTF-7 in the body", post(disguised))
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
    framed = te + b": chunked\r\n\r\n" + chunked(CALL)
    yield Attack("TE twice, one identity", head + te + b": identity\r\n" + framed)
    yield Attack("TE in HTTP/1.0", head.replace(b"1.1", b"1.0") + framed)
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
        raw = head + name + b": " + size + b"\r\n\r\n" + SMUGGLED
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
        raw = line + JSON + te + b": chunked\r\n\r\n" + chunked(SMUGGLED)
        yield Attack(f"chunked request on {method.decode()}", raw)
        yield Attack(f"behind {method.decode()}", line + b"\r\n" + SMUGGLED, 2)
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
            post(PING).replace(b": 40", b": %d" % (40 + len(SMUGGLED)), 1) + SMUGGLED,
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


def in_heads() -> Iterator[Attack]:
    """Headers that make a message of an innocent body, or of none."""
    name = DENIED.encode()
    coded = b"=?base64?" + base64.b64encode(name) + b"?="
    method = b"Mcp-Method: tools/call\r\n"
    for label, headers in [
        ("plain", method + b"Mcp-Name: " + name + b"\r\n"),
        ("name only", b"Mcp-Name: " + name + b"\r\n"),
        ("base64", method + b"Mcp-Name: " + coded + b"\r\n"),
        (
            "base64 in upper case",
            method + b"Mcp-Name: " + coded.replace(b"base64", b"BASE64") + b"\r\n",
        ),
        ("base64 without padding", method + b"Mcp-Name: " + coded.replace(b"=?=", b"?=") + b"\r\n"),
        ("quoted-printable", method + b"Mcp-Name: =?utf-8?Q?" + name + b"?=\r\n"),
        ("RFC 2047", method + b"Mcp-Name: =?utf-8?b?" + base64.b64encode(name) + b"?=\r\n"),
        ("RFC 8187", method + b"Mcp-Name*: utf-8''" + name + b"\r\n"),
        ("per cent", method + b"Mcp-Name: wipe%5Fdisk\r\n"),
        ("quoted", method + b'Mcp-Name: "' + name + b'"\r\n'),
        ("twice, allowed first", method + b"Mcp-Name: read_file\r\nMcp-Name: " + name + b"\r\n"),
        ("twice, allowed last", method + b"Mcp-Name: " + name + b"\r\nmcp-name: read_file\r\n"),
        ("list", method + b"Mcp-Name: read_file, " + name + b"\r\n"),
        ("underscore", method + b"Mcp-Name: read_file\r\nMcp_Name: " + name + b"\r\n"),
        ("underscores only", b"Mcp_Method: tools/call\r\nMcp_Name: " + name + b"\r\n"),
        ("dots", method + b"Mcp.Name: " + name + b"\r\n"),
        ("space", method + b"Mcp Name: " + name + b"\r\n"),
        ("space before colon", method + b"Mcp-Name : " + name + b"\r\n"),
        ("leading dash", method + b"-Mcp-Name: " + name + b"\r\n"),
        ("folded", method + b"Mcp-Name:\r\n " + name + b"\r\n"),
        ("hidden by bare CR", b"X: y\rMcp-Name: " + name + b"\r\n" + method),
        ("hidden by bare LF", b"X: y\nMcp-Name: " + name + b"\n" + method),
        ("hidden by NUL", b"X: y\0\r\nMcp-Name: " + name + b"\0\r\n"),
    ]:
        bodies = {
            "ping": PING,
            "allowed": ALLOWED, "an empty object": b"{}", "nothing": b"", "null": b"null", "an empty list": b"[]",
            "a response": PING.replace(b'"method":"ping"', b'"result":{}'),
            "no name": ALLOWED.replace(b'{"name":"read_file"}', b"{}"),
        }  # fmt: skip
        for what, body in bodies.items():
            yield Attack(f"head {label}, body {what}", post(body, headers))
        yield Attack(f"head {label} on GET", b"GET /mcp HTTP/1.1\r\n" + HOST + headers + b"\r\n")
    for label, target in [
        ("query", b"/mcp?method=tools/call&name=" + name),
        (
            "query with version",
            b"/mcp?jsonrpc=2.0&id=1&method=tools%2Fcall&params=" + quoted(b'{"name":"wipe_disk"}'),
        ),
        (
            "query of JSON",
            b"/mcp?q=" + quoted(b'{"jsonrpc":"2.0","method":"tools/call","name":"wipe_disk"}'),
        ),
        ("semicolons", b"/mcp?id=1;method=tools/call;name=" + name),
        ("upper case", b"/mcp?METHOD=TOOLS/CALL&name=" + name),
        ("list", b"/mcp?method[]=tools/call&params[name]=" + name),
        ("escaped twice", b"/mcp?%256dethod=tools%252Fcall&name=" + name),
        ("NUL in the target", b"/mcp\0?method=tools/call&name=" + name),
        ("fragment", b"/mcp#?method=tools/call&name=" + name),
    ]:
        for verb in (b"GET", b"POST"):
            raw = verb + b" " + target + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n"
            yield Attack(f"target {label} on {verb.decode()}", raw)
    override = b"X-HTTP-Method-Override: POST\r\nX-Method-Override: POST\r\n"
    get = post(CALL, override, kind=b"").replace(b"POST", b"GET", 1)
    yield Attack("override on GET", get)
    yield Attack("override on PUT", post(CALL, override).replace(b"POST", b"PUT", 1))
    for label, line in [
        ("absolute, loopback", b"POST http://localhost/mcp HTTP/1.1"),
        ("absolute, elsewhere", b"POST http://evil.example/mcp HTTP/1.1"),
        ("absolute https", b"POST https://localhost/mcp HTTP/1.1"),
        ("absolute with user", b"POST http://localhost@evil.example/mcp HTTP/1.1"),
        ("absolute ws", b"POST ws://localhost/mcp HTTP/1.1"),
        ("absolute ftp", b"POST ftp://localhost/mcp HTTP/1.1"),
        ("authority form", b"POST localhost:80 HTTP/1.1"),
        ("asterisk", b"POST * HTTP/1.1"),
        ("asterisk OPTIONS", b"OPTIONS * HTTP/1.1"),
        ("no slash", b"POST mcp HTTP/1.1"),
        ("backslash", b"POST \\mcp HTTP/1.1"),
        ("CONNECT", b"CONNECT localhost:80 HTTP/1.1"),
        ("CONNECT elsewhere", b"CONNECT evil.example:80 HTTP/1.1"),
        ("tabs", b"POST\t/mcp\tHTTP/1.1"),
        ("form feed", b"POST\x0c/mcp HTTP/1.1"),
        ("four words", b"POST /mcp x HTTP/1.1"),
        ("leading space", b" POST /mcp HTTP/1.1"),
        ("leading blank line", b"\r\nPOST /mcp HTTP/1.1"),
    ]:
        yield Attack(f"line {label}", line + SMUGGLED[SMUGGLED.index(b"\r\n") :])


def in_upgrades() -> Iterator[Attack]:
    """Ways out of HTTP. What follows at once is what a tunnel would carry."""
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    up = b"Connection: Upgrade\r\n"
    socket, version = b"Upgrade: websocket\r\n" + up, b"Sec-WebSocket-Version: "
    settings = b"HTTP2-Settings: AAMAAABk\r\n"
    frame = masked(CALL)
    for label, headers in [
        *(
            (f"version {one}", socket + version + one.encode() + b"\r\n" + key)
            for one in ("8", "0")
        ),
        ("versions 8, 13", socket + version + b"8, 13\r\n" + key),
        ("version twice", socket + (version + b"13\r\n") * 2 + key),
        ("version 13 and 8", socket + version + b"13\r\n" + version + b"8\r\n" + key),
        ("no version", socket + key),
        ("version 013", socket + version + b"013\r\n" + key),
        ("Hixie", b"Upgrade: WebSocket\r\n" + up + b"Sec-WebSocket-Key1: 4 @1  46546xW%0l 1 5\r\n"),
        ("list with h2c", b"Upgrade: websocket, h2c\r\n" + up + version + b"13\r\n" + key),
        ("websocket with version", b"Upgrade: websocket/13\r\n" + up + version + b"13\r\n" + key),
        (
            "upgrade twice",
            b"Upgrade: websocket\r\nUpgrade: h2c\r\n" + up + version + b"13\r\n" + key,
        ),
        ("no connection", b"Upgrade: h2c\r\n" + settings),
        ("h2c", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n" + settings),
        ("H2C", b"Upgrade: H2C\r\nConnection: upgrade, http2-settings\r\n" + settings),
        ("h2c, foo", b"Upgrade: h2c, foo\r\n" + up),
        ("TLS", b"Upgrade: TLS/1.0\r\n" + up),
        ("unknown", b"Upgrade: mcp\r\n" + up),
        ("connect-udp", b"Upgrade: connect-udp\r\n" + up + b"Capsule-Protocol: ?1\r\n"),
        ("underscore", b"Sec_WebSocket_Version: 13\r\n" + socket + key),
        ("connection twice", b"Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: foo\r\n"),
    ]:
        for method in (b"GET", b"POST", b"OPTIONS"):
            raw = method + b" /mcp HTTP/1.1\r\n" + HOST + headers + b"\r\n" + SMUGGLED
            yield Attack(f"upgrade {label} on {method.decode()}", raw, 2)
        raw = b"GET /ws HTTP/1.1\r\n" + HOST + headers + b"\r\n" + frame + SMUGGLED
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
