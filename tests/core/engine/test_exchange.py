"""One request and its answer, through values: bytes in, orders out."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.steps import Outcome
from mcp_tool_filter.core.http.asked import Answered
from mcp_tool_filter.core.http.head import RequestNotes
from tests.core.engine.table import LIST, PING, PONG, Client, Table, call, result
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import MCP_HEADERS, get, post
from tests.raw_upstream import SSE_HEAD, answer, chunk

CORS = b"access-control-allow-origin"
_CHUNKED = b"Transfer-Encoding: chunked"
WIPE = tool("wipe", ', "description":"burns"')


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def notification(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b"}' % method.encode()


def body_of(client: Client) -> bytes:
    return client.got.rpartition(b"\r\n\r\n")[2]


def test_a_call_goes_to_the_upstream_and_a_denied_one_does_not(table: Table) -> None:
    client = table.asks(call("read"))
    assert table.link.got.endswith(b"\r\n\r\n" + call("read"))
    table.link.says(answer(result("hi")))
    assert client.taken().endswith(b"\r\n\r\n" + result("hi"))
    client.says(post(call("wipe")))
    assert b'"message":"Tool not found: wipe"' in client.taken()
    assert table.link.got.count(b"POST ") == 1
    assert not table.service.exchanges


def test_a_date_is_the_one_that_the_upstream_said(table: Table, client: Client) -> None:
    """Although the rest of the head is remembered."""
    for date in (b"today", b"tomorrow"):
        client.says(post(PING))
        dated = answer(PONG).replace(b"\r\n\r\n", b"\r\nDate: %b\r\n\r\n" % date, 1)
        table.link.says(dated)
        assert b"\r\nDate: %b\r\n" % date in client.taken()


def test_what_was_decided_on_a_head_is_decided_once(table: Table, client: Client) -> None:
    """Although each request, and each answer, has another length."""
    decided = []
    for id in ("1", "22"):
        client.says(post(call(id=id)))
        [exchange] = table.service.exchanges
        out_fields = exchange.head.notes.out_fields
        table.link.says(answer(result(id=id)))
        assert exchange._notes
        decided.append((out_fields, exchange._notes.fields))
    (sent, passed), (sent_again, passed_again) = decided
    assert sent
    assert sent is sent_again
    assert passed is passed_again


def test_a_changed_policy_applies_to_remembered_heads() -> None:
    table = Table(allowed_hosts=["here.example"])
    client = table.client()
    request = post(PING).replace(b"localhost", b"here.example")
    client.says(request)
    table.link.says(answer(PONG))
    assert b" 200 " in client.taken()
    table.listener.policy.adopt(Table(upstream_headers=["X-Team: a"]).listener.config)
    client.says(post(PING))
    assert b"\r\nX-Team: a\r\n" in table.link.got
    table.link.says(answer(PONG))
    client.taken()
    client.says(request)
    assert b" 403 " in client.taken()


def test_an_answer_that_is_rewritten_loses_what_described_the_old_one(table: Table) -> None:
    client = table.asks(LIST)
    listed = tool_list([tool("read"), WIPE])
    fields = b'\r\nContent-Encoding: gzip\r\nETag: "1"\r\nX-A: b\r\n\r\n'
    table.link.says(answer(gzip.compress(listed)).replace(b"\r\n\r\n", fields, 1))
    assert b'"read"' in body_of(client)
    assert b"wipe" not in body_of(client)
    assert b"\r\ncontent-length: %d\r\n" % len(body_of(client)) in client.got
    assert b"encoding" not in client.got.lower()
    assert b"etag" not in client.got.lower()
    assert b"\r\nX-A: b\r\n" in client.got


# Event streams


def stream(table: Table, body: bytes = LIST) -> Client:
    client = table.asks(body)
    table.link.says(SSE_HEAD)
    client.taken()
    return client


def test_each_event_passes_at_once(table: Table) -> None:
    client = stream(table)
    for data in (notification("a"), notification("b")):
        table.link.says(chunk(event(data)))
        assert client.taken() == chunk(event(data))
    table.link.says(chunk(event(tool_list([tool("read"), WIPE]))))
    assert b'"read"' in client.got
    assert b"wipe" not in client.taken()
    table.link.says(chunk(b"data: unfinished"))
    assert client.taken() == b""
    table.link.says(b"0\r\n\r\n")
    assert client.taken().endswith(b"0\r\n\r\n")
    assert client.is_open
    assert table.idle


def test_only_what_is_behind_a_waiting_decision_waits() -> None:
    table = Table(slow=("slow",))
    client = stream(table, PING)
    for method in ("first", "slow", "behind"):
        table.link.says(chunk(event(notification(method))))
    assert client.taken() == chunk(event(notification("first")))
    other = table.asks()
    table.link.says(answer(PONG))
    assert other.got.endswith(PONG)
    table.links[0].says(b"0\r\n\r\n")
    assert client.got == b""
    table.effects.waiting[0].decide()
    assert client.got == chunk(
        event(notification("slow")) + event(notification("behind"))
    ) + b"0\r\n\r\n"  # fmt: skip
    assert not table.service.exchanges


def test_a_stream_that_comes_whole_may_be_longer_than_an_answer() -> None:
    table = Table(message_limit="1KB")
    client = table.asks()
    events = event(notification("a" * 500)) * 9 + event(PONG)
    table.link.says(SSE_HEAD.replace(_CHUNKED, b"Content-Length: %d" % len(events)) + events)
    assert client.got.count(b"data: ") == 10


def test_a_stream_with_broken_chunks_ends_with_an_error_for_who_waits(table: Table) -> None:
    client = stream(table, call())
    table.link.says(chunk(event(notification("a"))) + b"x\r\n")
    assert b'"id":1,"error":{"code":-32603' in client.got
    assert client.got.endswith(b"0\r\n\r\n")
    assert not table.link.is_open
    assert not table.service.exchanges


def legacy(table: Table) -> Client:
    """Return a client with an open stream of the older transport."""
    client = table.client()
    client.says(get(path="/sse"))
    table.link.says(SSE_HEAD + chunk(b"event: endpoint\ndata: /messages?id=1\n\n"))
    assert b"/messages?id=1" in client.taken()
    return client


def test_our_answers_go_into_the_stream_of_the_older_transport(table: Table) -> None:
    client = legacy(table)
    poster = table.asks(call("wipe"), path="/messages?id=1")
    assert poster.got.startswith(b"HTTP/1.1 202 ")
    assert b"Tool not found: wipe" in client.taken()
    poster = table.asks(call("read", id="2"), path="/messages?id=1")
    table.link.ends()
    assert poster.got.startswith(b"HTTP/1.1 502 ")
    assert b'"id":2,"error":{"code":-32000' in client.taken()


def test_the_end_of_a_stream_of_the_older_transport_is_suspicious() -> None:
    told: list[str] = []
    table = Table()
    table.service.suspect = lambda: told.append("lost?")
    table.service.note_end_of_stream = lambda: told.append("end")
    legacy(table)
    table.link.says(b"0\r\n\r\n")
    client = table.client()
    client.says(get())
    table.link.says(SSE_HEAD + b"0\r\n\r\n")
    stream(table, PING)
    table.link.says(chunk(event(PONG)) + b"0\r\n\r\n")
    assert told == ["lost?", "end"]
    assert len(table.listener.legacy.endpoints) == 0


# Clients and upstreams that leave


def test_a_client_that_leaves_takes_its_request_along(table: Table) -> None:
    client = table.asks(call())
    [exchange] = table.service.exchanges
    client.leaves()
    assert not table.link.is_open
    assert exchange.outcome is Outcome.CLIENT_LEFT
    table.connects_later = True
    client = table.asks(call())
    client.leaves()
    table.open_for(table.connecting[0])
    assert table.link.got == b""


def test_a_call_that_waits_for_a_decision_is_not_sent_when_its_client_has_left() -> None:
    table = Table(slow=("tools/call",))
    client = table.asks(call())
    assert not table.links
    client.leaves()
    table.effects.waiting[0].decide()
    assert not table.links
    client = table.asks(call())
    table.effects.waiting[1].decide()
    assert table.link.got.endswith(call())


def test_an_answer_that_waits_is_dropped_when_its_client_has_left() -> None:
    table = Table(slow=("1",))
    client = table.asks(call())
    table.link.says(answer(result()))
    assert client.got == b""
    client.leaves()
    table.effects.waiting[0].decide()
    assert client.got == b""


@pytest.mark.parametrize(("asked", "ids"), [
    (call(id="7"), [b'{"jsonrpc":"2.0","id":7,"error":{"code":-32000']),
    (b"[" + call(id="7") + b"," + call(id="8") + b"]", [b'[{"jsonrpc":"2.0","id":7', b'"id":8']),
    (notification("x"), [b'"id":null,"error":{"code":-32000']),
])  # fmt: skip
def test_who_waits_for_a_lost_upstream_gets_an_error(asked: bytes, ids: list[bytes]) -> None:
    suspect = Mock()
    for how in ("refuses", "ends", "is lost"):
        table = Table()
        table.service.suspect = suspect
        table.refuses = how == "refuses"
        client = table.asks(asked)
        if how == "ends":
            table.link.ends()
        for exchange in list(table.service.exchanges) if how == "is lost" else ():
            exchange.lose("lost")
        assert client.got.startswith(b"HTTP/1.1 502 " if b"null" in ids[0] else b"HTTP/1.1 200 ")
        for id in ids:
            assert id in body_of(client)
        assert client.is_open
        assert not table.service.exchanges
    assert suspect.call_count == 3


def test_a_request_that_is_still_judged_is_lost_with_its_id() -> None:
    table = Table(slow=("tools/call",))
    client = table.asks(call(id="7"))
    [exchange] = table.service.exchanges
    exchange.lose("lost")
    assert b'"id":7,"error":{"code":-32000' in client.taken()
    table.effects.waiting[0].decide()
    assert client.got == b""
    assert not table.links


def test_after_the_loss_nothing_is_sent() -> None:
    table = Table(slow=("tools/call",))
    waiting = table.asks(call(id="7"))
    table.service.is_ending = True
    client = table.asks(call(id="8"))
    assert b'"id":8,"error":{"code":-32000' in client.got
    assert client.got.startswith(b"HTTP/1.1 200 ")
    table.effects.waiting[0].decide()
    assert b'"id":7,"error":{"code":-32000' in waiting.got
    assert not table.links


def test_the_largest_exchanges_can_be_given_up(table: Table) -> None:
    arriving, waiting, streaming = table.client(), table.asks(call()), table.asks(call(id="2"))
    table.link.says(SSE_HEAD + chunk(b"data: " + b"x" * 3000))
    arriving.says(post(b"x" * 2000)[:-1])
    sizes = sorted(one.held_bytes for one in table.service.exchanges)
    assert sizes[0] == len(call())
    assert 1999 <= sizes[1] < 2010
    assert sizes[2] >= 3000
    for exchange in list(table.service.exchanges):
        exchange.give_up()
        assert exchange.held_bytes == 0
    assert arriving.got.startswith(b"HTTP/1.1 503 ")
    assert waiting.got.startswith(b"HTTP/1.1 200 ")
    assert b'"id":1,"error":{"code":-32603,"message":"Too many' in waiting.got
    assert b"retry-after: 1" in waiting.got
    assert b'"id":2,"error":{"code":-32603' in streaming.got
    assert streaming.got.endswith(b"0\r\n\r\n")
    assert not any(link.is_open for link in table.links)


# Answers that may not pass


@pytest.mark.parametrize("said", [
    b"junk\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 600 + b"Content-Length: 2\r\n\r\n{}",
    SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n",
    answer(b"not JSON"),
    answer(b""),
    answer(result(), status="206 Partial Content"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 21_000_000,
])  # fmt: skip
def test_a_bad_answer_becomes_an_error_with_the_id(table: Table, said: bytes) -> None:
    client = table.asks(call(id="7"))
    table.link.says(said)
    assert client.got.startswith(b"HTTP/1.1 200 ")
    error = b'"id":7,"error":{"code":-32603,"message":"The server sent an invalid response"}'
    assert error in client.got
    assert client.is_open
    assert not table.service.exchanges
    assert not table.asks().got
    client = table.asks(notification("x"))  # nobody waits for an answer
    table.link.says(b"junk\r\n\r\n")
    assert client.got.startswith(b"HTTP/1.1 502 ")


# Our own answers


def test_a_foreign_page_gets_an_error_it_cannot_read(table: Table) -> None:
    client = table.asks(headers=MCP_HEADERS + b"Origin: http://evil.example\r\n")
    assert client.got.startswith(b"HTTP/1.1 403 ")
    assert CORS not in client.got
    site = table.asks(headers=MCP_HEADERS + b"Sec-Fetch-Site: cross-site\r\n")
    assert b"sent by a page of another site" in site.got


def test_head_gets_no_body_of_ours(table: Table) -> None:
    table.refuses = True
    client = table.client()
    client.says(get().replace(b"GET", b"HEAD", 1))
    assert client.got.startswith(b"HTTP/1.1 502 ")
    assert client.got.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("length", [20 * 1024 * 1024 + 1, 10 * 1024 * 1024 + 100])
def test_a_body_that_is_too_large_is_refused(table: Table, length: int) -> None:
    client = table.asks(call().replace(b'"read"', b'"read","x":"' + b"x" * length + b'"'))
    assert client.got.startswith(b"HTTP/1.1 413 " if length > 2 * 10**7 else b"HTTP/1.1 200 ")
    assert b"too large" in client.got.lower()
    assert not table.links


# Hooks


def test_a_hook_may_answer_or_change_a_request_before_it_is_judged(table: Table) -> None:
    """Nothing else answers a visit from another site."""
    going: list[Callable[[], None]] = []

    def before(exchange: Exchange, go_on: Callable[[], None]) -> None:
        match exchange.head.target:
            case "/login":
                exchange.reply(Answered(200, b"in"), fields=((b"set-cookie", b"a"),))
            case "/later":
                going.append(go_on)
            case _:
                exchange.head = replace(exchange.head, target="/changed", notes=RequestNotes())
                exchange.body = call()
                go_on()

    table.service.before_judging = before
    visit = MCP_HEADERS + b"Sec-Fetch-Site: cross-site\r\n"
    table.service.is_visit = lambda _exchange: True
    assert body_of(table.asks(path="/login", headers=visit)) == b"in"
    assert table.asks(path="/other", headers=visit).got.startswith(b"HTTP/1.1 403 ")
    table.asks(path="/later")
    assert not table.links
    going[0]()
    going[0]()
    assert [link.got.count(b"POST /later ") for link in table.links] == [1]
    table.asks()
    assert table.link.got.startswith(b"POST /changed ")
    assert table.link.got.endswith(call())


def set_token(exchange: Exchange, token: bytes) -> None:
    kept = [one for one in exchange.out_fields if one[0] != b"authorization"]
    exchange.out_fields, exchange.out_head = (*kept, (b"authorization", token)), None


def test_a_token_is_added_and_renewed_without_the_client(table: Table) -> None:
    tokens = [b"Bearer old", b"Bearer new"]
    going: list[Callable[[], None]] = []

    def before_sending(exchange: Exchange, go_on: Callable[[], None]) -> None:
        set_token(exchange, tokens[0])
        go_on()

    def before_answering(exchange: Exchange, go_on: Callable[[], None]) -> bool:
        assert exchange.answer is not None
        if exchange.answer.status != 401:
            return False
        set_token(exchange, tokens[1])
        going.append(go_on)
        return True

    table.service.before_sending = before_sending
    table.service.before_answering = before_answering
    client = table.asks(call())
    assert b"\r\nauthorization: Bearer old\r\n" in table.link.got
    table.link.says(answer(b"no", status="401 Unauthorized"))
    assert client.got == b""
    going[0]()
    again = table.link.got.rpartition(b"POST ")[2]
    assert again.count(b"authorization: Bearer ") == 1
    assert b"\r\nauthorization: Bearer new\r\n" in table.link.got
    table.link.says(answer(result()))
    assert body_of(client) == result()
    client.says(post(call(id="2")))
    assert b"\r\nauthorization: Bearer old\r\n" in table.link.got


# Errors of our own


fails = Mock(side_effect=RuntimeError("a bug"))


@pytest.mark.parametrize("where", ["judge_request", "judge_answer"])
def test_a_bug_refuses_the_request_and_ends_the_connection(
    table: Table, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(table.listener), where, fails)
    for _ in range(2):
        client = table.asks(call(id="7"))
        if where != "judge_request":
            table.link.says(answer(result("secret")))
        assert client.got.startswith((b"HTTP/1.1 500 ", b"HTTP/1.1 200 "))
        assert b'"code":-32603' in client.got
        assert b"secret" not in client.got
        assert not client.is_open
    assert not table.service.exchanges
    assert caplog.text.count("Traceback") == 1


def test_a_bug_in_a_stream_cuts_it(table: Table) -> None:
    client = stream(table, PING)
    table.listener.policy.observe = fails
    table.link.says(chunk(event(PONG)))
    assert b"result" not in client.got
    assert not table.link.is_open
    assert not table.service.exchanges


@pytest.mark.parametrize("hook", ["before_judging", "before_sending", "before_answering"])
def test_a_bug_in_a_hook_refuses_the_request(table: Table, hook: str) -> None:
    setattr(table.service, hook, fails)
    client = table.asks(call())
    if hook == "before_answering":
        table.link.says(answer(result()))
    assert b'"code":-32603' in client.got
    assert not client.is_open


def test_a_peers_mistake_is_logged_once(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        table.asks(call())
        table.link.says(answer(result(), status="206 Partial Content", kind="text/event-stream"))
    [said] = caplog.records
    assert (said.levelname, said.exc_info) == ("WARNING", None)
    assert "partial" in said.getMessage()


def test_a_bug_behind_a_waiting_decision_refuses_the_request() -> None:
    table = Table(slow=("tools/call",))
    client = table.asks(call())
    table.effects.waiting[0].done(RuntimeError("a bug"))
    assert client.got.startswith(b"HTTP/1.1 500 ")
    assert not client.is_open


def test_a_connection_that_cannot_even_be_refused_is_cut(
    table: Table, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "send", fails)
    client.says(post(call("wipe")))
    assert client.was_aborted
    assert not table.service.exchanges
