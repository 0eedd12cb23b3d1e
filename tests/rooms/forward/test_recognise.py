"""What is MCP: every spelling that some server could read, and nothing of others."""

from __future__ import annotations

import gzip
import json
import string
import zlib
from random import Random

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.rooms.forward import recognise
from mcp_tool_filter.rooms.forward.recognise import BodyReader, TrafficKind, Treatment, kind_of_body
from tests.make import chunks as cut
from tests.make import head, raw_head
from tests.rows import each_row

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rm"}}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'
LIMITS = Limits(message=2000, pending=4000)
PIECES = [
    b"json", b"rpc", b"JSONR", b"\\u0050", b"\\u0043", b"j\\u017fonrpc", b"jsonrp", b"c", b"tools",
    b"/call", b"\\/", b"list", b"\\u002F", b"\\u0074ool", b"s", "\u017f".encode(), b"\0",
    b"x" * 300, b"\\u0041" * 50, b"\\", b"\\u",
]  # fmt: skip
TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@each_row("body", [
    CALL, ANSWER, b"[" + CALL + b"]", b"[1, " + CALL + b"]", b"{}" + CALL, CALL + b"{}",
    CALL + b"garbage", CALL[:-1], b"\xef\xbb\xbf" + CALL,
    CALL.decode().encode("utf-16"),
    CALL.decode().encode("utf-32-be"),
    CALL.replace(b"jsonrpc", b"JsonRPC"),
    CALL.replace(b"jsonrpc", b"j\\u0073onrpc"),
    CALL.replace(b"jsonrpc", "j\u017fonrpc".encode()),
    CALL.replace(b'"method"', b'"method":"eth_call","method"'),
    CALL.replace(b'"tools/call"', b'["tools/call"]'),
    CALL.replace(b'"jsonrpc":"2.0",', b""),
    CALL.replace(b"tools/call", b"tools\\/call"),
    CALL.replace(b"tools/call", b"TOOLS/CALL"),
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"," + CALL[1:],
    b'{"a":NaN,' + CALL[1:], b'{"a":' + b"9" * 5000 + b"," + CALL[1:],
    b'{"a":"\\ud800",' + CALL[1:], b'{"a":"\xff",' + CALL[1:], b'{"a":1,},' + CALL,
    b"/* a comment */ " + CALL, b"// a comment\n" + CALL, b"\x0b\x0c\x1e" + CALL,
    "\xa0\u2003\u2028\u3000".encode() + CALL,
    ("\xa0" + CALL.decode()).encode("utf-16"),
    b")]}'\n" + CALL,
])  # fmt: skip
def test_any_body_that_a_server_could_read_as_mcp_is_mcp(body: bytes) -> None:
    assert kind_of_body(body) is TrafficKind.MCP


@each_row("body", [
    b"", b"   ", b"{}", b"[]", b'"jsonrpc tools/call"',
    b'{"messages":[{"jsonrpc":"2.0","method":"tools/call"}]}',
    json.dumps({"text": CALL.decode()}).encode(),
    b'{"method":"card","amount":1}', b'{"method":"initialize"}', b'{"a":1}\n{"b":2}\n',
    b'{"a":1} {"b":2} ', b'{"jsonrpc_version":1}',
])  # fmt: skip
def test_other_traffic_is_not_mcp(body: bytes) -> None:
    assert kind_of_body(body) is TrafficKind.OTHER


@given(before=JSON, name=st.sampled_from(["jsonrpc", "JSONRPC", "jsonrpc "]))
def test_a_message_is_found_among_any_members(before: object, name: str) -> None:
    said = {"a": before, name: "2.0", "method": "tools/call", "z": before}
    for body in (json.dumps(said), json.dumps([before, said], ensure_ascii=False)):
        assert kind_of_body(body.encode("utf-8", "surrogatepass")) is TrafficKind.MCP


@given(
    body=st.sampled_from([CALL, b" \n" + CALL, b"\x89PNG", b'{"a":1}', b"", b" ", b"[1]"]),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    coding=st.sampled_from(["", "gzip", "identity"]),
)
def test_chunk_boundaries_do_not_matter(body: bytes, sizes: list[int], coding: str) -> None:
    raw = gzip.compress(body, mtime=0) if coding == "gzip" else body
    assert way_of(raw, coding, sizes) is way_of(raw, coding, [10**6])


def way_of(raw: bytes, coding: str, sizes: list[int]) -> Treatment:
    reader = BodyReader(coding, LIMITS)
    for chunk in cut(raw, sizes):
        if (way := reader.feed(chunk)) is not None:
            return way
    return reader.finish()


