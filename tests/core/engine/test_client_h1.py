"""A client's connection: framing of answers, turns, limits and time-outs."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.engine.service import Seats
from tests.core.engine.table import PING, PONG, Client, Table, call, result
from tests.raw_client import MCP_HEADERS, get, post
from tests.raw_upstream import SSE_HEAD, answer, chunk

EVENT = b"data: " + PONG + b"\n\n"


def is_open(client: Client) -> bool:
    return client.is_open


def head(raw: bytes) -> bytes:
    return raw.partition(b"\r\n\r\n")[0].lower()


def test_the_order_and_spelling_of_other_headers_stay(table: Table) -> None:
    client = table.asks(headers=MCP_HEADERS + b"X-oDD: \xc3\xa9\r\nX-B:\r\n")
    assert b"\r\nX-oDD: \xc3\xa9\r\nX-B: \r\n" in table.link.got
    table.link.says(answer(PONG).replace(b"\r\n\r\n", b"\r\nX-b: 1\r\nx-B: 2\r\n\r\n", 1))
    assert b"\r\nX-b: 1\r\nx-B: 2\r\n" in client.got


def test_headers_of_one_connection_do_not_pass(table: Table) -> None:
    hop = b"Connection: x\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: y\r\nUpgrade: h2c\r\n"
    client = table.asks(headers=MCP_HEADERS + hop + b"HTTP2-Settings: AAA\r\nRange: bytes=0-1\r\n")
    for name in (b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2", b"range"):
        assert b"\r\n" + name not in head(table.link.got)
    table.link.says(answer(PONG).replace(b"\r\n\r\n", b"\r\n" + hop + b"Alt-Svc: h3\r\n\r\n", 1))
    for name in (b"connection", b"keep-alive", b"te:", b"trailer", b"upgrade", b"alt-svc"):
        assert b"\r\n" + name not in head(client.got)


def test_a_client_of_http_1_0_gets_a_length_or_the_end(table: Table, client: Client) -> None:
    client.says(post(PING).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n"))
    table.link.says(answer(PONG))
    assert b"\r\ncontent-length: %d\r\n" % len(PONG) in head(client.got) + b"\r\n"
    assert not is_open(client)
    client = table.client()
    client.says(get().replace(b"HTTP/1.1", b"HTTP/1.0"))
    table.link.says(SSE_HEAD + chunk(EVENT))
    assert b"transfer-encoding" not in head(client.got)
    assert client.got.endswith(b"\r\n\r\n" + EVENT)
    assert is_open(client)
    table.link.says(b"0\r\n\r\n")
    assert not is_open(client)


@pytest.mark.parametrize(("method", "status", "announced"), [
    (b"HEAD", b"200 OK", b"content-length: 5"), (b"GET", b"204 No Content", b""),
    (b"GET", b"304 Not Modified", b"content-length: 5"),
])  # fmt: skip
def test_an_answer_without_body_has_none(
    table: Table, client: Client, method: bytes, status: bytes, announced: bytes
) -> None:
    client.says(get().replace(b"GET", method, 1))
    table.link.says(b"HTTP/1.1 %b\r\nContent-Length: 5\r\n\r\n" % status)
    assert client.got.endswith(b"\r\n\r\n")
    assert announced in head(client.got)
    assert (b"content-length" in head(client.got)) == bool(announced)
    assert is_open(client)


def test_requests_sent_ahead_are_answered_one_after_the_other(table: Table, client: Client) -> None:
    client.says(post(call(id="1")) + post(call("wipe", id="2")) + post(call(id="3")))
    assert table.link.got.count(b"POST ") == 1
    table.link.says(answer(result(id="1")))
    assert b"Tool not found" in client.got
    assert table.link.got.count(b"POST ") == 2
    table.link.says(answer(result(id="3")))
    assert client.got.index(b'"id":1,"result"') < client.got.index(b'"id":2')
    assert client.got.index(b'"id":2') < client.got.index(b'"id":3')


def test_requests_sent_ahead_are_read_in_turns(table: Table, client: Client) -> None:
    client.says(post(call("wipe")) * 40 + post(PING))
    assert (client.got.count(b"Tool not found"), client.is_held) == (32, True)
    client.says(post(call("wipe")))
    assert client.got.count(b"Tool not found") == 32
    table.later.pop()()
    assert (client.got.count(b"Tool not found"), client.is_held) == (40, False)
    table.link.says(answer(PONG))
    assert client.got.count(b"Tool not found") == 41
    assert is_open(client)


def test_at_most_a_mebibyte_is_sent_ahead(table: Table) -> None:
    client = table.asks()
    behind = post(b'{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":"%b"}}' % (b"x" * 400000))
    client.says(behind)
    assert (client.is_held, table.link.is_held) == (False, False)
    client.says(behind * 2)
    assert (client.is_held, table.link.is_held) == (True, False)
    table.link.says(answer(PONG))
    assert (client.is_held, table.link.is_held) == (False, False)
    for _ in range(3):
        table.link.says(answer(PONG.replace(b'"id":1', b'"id":2')))
    assert client.got.count(b"HTTP/1.1 200") == 4
    assert is_open(client)


def test_sending_ahead_without_end_behind_a_stream_is_cut(table: Table, client: Client) -> None:
    client.says(get())
    table.link.says(SSE_HEAD)
    client.says(b"x" * 1_200_000)
    assert client.was_aborted
    assert not table.link.is_open


def test_nothing_more_is_read_while_the_client_does_not_read(table: Table, client: Client) -> None:
    client.engine.held(True)
    client.says(post(PING) * 3)
    assert not table.links
    client.engine.held(False)
    assert len(table.links) == 1


def test_a_slow_client_slows_its_upstream(table: Table, client: Client) -> None:
    client.says(get())
    table.link.says(SSE_HEAD + chunk(EVENT))
    for on in (True, False, True):
        client.engine.held(on)
        assert table.link.is_held is on
    table.link.says(b"0\r\n\r\n")
    assert [table.link.is_held] == [False]  # it is idle now


def test_a_client_that_is_slow_already_slows_its_next_upstream(table: Table) -> None:
    table.connects_later = True
    client = table.asks()
    client.engine.held(True)
    table.open_for(table.connecting[0])
    assert table.link.is_held


def test_we_ask_for_the_body_only_once_the_head_is_accepted(table: Table, client: Client) -> None:
    before = post(PING, headers=MCP_HEADERS + b"Expect: 100-continue\r\n").removesuffix(PING)
    client.says(before)
    assert client.taken() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.says(PING)
    assert b"expect" not in head(table.link.got)
    table.link.says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n")
    assert client.got == b""
    table.link.says(answer(PONG))
    assert client.taken().endswith(PONG)
    for refused, status in (
        (before.replace(b"localhost", b"evil.example"), b"403"),
        (before.replace(b"Length: %d" % len(PING), b"Length: 99999999"), b"413"),
    ):
        client = table.client()
        client.says(refused)
        assert client.got.startswith(b"HTTP/1.1 " + status)
        assert not client.is_open  # whether the body follows is not known


def test_a_whole_refused_request_leaves_the_connection_open(table: Table, client: Client) -> None:
    client.says(post(b"x" * 99).replace(b"localhost", b"evil.example") + post(call("read")))
    assert client.got.startswith(b"HTTP/1.1 403 ")
    assert table.link.got.endswith(call("read"))  # the body was not taken for a request
    table.link.says(answer(result()))
    assert client.got.endswith(result())
    assert is_open(client)


def test_the_rest_of_a_refused_body_is_thrown_away(client: Client) -> None:
    """A client that still sends would not see the answer if we closed at once."""
    client.says(post(b"x" * 99).replace(b"localhost", b"evil.example")[:-50])
    assert client.got.startswith(b"HTTP/1.1 403 ")
    assert b"connection: close" in head(client.got)
    assert is_open(client)
    client.says(b"x" * 50)
    assert not is_open(client)
    assert client.got.count(b"HTTP/1.1") == 1


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(("asked", "status"), [
    (b"POST /mcp\r\n", b"400"), (b"GET / HTTP/1.1\r\nX: " + b"x" * 70000, b"431"),
    (post(PING, headers=MCP_HEADERS + CHUNKED), b"400"),
    (b"POST /mcp HTTP/1.1\r\n" + MCP_HEADERS + CHUNKED + b"\r\n5\r\n12345xx", b"400"),
])  # fmt: skip
def test_what_is_no_request_gets_one_answer_and_the_end(
    table: Table, client: Client, asked: bytes, status: bytes
) -> None:
    client.says(asked)
    assert client.got.startswith(b"HTTP/1.1 " + status)
    assert b'"code":-32600' in client.got
    assert not is_open(client)
    client.says(post(PING))
    assert client.got.count(b"HTTP/1.1") == 1
    assert not table.links
    assert not table.service.exchanges


def test_junk_behind_an_answered_request_ends_the_connection(table: Table) -> None:
    client = table.asks()
    client.says(b"junk\r\n\r\n")
    table.link.says(answer(PONG))
    assert client.got.count(b"HTTP/1.1 200") == 1
    assert b"HTTP/1.1 400" in client.got
    assert not is_open(client)


@pytest.mark.parametrize(("target", "is_accepted"), [
    (b"http://localhost:6273/mcp", True), (b"//localhost:6273/mcp", True), (b"mcp", False),
    (b"http://LOCALHOST/mcp", False),  # Host says something else
    (b"http://evil.example/mcp", False), (b"http://a@localhost:6273/mcp", False),
    (b"ftp://localhost:6273/mcp", False),
])  # fmt: skip
def test_a_target_may_be_a_url_that_names_us(
    table: Table, client: Client, target: bytes, is_accepted: bool
) -> None:
    raw = post(PING, headers=MCP_HEADERS.replace(b"localhost", b"localhost:6273"))
    client.says(raw.replace(b" /mcp ", b" %b " % target, 1))
    assert bool(table.links) == is_accepted
    if is_accepted and target.startswith(b"http"):
        assert table.link.got.startswith(b"POST /mcp HTTP/1.1\r\n")


def tick(client: Client, *times: float) -> None:
    for time in times:
        client.engine.tick(time)


def test_a_head_must_come_within_its_time_however_slowly_it_drips(client: Client) -> None:
    client.says(b"POST /mcp HT")
    tick(client, 0.0, 20.0)
    client.says(b"TP/1.1\r\n")
    tick(client, 29.0)
    assert is_open(client)
    tick(client, 31.0)
    assert client.got.startswith(b"HTTP/1.1 408 ")
    assert not is_open(client)


def test_a_body_may_take_long_but_not_pause_for_a_minute(table: Table, client: Client) -> None:
    whole = post(PING)
    client.says(whole[:-9])
    for number in range(8):
        tick(client, number * 50.0)
        client.says(whole[number - 9 : number - 8 or None])
    assert is_open(client)
    tick(client, 400.0, 461.0)
    assert client.got.startswith(b"HTTP/1.1 408 ")
    assert not is_open(client)
    assert not table.service.exchanges


def test_an_idle_connection_ends_after_two_minutes_and_a_waiting_one_never(table: Table) -> None:
    client = table.asks()
    tick(client, 0.0, 10_000.0)
    table.link.says(answer(PONG))
    tick(client, 10_001.0, 10_120.0)
    assert is_open(client)
    client.says(post(PING))
    table.link.says(answer(PONG))
    tick(client, 10_122.0, 10_241.0)
    assert is_open(client)
    tick(client, 10_243.0)
    assert not is_open(client)
    assert b" 408 " not in client.got


def test_the_rest_of_a_refused_body_is_not_read_for_ever(client: Client) -> None:
    client.says(post(b"x" * 99).replace(b"localhost", b"evil.example")[:-50])
    tick(client, 0.0, 20.0)
    client.says(b"x")
    tick(client, 31.0)
    assert not is_open(client)


def test_silent_clients_lose_their_seat_to_those_who_come() -> None:
    table = Table(seats=Seats(2))
    waiting, silent = table.asks(), table.client()
    silent.says(b"POST /mcp HTTP/1.1\r\n")
    newcomer = table.asks()
    assert (waiting.is_open, silent.is_open, newcomer.is_open) == (True, False, True)
    table.links[1].says(answer(PONG))
    assert newcomer.got.endswith(PONG)


def test_a_client_that_sends_its_body_slowly_keeps_no_seat() -> None:
    table = Table(seats=Seats(1))
    slow = table.client()
    slow.says(post(PING)[:-1])
    table.asks()
    assert not slow.is_open


def test_if_everybody_waits_for_an_answer_the_next_one_gets_503() -> None:
    table = Table(seats=Seats(1, most_standing=1))
    waiting, surplus = table.asks(), table.asks()
    assert surplus.got.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in surplus.got
    assert not surplus.is_open
    table.link.says(answer(PONG))
    waiting.leaves()
    surplus.leaves()
    assert table.asks().got == b""
    assert table.link.got.count(b"POST ") == 2


def test_whoever_stands_takes_a_seat_that_has_become_free() -> None:
    table = Table(seats=Seats(1))
    waiting, standing = table.asks(), table.client()
    waiting.leaves()
    standing.says(post(PING))
    table.link.says(answer(PONG))
    assert standing.got.startswith(b"HTTP/1.1 200 ")
    assert is_open(standing)


def test_a_crowd_that_only_connects_keeps_nobody_out_who_asks() -> None:
    now = [0.0]
    table = Table(seats=Seats(2, clock=lambda: now[0], patience=5.0))
    served, silent = table.asks(), table.client()
    table.link.says(answer(PONG))
    early = table.asks()
    assert early.got.startswith(b"HTTP/1.1 503 ")
    early.leaves()
    now[0] = 1.0
    asking = table.asks()
    assert asking.got == b""
    assert (is_open(served), is_open(silent), is_open(asking)) == (True, False, True)


def test_those_without_a_seat_are_few() -> None:
    table = Table(seats=Seats(1, most_standing=1))
    table.asks()
    first, second = table.client(), table.client()
    assert (first.is_open, second.is_open) == (False, True)


def test_the_client_that_leaves_is_forgotten() -> None:
    table = Table(seats=(seats := Seats(1)))
    table.asks().leaves()
    assert len(seats) == 0
    assert not table.service.exchanges
    assert not table.link.is_open
