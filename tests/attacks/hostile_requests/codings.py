"""Bodies that the upstream undoes otherwise than the proxy."""

from __future__ import annotations

import base64
import gzip
import quopri
import zlib
from collections.abc import Iterator

import brotli
import zstandard

from tests.attacks.hostile_requests.base import (
    CALL,
    PING,
    PLAIN,
    Attack,
    chunked,
    post,
)


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
    yield Attack(
        "coding given twice",
        post(gzip.compress(CALL), b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"),
    )
    for spelling in ("Content_Encoding", "Content.Encoding", "CONTENT-ENCODING "):
        yield Attack(
            f"coding as {spelling}",
            post(gzip.compress(CALL), b"%s: gzip\r\n" % spelling.encode()),
        )
    for charset in (
        "utf-7",
        "utf-16",
        "utf-16le",
        "unicode_escape",
        "quopri",
        "cp037",
        "rot13",
        "gbk",
        "shift_jis",
        "hz",
        "iso-2022-jp",
        "utf-8; charset=utf-7",
        "'utf-7'",
        "UTF-7",
    ):
        kind = b"Content-Type: application/json; charset=%s\r\n" % charset.encode()
        body = PLAIN.encode("utf-16-le") if "16" in charset else CALL
        yield Attack(f"charset {charset}", post(body, kind=kind))
        folded = b"Content-Type: application/json;CHARSET*0=%s\r\n" % charset.encode()
        yield Attack(f"charset in parts {charset}", post(body, kind=folded))
    disguised = b"+AHs-" + PLAIN.encode("utf-7")[1:]
    yield Attack("UTF-7 in the body", post(disguised))
    for spelling in ("quoted-printable", "base64", "x-uuencode"):
        yield Attack(
            f"transfer encoding {spelling}",
            post(CALL, b"Content-Transfer-Encoding: %s\r\n" % spelling.encode()),
        )


def _stored(data: bytes) -> bytes:
    """Raw deflate that begins with a brace, for a server that does not undo it."""
    length = len(data)
    block = b"\x01" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little") + data
    return b'{"a":"' + block
