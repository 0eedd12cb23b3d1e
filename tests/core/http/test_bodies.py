"""Bodies: their coding, and what they show if they are not messages."""

from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import suppress

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http import bodies
from mcp_tool_filter.core.http.bodies import could_show_tool, decode_body, refuse_non_text
from mcp_tool_filter.core.messages.limits import Limits, OverLimit
from tests.make import definition
from tests.rows import each_row

TEXT = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def deflate(text: bytes) -> bytes:
    """Compress without zlib's head and checksum, as many clients do."""
    return zlib.compress(text)[2:-4]


def skippable(data: bytes) -> bytes:
    """Write a zstd frame that says nothing."""
    return struct.pack("<II", 0x184D2A50, len(data)) + data


CODED = {
    "gzip": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "br": brotli.compress(TEXT),
    "zstd": zstandard.compress(TEXT),
}


@pytest.mark.parametrize("coding", CODED)
def test_the_codings_of_the_web_are_undone(coding: str) -> None:
    assert decode_body(CODED[coding], coding, limit=100) == TEXT
    assert decode_body(CODED[coding], f" {coding.upper()} ", limit=100) == TEXT
    assert decode_body(deflate(TEXT), "deflate", limit=100) == TEXT  # without a head


@pytest.mark.parametrize("coding", ["", "identity", "Identity"])
def test_an_uncoded_body_is_the_same_object(coding: str) -> None:
    assert decode_body(TEXT, coding, limit=0) is TEXT


@each_row("coding", [
    "utf-7", "utf-16", "unicode_escape", "raw_unicode_escape", "quopri", "base64", "hex", "rot13",
    "bz2", "zip", "uu", "punycode", "idna", "compress", "x-gzip", "gzip, gzip", "gzip,", "gzip;q=1",
    "gzip\0", "none", "aws-chunked", "chunked",
])  # fmt: skip
def test_every_other_coding_is_refused(coding: str) -> None:
    """mitmproxy would decode with whatever codec Python knows."""
    with pytest.raises(ProtocolError):
        decode_body(TEXT, coding, limit=1000)


@each_row("coding", CODED)
@each_row("spoil", ["cut", "tail", "twice", "junk", "empty"])
def test_a_body_must_be_whole_and_alone(coding: str, spoil: str) -> None:
    """mitmproxy reads the first gzip member only; upstreams read them all."""
    raw = CODED[coding]
    spoilt = {"cut": raw[:-1], "tail": raw + b"x", "twice": raw * 2, "junk": TEXT, "empty": b""}
    with pytest.raises(ProtocolError):
        decode_body(spoilt[spoil], coding, limit=1000)


