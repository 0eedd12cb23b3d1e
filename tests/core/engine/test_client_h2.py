"""HTTP/2 through the engine: frames of a client in, requests in HTTP/1.1 out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import h2.errors
import h2.events
import h2.exceptions
import pytest
from h2.settings import SettingCodes
from hyperframe import frame as frames

from mcp_tool_filter.core.engine import client_h2
from mcp_tool_filter.core.engine.client_h2 import H2Limits
from mcp_tool_filter.core.engine.service import Seats
from tests.core.engine.table import PING, PONG, Client, Table, call, result
from tests.raw_client import H2Client, H2Stream
from tests.raw_upstream import SSE_HEAD, answer, chunk

type Fields = Sequence[tuple[bytes, bytes]]

USUAL = {b":method": b"POST", b":scheme": b"https", b":path": b"/mcp", b":authority": b"localhost"}
JSON = ((b"content-type", b"application/json"),)


class Peer(H2Client):
    """A client which may say what it should not."""

    def __init__(self, table: Table, limits: H2Limits | None = None) -> None:
        super().__init__(Mock(), Mock())
        self.at = Client(table)
        self.engine = client_h2.H2Client(table.service, self.at, limits or H2Limits())
        self.h2.initiate_connection()
        self.goaway: int | None = None
        self.turn()

    def turn(self) -> None:
        """Let both sides hear what was said, until nobody says any more."""
        while (said := self.h2.data_to_send()) or self.at.got:
            if said:
                self.engine.receive(said)
            self._hear()

    def _hear(self) -> None:
        with suppress(h2.exceptions.ProtocolError):  # it says goodbye twice
            for event in self.h2.receive_data(self.at.taken()):
                if isinstance(event, h2.events.ConnectionTerminated):
                    self.goaway = event.error_code
                self._take(event)

    def asks(
        self, body: bytes | None = PING, more: Fields = (), *, ends: bool = True, **pseudo: Any
    ) -> H2Stream:
        number = self.h2.get_next_available_stream_id()
        stream = self.streams[number]
        names = {**USUAL, **{b":" + name.encode(): value for name, value in pseudo.items()}}
        head = [(name, value) for name, value in names.items() if value != b"-"]
        self.h2.send_headers(number, [*head, *JSON, *more], end_stream=body is None)
        if body is not None:
            self.h2.send_data(number, body, end_stream=ends)
        self.turn()
        return stream

    def says(self, *said: frames.Frame) -> None:
        """Say what the h2 library would not."""
        self.engine.receive(b"".join(frame.serialize() for frame in said))
        self.turn()


@pytest.fixture
def peer(table: Table) -> Peer:
    return Peer(table)


def test_requests_side_by_side_are_judged_each_for_itself(table: Table, peer: Peer) -> None:
    one, denied, two = (peer.asks(call(name)) for name in ("read", "wipe", "read"))
    assert b"Tool not found: wipe" in denied.data
    assert denied.ended
    first, second = table.links
    second.says(answer(result("second")))
    first.says(answer(result("first")))
    peer.turn()
    assert (one.data, two.data) == (result("first"), result("second"))
    assert one.headers[b":status"] == b"200"
    assert first.got.startswith(b"POST /mcp HTTP/1.1\r\nhost: upstream:3000\r\n")
    assert first.got.endswith(b"content-length: %d\r\n\r\n%b" % (len(call()), call()))


@pytest.mark.parametrize(("pseudo", "more"), [
    ({"method": b"-"}, ()), ({"authority": b"-"}, ()), ({"scheme": b"file"}, ()),
    ({"method": b"CONNECT", "path": b"-", "scheme": b"-"}, ()),
    ({"protocol": b"websocket"}, ()), ({"path": b""}, ()), ({"path": b"*"}, ()),
    ({"path": b"//x/mcp#y"}, ()),
    ({"path": b"/mcp HTTP/1.1\r\nX: y"}, ()),
    ({"authority": b"user@localhost"}, ()),
    ({"authority": b""}, ()), ({}, [(b":path", b"/other")]), ({}, [(b"host", b"other")]),
    ({}, [(b"X-Upper", b"y")]), ({}, [(b"", b"y")]), ({}, [(b"x", b"y\r\nz: a")]),
    ({}, [(b"x", b" y")]), ({}, [(b"connection", b"x")]), ({}, [(b"te", b"gzip")]),
    ({}, [(b"content-length", b"%d" % len(PING)), (b"content-length", b"%d" % len(PING))]),
    ({}, [(b"content-length", b"0%020d" % len(PING))]),
])  # fmt: skip
def test_a_head_that_could_mislead_is_refused_alone(
    table: Table, peer: Peer, pseudo: dict[str, Any], more: Fields
) -> None:
    refused = peer.asks(PING, more, ends=True, **pseudo)
    assert refused.headers[b":status"] == b"400"
    assert not table.links
    fine = peer.asks()
    table.link.says(answer(PONG))
    peer.turn()
    assert fine.data == PONG


@pytest.mark.parametrize("length", [b"0", b"2", b"9999", b"x", b"+40", b"-1"])
def test_a_length_that_is_wrong_sends_nothing(table: Table, length: bytes) -> None:
    with suppress(h2.exceptions.ProtocolError):
        Peer(table).asks(PING, [(b"content-length", length)])
    assert not table.links


def test_trailers_are_dropped_and_cookies_joined(table: Table, peer: Peer) -> None:
    fields = [(b"cookie", b"a=1"), (b"te", b"trailers"), (b"cookie", b"b=2")]
    stream = peer.asks(PING, fields, ends=False)
    peer.h2.send_headers(1, [(b"mcp-name", b"x")], end_stream=True)
    peer.turn()
    table.link.says(answer(PONG))
    peer.turn()
    assert stream.data == PONG
    assert b"cookie: a=1; b=2\r\n" in table.link.got
    assert b"mcp-name" not in table.link.got
    assert b"trailers" not in table.link.got


def test_a_client_that_does_not_read_holds_its_upstream_and_no_other(table: Table) -> None:
    peer = Peer(table, H2Limits(unsent=100_000))
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    peer.turn()
    slow = peer.asks(None, method=b"GET")
    table.link.says(SSE_HEAD)
    event = b"data: %b\n\n" % result("x" * 10_000)
    for _ in range(20):
        table.link.says(chunk(event))
    (held,) = table.links
    assert [held.is_held] == [True]
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1_000_000})
    peer.turn()
    assert [held.is_held] == [False]
    assert slow.data == event * 20
    other = peer.asks()
    table.link.says(answer(PONG))
    peer.turn()
    assert other.data == PONG


def test_a_long_answer_keeps_no_other_waiting(table: Table, peer: Peer) -> None:
    long, short = peer.asks(call(id="1")), peer.asks(call(id="2"))
    one, two = table.links
    one.says(answer(result("x" * 1_000_000, id="1")))
    two.says(answer(result("y", id="2")))
    peer._hear()  # 64 KB of the first, and the window is closed
    peer.turn()
    assert short.ended
    assert len(long.data) > 1_000_000


def test_a_reset_cancels_only_its_own_exchange(table: Table, peer: Peer) -> None:
    peer.asks()
    fine = peer.asks()
    first, second = table.links
    peer.h2.reset_stream(1)
    peer.turn()
    assert (first.is_open, second.is_open) == (False, True)
    second.says(answer(PONG))
    peer.turn()
    assert fine.data == PONG


def test_an_early_answer_ends_the_request() -> None:
    table = Table(message_limit="1KB")
    peer = Peer(table)
    stream = peer.asks(b"x" * 3000, ends=False)
    assert stream.headers[b":status"] == b"413"
    assert (stream.ended, stream.reset) == (True, h2.errors.ErrorCodes.NO_ERROR)


FLOODS: dict[str, frames.Frame] = {
    "ping": frames.PingFrame(0, b"12345678"), "settings": frames.SettingsFrame(0),
    "priority": frames.PriorityFrame(1, depends_on=0), "window": frames.WindowUpdateFrame(0, 1),
    "empty data": frames.DataFrame(1, b""), "tiny data": frames.DataFrame(1, b"x"),
    "continuation": frames.ContinuationFrame(1, b""),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_is_cut(table: Table, peer: Peer, kind: str) -> None:
    if kind == "continuation":
        peer.engine.receive(frames.HeadersFrame(1, b"\x82").serialize())
    else:
        peer.asks(b"{", ends=False)
    peer.says(*[FLOODS[kind]] * 3000)
    while table.later:
        table.later.pop(0)()
    assert not peer.at.is_open
    assert not table.service.exchanges


def test_rapid_resets_end_the_connection(table: Table, peer: Peer) -> None:
    for _ in range(1000):
        if not peer.at.is_open:
            break
        peer.asks()
        with suppress(h2.exceptions.ProtocolError):
            peer.h2.reset_stream(peer.h2.get_next_available_stream_id() - 2)
            peer.turn()
    assert len(table.links) < 300
    assert peer.goaway == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


def test_ordinary_use_is_no_flood(table: Table) -> None:
    peer = Peer(table, H2Limits(useless=100))
    for _ in range(300):
        stream = peer.asks(call(), ends=False)
        peer.h2.end_stream(peer.h2.get_next_available_stream_id() - 2)
        peer.turn()
        table.link.says(answer(result()))
        peer.turn()
        assert stream.data == result()


def test_frames_are_read_in_turns(table: Table, peer: Peer) -> None:
    peer.engine.receive(frames.PingFrame(0, b"12345678").serialize() * 100)
    assert peer.at.got.count(b"12345678") == 64
    assert peer.at.is_held
    table.later.pop(0)()
    assert peer.at.got.count(b"12345678") == 100
    assert not peer.at.is_held


def test_too_many_streams_and_long_frames_end_the_connection() -> None:
    for say in (
        lambda peer: [peer.asks(b"{", ends=False) for _ in range(101)],
        lambda peer: peer.engine.receive(b"\xff\xff\xff\0\0\0\0\0\1"),
        lambda peer: peer.engine.receive(b"\0\0\0\5\0\0\0\0\1"),
    ):
        peer = Peer(Table())
        peer.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
        peer.h2.remote_settings.acknowledge()
        say(peer)
        assert not peer.at.is_open


def test_what_is_not_http2_is_closed(table: Table) -> None:
    client = Client(table)
    client_h2.H2Client(table.service, client).receive(b"POST /mcp HTTP/1.1\r\n")
    assert not client.is_open


def test_retiring_answers_what_is_under_way(table: Table, peer: Peer) -> None:
    peer.asks()
    peer.engine.retire()
    assert peer.at.taken() == b""
    assert peer.at.is_open
    table.link.says(answer(PONG))
    assert PONG in peer.at.got
    assert peer.at.got.endswith(frames.GoAwayFrame(0, last_stream_id=1).serialize())
    assert not peer.at.is_open


def test_silent_clients_are_closed(peer: Peer) -> None:
    slow = peer.asks(b"{", ends=False)
    for now in (0.0, 59.0, 61.0):
        peer.engine.tick(now)
    peer.turn()
    assert slow.reset == h2.errors.ErrorCodes.CANCEL
    assert peer.at.is_open
    for now in (100.0, 219.0, 221.0):
        peer.engine.tick(now)
    assert not peer.at.is_open


def test_a_client_has_one_seat_however_many_streams() -> None:
    table = Table(seats=(seats := Seats(1)))
    peer = Peer(table)
    peer.asks()
    peer.asks()
    assert Peer(table).asks().headers[b":status"] == b"503"
    for link in table.links:
        link.says(answer(PONG))
    peer.turn()
    newcomer = Peer(table)
    assert not newcomer.asks().headers
    assert not peer.at.is_open
    newcomer.engine.gone()
    assert len(seats) == 0


def test_an_exception_in_our_code_ends_only_its_exchange(
    table: Table, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(table.listener), "judge_request", lambda *_: 1 / 0)
        assert peer.asks().headers[b":status"] == b"500"
    fine = peer.asks()
    table.link.says(answer(PONG))
    peer.turn()
    assert fine.data == PONG
