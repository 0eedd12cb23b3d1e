"""Nobody frames HTTP/1 differently than the engine does: h11, Node (llhttp), and mitmproxy."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.framing import differences, hunt, taken
from tests.fuzz.http_readers import node

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
NEXT = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKS = b"5\r\n12345\r\n0\r\n\r\n"


def test_no_reader_frames_differently_what_the_engine_takes() -> None:
    with node() as reader:
        assert [*hunt(Random(1), 1500, reader)] == []


@pytest.mark.parametrize("raw", [
    HEAD + b"Transfer-Encoding: chunked\t\r\n\r\n" + CHUNKS,
    HEAD + b"Content-Length:\t5\r\n\r\n12345",
    b"CONNECT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345" + NEXT,
    b"CONNECT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
])  # fmt: skip
def test_a_request_that_was_framed_differently_once_is_not_taken(raw: bytes) -> None:
    assert taken(raw).messages == []
    with node() as reader:
        assert [*differences([raw], reader)] == []


def test_nothing_behind_connect_is_a_request() -> None:
    assert len(taken(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT).messages) == 1


def test_an_answer_with_a_tab_behind_its_coding_is_not_taken() -> None:
    """Node reads it until the connection closes, others in chunks."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\t\r\n\r\n" + CHUNKS
    assert taken(raw, method="GET").messages == []
    with node() as reader:
        assert [*differences([raw], reader, "GET")] == []
