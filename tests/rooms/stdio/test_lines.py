"""Lines of the stdio transport: cut at LF and CRLF only, however the pipe cuts them."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.rooms.stdio import lines
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser, ids_in_cut, refuse_hidden_line
from tests.make import chunks
from tests.rows import each_row

PIECES = st.sampled_from([
    b"", b'{"a":1}', b"\n", b"\r\n", b"\r", b" ", b"\xc3", b"\xa9", b"\xe2\x80\xa8", b"\x85",
    b"x" * 30,
])  # fmt: skip
STREAMS = st.lists(PIECES, max_size=12).map(b"".join)


def parse(cut: list[bytes], *, max_pending: int = 50) -> list[bytes | CutLine]:
    parser = LineParser(max_pending=max_pending, kept=8)
    lines = [line for chunk in cut for line in parser.feed(chunk)]
    return [*lines, *parser.finish()]


@given(stream=STREAMS, sizes=st.lists(st.integers(1, 7), min_size=1))
@example(stream=b"a\r\nb\n", sizes=[2])
@example(stream=b"x" * 51 + b"\n" + b"y" * 50 + b"\n", sizes=[50])
@example(stream=b"x" * 50 + b"\r\ny", sizes=[3])
def test_chunk_boundaries_do_not_matter(stream: bytes, sizes: list[int]) -> None:
    assert parse(chunks(stream, sizes)) == parse([stream])


def test_a_limit_below_the_kept_bytes_works() -> None:
    whole, pieces = LineParser(max_pending=10, kept=16), LineParser(max_pending=10, kept=16)
    stream = bytes(range(32, 82)) + b"\n"
    [line] = whole.feed(stream)
    assert [one for chunk in chunks(stream, [3]) for one in pieces.feed(chunk)] == [line]


@given(stream=STREAMS)
def test_no_byte_of_a_line_is_lost(stream: bytes) -> None:
    lines = [line for line in parse([stream], max_pending=1000) if isinstance(line, bytes)]
    expected = [line.removesuffix(b"\r") for line in stream.split(b"\n")]
    assert lines == [line for line in expected if line.strip(b" \t\r")]


def test_a_carriage_return_inside_a_line_is_refused() -> None:
    """A Python server would run what stands behind it."""
    [line] = parse([b'{}\r{"b":1}\r\n'])
    assert isinstance(line, bytes)
    with pytest.raises(ProtocolError):
        refuse_hidden_line(line)
    refuse_hidden_line(b'{"a":"\\r"}')


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_read() -> None:
    lines = parse([b"x" * 40, b"y" * 40, b"z" * 40 + b"\n{}\n"])
    assert lines == [CutLine(b"x" * 8, b"z" * 8, 120), b"{}"]


def test_a_dropped_line_takes_no_memory() -> None:
    parser = LineParser(max_pending=100_000)
    tracemalloc.start()
    for _ in range(1000):
        assert parser.feed(b"x" * 10_000) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    [cut] = parser.feed(b"\n")
    assert cut == CutLine(b"x" * 4096, b"x" * 4096, 10_000_000)


@each_row(("message", "ids"), [
    ('{"jsonrpc":"2.0","id":7,"method":"a","params":{"id":8,"text":"…"}}', ["7"]),
    ('{"method":"a","params":{"id":8,"text":"…"},"jsonrpc":"2.0","id":"x-9"}', ['"x-9"']),
    ('{"params":{"deep":[{"id":1}]},"id":-2.5e1,"text":"…"}', ["-2.5e1"]),
    ('{"text":"\\"id\\":8 …","jsonrpc":"2.0", "id" : 3 } ', ["3"]),
    ('{"a\\"id":5,"id":"\\u0061","text":"…"}', ['"\\u0061"']),
    ('{"jsonrpc":"2.0","method":"a","params":"…"}', []),
    ('["…"', []),
    ('{"id":{"id":2},"text":"…"}', ["2"]),
])  # fmt: skip
def test_the_id_of_a_message_is_found_at_its_ends(message: str, ids: list[str]) -> None:
    beginning, _, end = message.encode().partition("…".encode())
    cut = CutLine(beginning + b"x" * 100, b"x" * 100 + end, 1_000_000)
    assert ids_in_cut(cut) == ids


@pytest.mark.parametrize("id", ['"\\u12"', '"\\x"', '"a\tb"'])
def test_what_no_reader_takes_for_an_id_is_none(id: str) -> None:
    """It would be looked up, and stand in our answer: neither can be done with it."""
    broken = f'{{"jsonrpc":"2.0","id":{id},"result":}}'
    assert lines.ids_answered(broken.encode()) is None
    beginning = f'{{"jsonrpc":"2.0","id":{id},"x":"'.encode()
    assert ids_in_cut(CutLine(beginning, f'","id":{id}}}'.encode(), 100_000)) == []


def test_an_id_that_may_go_on_is_not_taken() -> None:
    assert ids_in_cut(CutLine(b'{"id":12', b"x" * 8, 100)) == []


@each_row("piece", [b'"', b'\\"', b'"\\', b'{"id":', b'"id":"', b"\\", b"[", b'"id":1'])
def test_searching_is_fast_for_any_text(piece: bytes) -> None:
    """All that a cut line keeps is 8 KB; quadratic work on it would still be seconds."""
    text = piece * (200_000 // len(piece))
    ids_in_cut(CutLine(b'{"a":"' + text[:4096], text[:4096], 30_000_000))
    refuse_hidden_line(text)
