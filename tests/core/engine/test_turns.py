"""No connection keeps the others waiting with many small pieces, and what is held is counted."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from mcp_tool_filter.core.engine.wire import HttpLimits
from tests.core.engine.table import PING, PONG, Client, Table, call, result
from tests.raw_client import MCP_HEADERS, get, post
from tests.raw_upstream import SSE_HEAD, answer, chunk

READ = 256 * 1024
"""Bytes that a host reads at once."""
TURN = HttpLimits().turn
CHUNKED = b"POST /mcp HTTP/1.1\r\n" + MCP_HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
NOTICE = b'data: {"jsonrpc":"2.0","method":"x"}\n\n'


def chunks(size: int, body: bytes) -> bytes:
    return b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size))


def streaming(table: Table) -> Client:
    client = table.client()
    client.says(get())
    table.link.says(SSE_HEAD)
    client.taken()
    return client


def requests(table: Table) -> Callable[[], None]:
    client = table.client()
    return lambda: client.says(post(call("wipe")) * 1000)


def chunks_of_a_request(table: Table) -> Callable[[], None]:
    client = table.client()
    client.says(CHUNKED)
    return lambda: client.says(chunks(1, b" " * 40_000))


def chunks_of_an_answer(table: Table) -> Callable[[], None]:
    table.asks()
    table.link.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    return lambda: table.link.says(chunks(1, b" " * 40_000))


def chunks_of_a_stream(table: Table) -> Callable[[], None]:
    streaming(table)
    return lambda: table.link.says(chunks(1, b"x" * 40_000))


def interim_answers(table: Table) -> Callable[[], None]:
    table.asks()
    return lambda: table.link.says(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 99)


def events(event: bytes) -> Callable[[Table], Callable[[], None]]:
    def begin(table: Table) -> Callable[[], None]:
        streaming(table)
        return lambda: table.link.says(chunk(event * (READ // len(event))))

    return begin


PIECES = {
    "requests": requests,
    "chunks of a request": chunks_of_a_request,
    "chunks of an answer": chunks_of_an_answer,
    "chunks of a stream": chunks_of_a_stream,
    "interim answers": interim_answers,
    "events": events(NOTICE),
    "comments": events(b":\n"),
    "blank lines": events(b"\n"),
    "blank lines of CR": events(b"\r"),
    "events with CRLF": events(b"data: x\r\n\r\n"),
    "whole lines of no event": events(b"id: 7\n"),
}


@pytest.mark.parametrize("kind", PIECES)
def test_many_small_pieces_are_read_in_turns(kind: str) -> None:
    """What one read brings takes many turns; between them, the host serves others."""
    table = Table()
    bring = PIECES[kind](table)
    bring()
    assert len(table.later) == 1, "it waits for its next turn"
    assert table.client().engine is not None
    first = table.later.pop()
    first()
    assert len(table.later) <= 1
    assert table.serve_others() > 1


def test_in_one_turn_only_so_many_pieces_are_read(table: Table, client: Client) -> None:
    client.says(CHUNKED)
    before = client.engine.wire.pieces
    client.says(chunks(1, b" " * 40_000))
    while table.later:
        now = client.engine.wire.pieces
        assert now - before <= 2 * TURN
        before = now
        table.later.pop()()
    assert client.engine.wire.pieces > 30_000


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_turns_change_no_byte(table: Table, size: int) -> None:
    """Of a request, of an answer, and of an event stream."""
    long = call().replace(b"}", b"}" + b" " * 9000, 1)
    client = table.client()
    client.says(CHUNKED + chunks(size, long) + b"0\r\n\r\n" + post(PING))
    table.serve_others()
    assert table.link.got.endswith(b"\r\n\r\n" + long)
    table.link.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    table.link.says(chunks(size, result("y" * 9000)) + b"0\r\n\r\n")
    table.serve_others()
    assert client.got.endswith(result("y" * 9000))
    table.link.says(answer(PONG))
    assert client.got.endswith(PONG)
    client = streaming(table)
    table.link.says(chunks(size, NOTICE * 500) + b"0\r\n\r\n")
    table.serve_others()
    lines = client.got.replace(b"\r\n", b"\n").split(b"\n")
    assert sum(one == NOTICE.strip() for one in lines) == 500 or size < len(NOTICE)
    assert client.got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b""], ids=["ended", "lost"])
def test_an_end_counts_when_all_before_it_was_read(table: Table, end: bytes) -> None:
    client = streaming(table)
    table.link.says(chunk(NOTICE * 5000) + end)
    if not end:
        table.link.ends()
    assert not client.got.endswith(b"0\r\n\r\n")
    table.serve_others()
    assert client.got.count(NOTICE) == 5000
    assert client.got.endswith(b"0\r\n\r\n")


def test_an_answer_that_ends_with_its_connection_is_read_to_its_end(table: Table) -> None:
    client = table.client()
    client.says(get())
    table.link.says(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + NOTICE * 5000)
    table.link.ends()
    table.serve_others()
    assert client.got.count(NOTICE) == 5000
    assert client.got.endswith(b"0\r\n\r\n")


def test_a_peer_is_not_read_while_its_pieces_wait(table: Table, client: Client) -> None:
    client.says(CHUNKED)
    client.says(chunks(1, b" " * 40_000))
    streaming(table)
    link = table.link
    link.says(chunk(NOTICE * 5000))
    assert (client.is_held, link.is_held) == (True, True)
    table.serve_others()
    assert (client.is_held, link.is_held) == (False, False)


def test_a_client_that_leaves_ends_the_turns_of_its_pieces(table: Table, client: Client) -> None:
    client.says(CHUNKED)
    client.says(chunks(1, b" " * 40_000))
    client.leaves()
    assert table.serve_others() == 1
    client = streaming(table)
    table.link.says(chunk(NOTICE * 5000))
    client.leaves()
    assert table.serve_others() == 1
    assert not table.service.exchanges


# What is held


@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize("of", ["request", "answer", "event"])
def test_a_body_in_small_pieces_holds_what_is_counted(of: str, size: int) -> None:
    """A piece of two bytes is an object of 35."""
    table, count = Table(), 15_000
    say: Callable[[bytes], None]
    if of == "request":
        client = table.client()
        client.says(CHUNKED)
        say = client.says
    elif of == "answer":
        table.asks()
        table.link.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        say = table.link.says
    else:
        streaming(table)
        table.link.says(chunk(b"data: "))
        say = table.link.says
    piece = chunk(b"x" * size)
    gc.collect()
    tracemalloc.start()
    for _ in range(count):
        say(piece)
    table.serve_others()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    [exchange] = table.service.exchanges
    assert exchange.held_bytes >= count * size
    assert held < 1.3 * exchange.held_bytes + 50_000


def test_what_a_client_sends_ahead_is_counted(table: Table, client: Client) -> None:
    client.says(post(PING))
    client.says(b"x" * 500_000)
    assert len(client.engine.wire.unread) == 500_000