@each_row("size", [1, 2, 5, 10, 20, 10**6])
@each_row("before", [b"", b"\n", b"[", b'{"a":1}'])
@each_row("coding", ["gzip", "x-gzip", "deflate", "gzip, gzip", "br, identity"])
def test_a_body_in_a_wrong_coding_is_judged(coding: str, before: bytes, size: int) -> None:
    """It looks like JSON as it is: the server may ignore the coding.

    A part of it can be taken for the beginning of compressed data.
    """
    assert way_of(before + CALL, coding, [size]) is Treatment.MCP


def test_a_body_that_is_also_compressed_data_is_judged() -> None:
    """As zlib it begins with a letter; without a head it is a stored block, and any message."""
    stored = b"\x78\x01\x4b\xfe\xb4" + b" " * 0x4B01
    assert zlib.decompressobj(15).decompress(stored[:4])[:1] not in (b"", b"{", b"[")
    assert zlib.decompressobj(-15).decompress(stored) == b" " * 0x4B01
    assert BodyReader("deflate", LIMITS).feed(stored[:4]) is not Treatment.OTHER


@pytest.mark.parametrize("coding", ["gzip;q=1", '"gzip"', "identity gzip", "GZIP"])
def test_a_coding_is_recognised_wherever_it_is_named(coding: str) -> None:
    assert way_of(gzip.compress(CALL), coding, [10**6]) is Treatment.MCP


def test_an_upload_is_recognised_by_its_first_bytes() -> None:
    assert BodyReader("", LIMITS).feed(b"\x00\x01\x02") is Treatment.OTHER
    packed = gzip.compress(b"PACK" * 9999)
    assert BodyReader("gzip", LIMITS).feed(packed[:100]) is Treatment.OTHER


def test_the_held_part_of_a_body_is_bounded() -> None:
    reader = BodyReader("", LIMITS)
    assert reader.feed(b'{"a":"' + b"x" * 1000) is None
    assert reader.feed(b"x" * 1001) is Treatment.OTHER
    reader = BodyReader("", LIMITS)
    assert reader.feed(b'{"jsonrpc":"2.0","a":"' + b"x" * 2000) is Treatment.MCP


def random_json(size: int) -> bytes:
    """Write JSON that compression makes little smaller."""
    words = Random(7).choices(string.ascii_letters, k=size)
    return b'{"a":"%b"}' % "".join(words).encode()


@pytest.mark.parametrize("size", [1500, 9000])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_long_compressed_json_passes_while_it_mentions_no_message(size: int, coding: str) -> None:
    """Whether it is too long only when decoded, or compressed as well."""
    other = gzip.compress(random_json(size))
    assert way_of(other, coding, [500]) is Treatment.OTHER
    assert is_judged(gzip.compress(random_json(size)[:-1] + b"," + CALL[1:]), coding)


def is_judged(body: bytes, coding: str) -> bool:
    """Tell whether a body is read as MCP, or is cut off when it turns out to be."""
    reader = BodyReader(coding, LIMITS)
    way = reader.feed(body[:1200])
    if way is Treatment.OTHER:
        return not all(one.may_pass(body[1200:]) for one in reader.watches)
    return (way or reader.feed(body[1200:]) or reader.finish()) is Treatment.MCP


@pytest.mark.parametrize("body", [
    gzip.compress(random_json(3000)) + gzip.compress(CALL),
    gzip.compress(random_json(3000)) + CALL,
    gzip.compress(b'{"a":"' + b" " * 100_000 + b'"}'),
    zlib.compress(random_json(3000)),
    random_json(3000),
], ids=["two members", "something behind it", "a bomb", "not gzip", "not compressed"])  # fmt: skip
def test_a_long_body_that_can_be_read_in_two_ways_is_judged(body: bytes) -> None:
    assert is_judged(body, "gzip")


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_a_mention_is_found_as_by_a_search_through_everything(raw: bytes) -> None:
    """Only the neighbourhood of escapes is searched: that is a hundred times as fast."""
    found = recognise._MENTION.search(raw.replace(b"\0", b""))
    assert recognise.mentions_message(raw) == (found is not None)


@given(at=st.integers(1, len(CALL) - 1))
def test_the_watch_finds_a_message_in_any_chunks(at: int) -> None:
    watch = recognise.Watch()
    assert watch.may_pass(b"x" * 500)
    assert not (watch.may_pass(CALL[:at]) and watch.may_pass(CALL[at:]))


@each_row("word", ["jsonrpc", "tools/call", "tools/list"])
@each_row("coding", ["utf-8", "utf-16-le", "utf-32-be"])
def test_the_watch_finds_each_word_in_its_longest_spelling(word: str, coding: str) -> None:
    said = "".join(f"\\u{ord(sign):04x}" for sign in word).encode(coding)
    watch = recognise.Watch()
    assert watch.may_pass(said[:-3])
    assert not watch.may_pass(said[-3:])