@pytest.mark.parametrize("raw", [skippable(b"x") + CODED["zstd"], CODED["zstd"] + skippable(b"")])
def test_a_zstd_body_is_one_frame(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(raw, "zstd", limit=1000)


def test_a_body_that_can_be_inflated_in_two_ways_is_refused() -> None:
    """Two formats go by the name of deflate. This is one of either, with another text in each."""
    text = bytearray(65534)
    text[:9] = bytes.fromhex("0000ffff01feff0100")  # bare: an empty block, then the rest
    tail = bytes.fromhex("010000ffff") + zlib.adler32(text).to_bytes(4)
    body = bytes.fromhex("780100feff0100") + bytes(text) + tail
    assert zlib.decompress(body) != zlib.decompress(body, -15)
    with pytest.raises(ProtocolError):
        decode_body(body, "deflate", limit=100_000)


@pytest.mark.parametrize("coding", CODED)
def test_a_body_may_be_as_long_as_the_limit(coding: str) -> None:
    assert decode_body(CODED[coding], coding, limit=len(TEXT)) == TEXT
    with pytest.raises(OverLimit):
        decode_body(CODED[coding], coding, limit=len(TEXT) - 1)


BOMBS = {
    "gzip": gzip.compress(bytes(50_000_000), 9),
    "deflate": zlib.compress(bytes(50_000_000), 9),
    "br": brotli.compress(bytes(50_000_000), quality=5),
    "zstd": zstandard.compress(bytes(50_000_000)),
}


@pytest.mark.parametrize("coding", BOMBS)
def test_a_decompression_bomb_is_not_inflated_past_the_limit(coding: str) -> None:
    with pytest.raises(OverLimit):
        decode_body(BOMBS[coding], coding, limit=4_000_000)


@pytest.mark.parametrize("raw", [b'{"a":1}', b" [", b"\xef\xbb\xbf{", b"\0{", b"\xff\xfe{\0"])
def test_a_coded_body_that_could_pass_for_json_is_noticed(raw: bytes) -> None:
    assert bodies.looks_like_json(raw)


@each_row("raw", [*CODED.values(), deflate(TEXT), b"", b"\x1f\x8b{"])
def test_an_honest_coded_body_does_not_pass_for_json(raw: bytes) -> None:
    assert not bodies.looks_like_json(raw)


@given(raw=st.binary(max_size=64), coding=st.sampled_from(sorted(CODED)))
def test_only_protocol_errors_are_raised(raw: bytes, coding: str) -> None:
    """Each codec has exceptions of its own."""
    with suppress(ProtocolError):
        decode_body(raw, coding, limit=10)


# What an answer may be that is no message


RM = definition("rm")


@each_row("body", [
    b"", b"Accepted", b"Not Found: rm", b"<html>rm</html>",
    b"<!DOCTYPE html><script>x={'inputSchema':1}</script>",
    b"\x89PNG\r\n\x1a\n\xff", b'{"error":"invalid_token"}', b'{"name":"rm","description":"a page"}',
    b'{"tools":[{"name":"read","inputSchema":{}}]}',
    b'"text"', b"1",
])  # fmt: skip
def test_bodies_without_a_hidden_tool_may_pass(body: bytes) -> None:
    assert not could_show_tool(body, {"rm"}, Limits())


@each_row("body", [
    b'{"tools":[%s]}' % RM, b"[%s]" % RM, b'{"tools":[%s]' % RM,
    b'{"tools":[{"name":"rm","description":"cut o',
    b" [{'name':'rm'}]", b"\xef\xbb\xbf{'name':'rm'}", b"\0{\0", b"data: %s\n\n" % RM,
    b'data: {"name":"rm","input\\u0053chema":{}}\n\n',
    b"x" + RM, RM + RM,
    RM.decode().encode("utf-16"),
    b"<!-- %s -->" % RM,
])  # fmt: skip
def test_bodies_that_some_client_reads_as_a_hidden_tool_may_not_pass(body: bytes) -> None:
    assert could_show_tool(body, {"rm"}, Limits())


@pytest.mark.parametrize(("status", "content_type"), [
    (206, "application/json"),
    (200, "application/json; charset=utf-16"),
    (200, 'application/json;charset = "utf-7"'),
    (200, "application/json; charset*=utf-7''x"),
    (200, "text/html; charset=utf-8; charset=utf-32"),
])  # fmt: skip
def test_partial_content_and_unusual_charsets_are_refused(status: int, content_type: str) -> None:
    with pytest.raises(ProtocolError):
        bodies.refuse_partial(status, content_type)


@pytest.mark.parametrize("content_type", [
    "", "application/json", "text/html; charset=ISO-8859-1", "text/x; charset=UTF8",
])  # fmt: skip
def test_ascii_compatible_charsets_are_accepted(content_type: str) -> None:
    bodies.refuse_partial(200, content_type)


def test_a_body_labelled_as_json_must_be_text() -> None:
    refuse_non_text("application/json", b"not JSON, but text")
    refuse_non_text("image/png", b"\xff")
    with pytest.raises(ProtocolError):
        refuse_non_text("application/problem+json", b"\x1f\x8b")
