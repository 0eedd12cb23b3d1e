"""Connections to the upstream: used again, closed under our hands, answering early."""

from __future__ import annotations

import pytest

from tests.core.engine.table import LIST, PING, PONG, Client, Table, call, result
from tests.raw_client import get, post
from tests.raw_upstream import SSE_HEAD, answer, chunk
from tests.rows import each_row


def idle_table() -> tuple[Table, Client]:
    """Return a table with an idle connection, and a client."""
    table = Table()
    client = table.asks()
    table.link.says(answer(PONG))
    client.taken()
    assert len(table.idle) == 1
    return table, client


@pytest.mark.parametrize("asked", [PING, LIST, b""])
def test_a_request_that_cannot_have_run_is_sent_again_on_a_new_connection(asked: bytes) -> None:
    """The upstream has closed the idle connection while we sent."""
    table, client = idle_table()
    client.says(post(asked) if asked else get())
    table.links[0].ends()
    assert len(table.links) == 2
    assert table.links[0].got.endswith(table.link.got)
    table.link.says(answer(PONG))
    assert client.got.startswith(b"HTTP/1.1 200 ")


def test_it_is_sent_again_only_once() -> None:
    table, client = idle_table()
    client.says(post(PING))
    table.links[0].ends()
    table.link.ends()
    assert len(table.links) == 2
    assert b"-32000" in client.got


@each_row(("asked", "beginning"), [
    (call(), b""), (b"[" + PING + b"," + call(id="2") + b"]", b""),
    (b'{"jsonrpc":"2.0","method":"x"}', b""),
    (PING, b"H"), (PING, b"HTTP/1.1 200 OK\r\n"), (PING, b"HTTP/1.1 100 C\r\n\r\n"),
])  # fmt: skip
def test_what_may_have_run_is_not_sent_again(asked: bytes, beginning: bytes) -> None:
    table, client = idle_table()
    client.says(post(asked))
    table.links[0].says(beginning)
    table.links[0].ends()
    assert len(table.links) == 1
    assert b"-32000" in client.got


def test_a_new_connection_that_ends_is_no_reason_to_send_again(table: Table) -> None:
    client = table.asks()
    table.link.ends()
    assert len(table.links) == 1
    assert b"-32000" in client.got


def test_a_call_is_sent_only_on_a_young_connection() -> None:
    table, client = idle_table()
    table.idle_for = 2.5
    client.says(post(call()))
    assert len(table.links) == 2
    table.link.says(answer(result()))
    client.says(post(PING))
    assert len(table.links) == 2


@pytest.mark.parametrize("said", [
    answer(PONG).replace(b"\r\n\r\n", b"\r\nConnection: Keep-Alive, Close\r\n\r\n", 1),
    answer(PONG).replace(b"HTTP/1.1", b"HTTP/1.0"),
    answer(PONG) + b"more",
    answer(PONG) + answer(PONG),
])  # fmt: skip
def test_some_answers_are_the_last_on_their_connection(table: Table, said: bytes) -> None:
    client = table.asks()
    table.link.says(said)
    assert client.got.endswith(PONG)
    assert b"close" not in client.got.lower()
    assert not table.link.is_open
    assert not table.idle


def test_an_answer_may_end_with_its_connection(table: Table) -> None:
    client = table.asks()
    table.link.says(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + PONG[:9])
    table.link.says(PONG[9:])
    assert client.got == b""
    table.link.ends()
    assert client.got.endswith(b"\r\ncontent-length: %d\r\n\r\n" % len(PONG) + PONG)
    assert client.is_open


@pytest.mark.parametrize(
    "said",
    [answer(PONG)[:-1], SSE_HEAD[:-2], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
)
def test_an_answer_that_ends_too_early_is_an_error(table: Table, said: bytes) -> None:
    client = table.asks()
    table.link.says(said)
    table.link.ends()
    assert b'"id":1,"error":{"code":-32000' in client.got
    assert PONG[:-1] not in client.got


def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    table, client = idle_table()
    table.link.says(answer(PONG))
    assert not table.link.is_open
    assert not table.idle
    assert client.got == b""
    client.says(post(PING))
    assert len(table.links) == 2


def test_interim_answers_without_end_end_the_request(table: Table) -> None:
    for _ in range(2):  # the limit is for one request
        client = table.asks()
        table.link.says(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100 + answer(PONG))
        table.serve_others()
        assert client.got.endswith(PONG)
    client = table.asks()
    table.link.says(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 101)
    table.serve_others()
    assert b"invalid response" in client.got
    assert not table.link.is_open


def test_the_connection_of_a_dropped_exchange_is_not_used_again(table: Table) -> None:
    client = table.asks()
    client.leaves()
    assert not table.link.is_open
    table.link.up.lost()
    assert table.answers().endswith(PONG)
    assert len(table.links) == 2


def test_of_many_chunks_that_came_together_most_are_judged_together(table: Table) -> None:
    """Each would cost a turn; but a few stay as they are, for readers that take each for one."""
    client = table.asks()
    table.link.says(SSE_HEAD)
    client.taken()
    piece = b'data: {"jsonrpc":"2.0","method":"x"}\n\n'
    table.link.says(chunk(piece) * 1000)
    table.serve_others()
    assert client.got.startswith(chunk(piece) * 64)
    assert client.got.count(piece) == 1000
    assert client.got.count(chunk(piece)) == 64
