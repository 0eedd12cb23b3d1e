"""Thousands of tiny chunks are read at once, or everybody else would wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from h11 import Data, EndOfMessage, ProtocolError
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.mitmproxy.forward.safe.http1 import MOST_SINGLE, TrailerDropper
from tests.adapters.mitmproxy.filtered import call, filtered
from tests.make import chunks
from tests.mcp_upstream import RESULT
from tests.raw_client import MCP_HEADERS
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, chunk

MANY = MOST_SINGLE * 3
HEAD = b"POST /mcp HTTP/1.1\r\n" + MCP_HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def read(reader: ChunkedReader, pieces: list[bytes]) -> tuple[list[bytes], str]:
    """Return the parts of a body, and how it ended."""
    buffer = ReceiveBuffer()
    parts: list[bytes] = []
    try:
        for piece in pieces:
            buffer += piece
            while (event := reader(buffer)) is not None:
                if isinstance(event, EndOfMessage):
                    return parts, "end"
                assert isinstance(event, Data)
                parts.append(bytes(event.data))
    except ProtocolError:
        return parts, "error"
    return parts, "open"


def test_a_few_chunks_that_come_together_stay_as_they_are() -> None:
    few = b"".join(map(chunk, [b"a"] * MOST_SINGLE))
    assert read(TrailerDropper(), [few + LAST]) == ([b"a"] * MOST_SINGLE, "end")


def test_chunks_that_come_one_by_one_stay_as_they_are() -> None:
    pieces = [chunk(b"a")] * MANY
    assert read(TrailerDropper(), [*pieces, LAST]) == ([b"a"] * MANY, "end")


def test_many_chunks_that_come_together_become_one() -> None:
    many = b"".join(chunk(b"%d;" % number) for number in range(MANY))
    parts, end = read(TrailerDropper(), [many + LAST])
    assert end == "end"
    assert len(parts) == MOST_SINGLE + 1
    assert b"".join(parts) == b"".join(b"%d;" % number for number in range(MANY))


SPELLINGS = [
    b"1\r\na\r\n",
    b"01\r\nb\r\n",
    b"1;x=1\r\nc\r\n",
    b'A ;"\r\n0123456789\r\n',
    b"1 \r\nd\r\n",
]
BROKEN = [
    b"1\r\nab\r\n", b"1\r\na\n", b"x\r\na\r\n", b"-1\r\na\r\n", b"1\na\n", b"\r\n", b"1\r\na\rb",
    b"123456789abcdef012345\r\na\r\n", b"+1\r\na\r\n", b"1_0\r\n0123456789abcdef\r\n",
    b"\xd9\xa1\r\na\r\n",
]  # fmt: skip


@given(
    ends=st.sampled_from([LAST, b"", b"ff\r\nhalf", b"5\r\n", *BROKEN]),
    some=st.lists(st.sampled_from(SPELLINGS[:3]), min_size=1, max_size=5),
    other=st.sampled_from(SPELLINGS),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
)
def test_the_body_and_its_end_are_what_h11_reads(
    ends: bytes, some: list[bytes], other: bytes, sizes: list[int]
) -> None:
    pieces = chunks(b"".join(some) * MANY + other + b"".join(some) + ends, sizes)
    parts, end = read(TrailerDropper(), pieces)
    expected, expected_end = read(ChunkedReader(), pieces)
    assert (b"".join(parts), end) == (b"".join(expected), expected_end)


async def test_a_call_in_tiny_chunks_is_judged(tmp_path: Path) -> None:
    tiny = b"".join(chunk(b" ") for _ in range(50_000))
    async with filtered(tmp_path) as it:
        for name, answer in ("read_file", RESULT), ("delete_file", b"Tool not found: delete_file"):
            got = await it.client.ask(HEAD + tiny + chunk(call(name)) + LAST)
            assert answer in got.body
        (asked,) = it.upstream.of("tools/call")
        assert asked.body == b" " * 50_000 + call("read_file")


@pytest.mark.parametrize("fast", ["true", "false"])
async def test_an_answer_in_tiny_chunks_is_judged(tmp_path: Path, fast: str) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        event = b"data: " + RESULT + b"\n\n"
        tiny = b"".join(chunk(event[at : at + 1]) for at in range(len(event)))
        await peer.say(SSE_HEAD + tiny * 500 + LAST)

    async with filtered(tmp_path, respond=respond, fast=[fast], host="dump") as it:
        got = await it.ask(call("read_file"))
        assert got.body == (b"data: " + RESULT + b"\n\n") * 500