@pytest.mark.parametrize(("name", "value"), [
    ("Mcp-Session-Id", "1"), ("MCP-Protocol-Version", "x"), ("mcp_name", "x"), ("Mcp-Param-A", "x"),
    ("Sec-WebSocket-Protocol", "other, MCP"),
])  # fmt: skip
def test_a_header_of_mcp_is_enough(name: str, value: str) -> None:
    """But not a beta header of a model's API."""
    assert recognise.is_mcp_head(raw_head("POST", "/", (name, value)))
    beta = head(anthropic_beta="mcp-client-2025-04-04", sec_websocket_protocol="chat")
    assert not recognise.is_mcp_head(beta)


# Events of other traffic pass at once; the first event of MCP is found, and no byte is lost


MESSAGE = b'data: {"jsonrpc":"2.0","method":"ping","id":1}\n\n'
EVENT_PIECES = [
    b"data: x", b"\n", b"\r", b"\r\n", b": c", b"data: {}", b"data:", b"event: y", b"id: 1",
    b"\xef\xbb\xbf", b"\x0b", b" ", b"h", b"\xe2\x80", b"\xa8",
]  # fmt: skip


def fed(chunks: list[bytes], limits: Limits = LIMITS) -> tuple[bytes, bytes | None]:
    peeker, passed = recognise.EventPeeker(limits), b""
    for number, chunk in enumerate(chunks):
        more, rest = peeker.feed(chunk)
        passed += more
        if rest is not None:
            return passed, rest + b"".join(chunks[number + 1 :])
    more, rest = peeker.finish()
    return passed + more, rest


# Hypothesis also draws words from the module; three bytes are too short for one that begins MCP.
@given(st.lists(st.sampled_from(EVENT_PIECES) | st.binary(max_size=3), max_size=20))
def test_no_byte_is_lost_wherever_the_stream_is_cut(pieces: list[bytes]) -> None:
    raw = b"".join(pieces)
    assert fed(pieces) == fed([raw]) == (raw, None)


@given(
    before=st.lists(st.sampled_from(EVENT_PIECES), max_size=9),
    sizes=st.lists(st.integers(1, 20), min_size=1),
)
def test_the_first_message_is_found_after_anything(before: list[bytes], sizes: list[int]) -> None:
    start, rest = b"".join(before) + b"\n\n", MESSAGE + b"data: rest"
    assert fed(cut(start + rest, sizes)) == (start, rest)


@each_row(("raw", "passes"), [
    (b"data: hel", b"data: hel"),
    (b"data: one\ndata: two", b"data: one\ndata: two"),
    (b"id: 1\nevent: token\n", b""),
    (b"id: 1\nevent: token\ndata: a\n", b"id: 1\nevent: token\ndata: a\n"),
    (b": ping\n", b": ping\n"), (b"\n\n\n", b"\n\n\n"), (b"data: {", b""),
    (b"data: \ndata: {", b""), (b"data: /messages", b""), (b"data: https://x", b""),
    (b"data: ht", b""),
    (b"data: hello\x0bdata: {", b"data: hello"),
    (b"event: endpoint\ndata: x\n", b""),
    (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
])  # fmt: skip
def test_lines_that_cannot_be_a_message_do_not_wait(raw: bytes, passes: bytes) -> None:
    assert recognise.EventPeeker(LIMITS).feed(raw) == (passes, None)


@each_row("event", [
    MESSAGE, b"event: endpoint\ndata: /m?s=1\n\n", b"data: /m?s=1\nevent: endpoint\n\n",
    b"data: http://x/m\nevent: Endpoint \n\n",
    b"\xef\xbb\xbf" + MESSAGE,
    b"id: 1\r\ndata: \r\n" + MESSAGE.replace(b"\n", b"\r\n"),
    MESSAGE.replace(b"\n", b"\r"),
    b"event: a\nevent: message\n" + MESSAGE, b'id: x\x0b\x0bdata: {"jsonrpc"\n\n',
])  # fmt: skip
def test_mcp_is_found_in_every_form(event: bytes) -> None:
    passed, rest = fed(cut(event, [1]))
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
    make = {"deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}
    raw, inflate = make.get(coding, gzip.compress)(text), recognise.inflating(coding)
    pieces = [piece for chunk in cut(raw, [50]) for piece in inflate(chunk)]
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) <= 10_000_000


def test_an_unknown_coding_is_refused() -> None:
    with pytest.raises(ProtocolError):
        recognise.inflating("x-unknown")
