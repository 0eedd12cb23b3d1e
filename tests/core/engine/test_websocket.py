"""A WebSocket through the engine: frames in, frames out, each message judged."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from mcp_tool_filter.core.conversation.policy_in_force import LOST_ANSWER
from mcp_tool_filter.core.engine.exchange import Exchange
from tests.core.engine.table import LIST, PING, Client, Link, Table, call, result
from tests.mcp_upstream import tool, tool_list

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = base64.b64encode(hashlib.sha1(KEY + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
ASKED = (
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Key: %b\r\n%b\r\n"
)
ACCEPTED = b"HTTP/1.1 101 X\r\nUpgrade: WebSocket\r\nConnection: x, Upgrade\r\n%b\r\n"
USUAL = b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n"


class Peer[At: (Client, Link)]:
    """One end of a WebSocket: a client, or an upstream."""

    def __init__(self, at: At) -> None:
        self.at: At = at
        kind = ConnectionType.CLIENT if isinstance(at, Client) else ConnectionType.SERVER
        self.frames = Connection(kind)
        self._read = 0

    def framed(self, *said: bytes | str | Event) -> bytes:
        texts = (one.decode() if isinstance(one, bytes) else one for one in said)
        events = (TextMessage(one) if isinstance(one, str) else one for one in texts)
        return b"".join(bytes(self.frames.send(event)) for event in events)

    def says(self, *said: bytes | str | Event) -> None:
        self.at.says(self.framed(*said))

    def hears(self) -> list[bytes | Event]:
        """Return what has come: whole messages of text, or events."""
        if not self._read:
            self._read = self.at.got.index(b"\r\n\r\n") + 4
        data, self._read = self.at.got[self._read :], len(self.at.got)
        if data and self.frames.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            self.frames.receive_data(data)
        return [*self._heard()]

    def _heard(self) -> Iterator[bytes | Event]:
        for event in self.frames.events():
            if isinstance(event, TextMessage) and event.message_finished:
                yield event.data.encode()
            else:
                yield event


def talk(
    table: Table | None = None, *, behind: bytes = b""
) -> tuple[Table, Peer[Client], Peer[Link]]:
    """Open a WebSocket; ``behind`` is what the upstream says with its 101."""
    table = table or Table()
    client = table.client()
    client.says(ASKED % (KEY, b""))
    assert b"\r\nsec-websocket-key: %b\r\n" % KEY in table.link.got
    table.link.says(ACCEPTED % USUAL + behind)
    assert client.got.startswith(b"HTTP/1.1 101 ")
    return table, Peer(client), Peer(table.link)


def test_each_message_is_judged_in_both_directions() -> None:
    _, client, upstream = talk()
    client.says(call("wipe"), call("read"), b"not json", LIST)
    assert upstream.hears() == [call("read"), LIST]
    assert [
        b'"Tool not found: wipe"' in one for one in client.hears() if isinstance(one, bytes)
    ] == [True, False]
    upstream.says(result("hi"), tool_list([tool("read"), tool("wipe")], id="1"))
    assert client.hears() == [result("hi"), tool_list([tool("read")], id="1")]


def test_kinds_and_fragments_make_no_difference_and_kinds_stay() -> None:
    _, client, upstream = talk()
    for body in (call("wipe"), call("read")):
        begins, empty = (BytesMessage(one, message_finished=False) for one in (body[:9], b""))
        client.says(begins, Ping(b"between"), empty, BytesMessage(body[9:]))
    assert upstream.hears() == [Ping(b"between"), Ping(b"between"), BytesMessage(call("read"))]
    upstream.says(Pong(b"between"), BytesMessage(result()))
    assert [type(one) for one in client.hears()] == [bytes, Pong, BytesMessage]


@pytest.mark.parametrize("fields", [
    b"", b"Sec-WebSocket-Accept: AAAA\r\n", USUAL + USUAL,
    USUAL + b"Sec-WebSocket-Extensions: permessage-deflate\r\n",
    USUAL + b"Sec-WebSocket-Protocol: other\r\n",
])  # fmt: skip
def test_a_wrong_handshake_is_refused(table: Table, client: Client, fields: bytes) -> None:
    client.says(ASKED % (KEY, b""))
    table.link.says(ACCEPTED % fields + b"\x81\x02hi")
    assert re.match(rb"HTTP/1.1 (?:502|200) ", client.got)
    assert b"\x81\x02hi" not in client.got
    assert not table.link.is_open


def test_a_close_passes_with_its_code_and_ends_both_sides() -> None:
    table, client, upstream = talk()
    client.says(PING, CloseConnection(4001, "enough"))
    assert upstream.hears() == [PING, CloseConnection(4001, "enough")]
    assert client.hears() == [CloseConnection(4001, "enough")]
    assert not client.at.is_open
    assert not table.link.is_open
    assert not table.service.exchanges


def test_a_lost_upstream_leaves_nobody_waiting() -> None:
    table, client, upstream = talk()
    client.says(call("read", id="5"))
    table.link.says(upstream.framed(*[PING] * 100))
    table.link.ends()
    for later in iter(lambda: table.later.pop(0) if table.later else None, None):
        later()
    *pings, lost, closed = client.hears()
    assert pings == [PING] * 100
    assert isinstance(lost, bytes)
    assert b'"id":5' in lost
    assert LOST_ANSWER.encode() in lost
    assert closed == CloseConnection(1011, LOST_ANSWER)
    assert not client.at.is_open


def test_a_client_that_leaves_ends_the_upstream() -> None:
    table, client, upstream = talk()
    client.at.leaves()
    assert upstream.hears() == [CloseConnection(1001, "")]
    assert not table.link.is_open
    assert not table.service.exchanges


def test_tiny_frames_get_a_bounded_number_per_turn() -> None:
    table, client, upstream = talk()
    empty = BytesMessage(b"", message_finished=False)
    client.says(*[Ping(b"")] * 100, *[empty] * 1000, BytesMessage(PING))
    assert len(upstream.hears()) == 64
    turns = 0
    while table.later:
        assert client.at.is_held
        table.later.pop(0)()
        turns += 1
    assert upstream.hears()[-1] == BytesMessage(PING)
    assert turns == 1101 // 64
    assert not client.at.is_held


def test_a_slow_reader_stops_the_other_side() -> None:
    table, client, _ = talk()
    client.at.engine.held(True)
    assert [table.link.is_held] == [True]
    client.at.engine.held(False)
    assert [table.link.is_held] == [False]
    table.link.up.held(True)
    assert client.at.is_held


@pytest.mark.parametrize("size", [1, 5000])
def test_an_endless_message_ends_the_connection(size: int) -> None:
    table, client, upstream = talk(Table(message_limit="10KB"))
    part = client.framed(BytesMessage(b"x" * size, message_finished=False))
    rest = bytes([0]) + part[1:]
    client.at.says(part)
    for _ in range(200_000 // size):
        if not client.at.is_open:
            break
        client.at.says(rest)
        while table.later:
            table.later.pop(0)()
    assert [one.code for one in upstream.hears() if isinstance(one, CloseConnection)] == [1009]
    assert not client.at.is_open


def test_an_exception_in_our_code_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, client, upstream = talk()
    (exchange,) = table.service.exchanges
    assert exchange.seat is not None

    monkeypatch.setattr(exchange.seat, "_judge", Mock(side_effect=RuntimeError))
    client.says(call("read"))
    assert upstream.hears() == [CloseConnection(1011, "")]
    assert not client.at.is_open


def test_other_addons_see_each_message_in_order() -> None:
    """A message waits while they look at the one before; they may change or drop it."""
    waiting: list[tuple[str, Exchange, Callable[[], None]]] = []

    def point(name: str, exchange: Exchange, go_on: Callable[[], None]) -> None:
        waiting.append((name, exchange, go_on))

    table = Table(point=point)
    client = table.client()
    peer = Peer(client)
    client.says(ASKED % (KEY, b"") + peer.framed("1", call("wipe", id="2"), "3"))

    def step() -> str:
        name, _, go_on = waiting.pop(0)
        go_on()
        return name

    while not table.links:
        step()
    table.link.says(ACCEPTED % USUAL)
    while step() != "websocket_start":
        pass
    upstream = Peer(table.link)
    seen = []
    for raw in (call("wipe"), None, call("read")):
        ((name, exchange, _),) = waiting
        assert exchange.seat is not None
        assert exchange.seat.shown is not None
        seen.append(exchange.seat.shown.raw)
        exchange.seat.shown.raw = raw
        assert step() == name == "websocket_message"
    assert seen == [b"1", call("wipe", id="2"), b"3"]
    assert upstream.hears() == [call("read")]
    assert b"Tool not found: wipe" in client.got
