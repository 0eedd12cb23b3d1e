"""Events of other traffic pass at once; the first event of MCP is found, and no byte is lost."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.recognise import EventPeeker, inflating
from mcp_tool_filter.protocol.limits import Limits

MESSAGE = b'data: {"jsonrpc":"2.0","method":"ping","id":1}\n\n'
LIMITS = Limits(message=2000, pending=4000)
PIECES = [b"data: x", b"\n", b"\r", b"\r\n", b": c", b"data: {}", b"data:", b"event: y", b"id: 1",
          b"\xef\xbb\xbf", b"\x0b", b" ", b"h", b"\xe2\x80", b"\xa8"]  # fmt: skip


def fed(chunks: list[bytes], limits: Limits = LIMITS) -> tuple[bytes, bytes | None]:
    peeker, passed = EventPeeker(limits), b""
    for number, chunk in enumerate(chunks):
        more, rest = peeker.feed(chunk)
        passed += more
        if rest is not None:
            return passed, rest + b"".join(chunks[number + 1 :])
    more, rest = peeker.finish()
    return passed + more, rest


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=9), max_size=20))
def test_no_byte_is_lost_wherever_the_stream_is_cut(pieces: list[bytes]) -> None:
    raw = b"".join(pieces)
    assert fed(pieces) == fed([raw]) == (raw, None)


@given(
    before=st.lists(st.sampled_from(PIECES), max_size=9),
    sizes=st.lists(st.integers(1, 20), min_size=1),
)
def test_the_first_message_is_found_whatever_comes_before(
    before: list[bytes], sizes: list[int]
) -> None:
    start = b"".join(before) + b"\n\n"
    raw = start + MESSAGE + b"data: rest"
    chunks: list[bytes] = []
    while raw:
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(raw[:size])
        raw = raw[size:]
    assert fed(chunks) == (start, MESSAGE + b"data: rest")


@pytest.mark.parametrize(
    ("raw", "passes"),
    [
        (b"data: hel", b"data: hel"),
        (b"data: one\ndata: two", b"data: one\ndata: two"),
        (b"id: 1\nevent: token\n", b""),
        (b"id: 1\nevent: token\ndata: a\n", b"id: 1\nevent: token\ndata: a\n"),
        (b": ping\n", b": ping\n"),
        (b"\n\n\n", b"\n\n\n"),
        (b"data: {", b""),
        (b"data: \ndata: {", b""),
        (b"data: /messages", b""),
        (b"data: https://x", b""),
        (b"data: ht", b""),
        (b"data: hello\x0bdata: {", b"data: hello"),
        (b"event: endpoint\ndata: x\n", b""),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
    ],
)
def test_lines_that_cannot_be_a_message_do_not_wait(raw: bytes, passes: bytes) -> None:
    assert EventPeeker(LIMITS).feed(raw) == (passes, None)


@pytest.mark.parametrize(
    "event",
    [
        MESSAGE,
        b"event: endpoint\ndata: /m?s=1\n\n",
        b"data: /m?s=1\nevent: endpoint\n\n",
        b"data: http://x/m\nevent: Endpoint \n\n",
        b"\xef\xbb\xbf" + MESSAGE,
        b"id: 1\r\ndata: \r\n" + MESSAGE.replace(b"\n", b"\r\n"),
        MESSAGE.replace(b"\n", b"\r"),
        b"event: a\nevent: message\n" + MESSAGE,
        b'id: x\x0b\x0bdata: {"jsonrpc"\n\n',
    ],
)
def test_mcp_is_found_in_every_form(event: bytes) -> None:
    passed, rest = fed([event[n : n + 1] for n in range(len(event))])
    assert rest is not None
    assert passed + rest == event
    assert passed in (b"", b"\xef\xbb\xbf")


def test_a_message_in_a_line_that_only_some_readers_see_does_not_pass() -> None:
    for ends in (b"\x0b\x0b", b"\xe2\x80\xa8\xe2\x80\xa8", b"\x1e\x1e"):
        with pytest.raises(ProtocolError):
            fed([b"data: hello", ends[:1], ends[1:] + MESSAGE])
        assert fed([b"data: hello" + ends + MESSAGE]) == (b"", b"data: hello" + ends + MESSAGE)


def test_long_events_of_others_pass_and_those_that_turn_out_to_be_mcp_do_not() -> None:
    long = [b'data: {"a":"', *[b"x" * 1000] * 30, b'"}\n\n']
    assert fed(long) == (b"".join(long), None)
    with pytest.raises(ProtocolError):
        fed([*long[:-1], b'","jsonrpc":"2.0"}\n\n'])
    passed, rest = fed([b'data: {"jsonrpc":"2.0","a":"', *long[1:]])
    assert passed == b""
    assert rest is not None


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "br", "zstd"])
def test_compressed_streams_are_read_as_they_come(coding: str) -> None:
    text = b"data: hello\n\n" * 100_000
    make = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress,
            "br": brotli.compress, "zstd": zstandard.compress}  # fmt: skip
    raw, inflate = make[coding](text), inflating(coding)
    pieces = [piece for n in range(0, len(raw), 50) for piece in inflate(raw[n : n + 50])]
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) <= 10_000_000


def test_an_unknown_coding_is_refused() -> None:
    with pytest.raises(ProtocolError):
        inflating("x-unknown")
