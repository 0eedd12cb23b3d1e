"""Other addons take part in an exchange: what they see, and when; what they change is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from mcp_tool_filter.rooms.mitmproxy.shown import ShownExchange
from tests.core.engine.table import PONG, Table, call, result
from tests.core.engine.test_exchange import body_of, event, stream
from tests.raw_upstream import SSE_HEAD, answer

_CHUNKED = b"Transfer-Encoding: chunked"

type GoOn = Callable[[], None]
type Point = Callable[[str, ShownExchange, GoOn], None]


def shown(point: Point, **options: Any) -> Table:
    return Table(exchange_type=ShownExchange, point=point, **options)


def test_a_stream_that_comes_whole_is_shown_once_and_ends_when_it_was_seen() -> None:
    waiting: list[GoOn] = []

    def point(name: str, _exchange: ShownExchange, go_on: GoOn) -> None:
        waiting.append(go_on) if name == "response" else go_on()

    table = shown(point)
    client = table.asks()
    said = SSE_HEAD.replace(_CHUNKED, b"Content-Length: %d" % len(event(PONG)))
    table.link.says(said + event(PONG))
    [go_on] = waiting
    assert not client.got.endswith(b"0\r\n\r\n")
    go_on()
    assert client.got.endswith(b"0\r\n\r\n")


def test_a_host_hears_the_last_messages_of_a_broken_stream_before_its_end() -> None:
    heard: list[bytes] = []

    def point(name: str, exchange: ShownExchange, go_on: GoOn) -> None:
        exchange.tap = Mock(said=heard.append)
        if name == "error":
            heard.append(b"the end")
        go_on()

    table = shown(point)
    stream(table, call())
    table.link.ends()
    assert b"Upstream connection lost" in heard[-2]
    assert heard[-1] == b"the end"


def test_whoever_goes_on_too_late_changes_nothing() -> None:
    """The exchange was answered in another way meanwhile, and its answer is being shown."""
    going: list[GoOn] = []
    table = shown(lambda _name, _exchange, go_on: going.append(go_on))
    client = table.asks(call())
    [exchange] = table.service.exchanges
    exchange.give_up()
    going.pop(0)()  # the request's head was seen
    assert not table.links
    while going:
        going.pop(0)()
    assert client.got.startswith(b"HTTP/1.1 503 ")
    assert not table.links


@pytest.mark.parametrize("in_one_piece", [True, False])
def test_a_refused_answer_stays_refused_while_an_addon_looks(in_one_piece: bool) -> None:
    going: list[GoOn] = []
    table = shown(lambda _name, _exchange, go_on: going.append(go_on), message_limit="1KB")
    client = table.asks(call())
    while going:
        going.pop(0)()
    said = answer(result("x" * 3000))
    table.link.says(said if in_one_piece else said[:-1])
    while going:
        going.pop(0)()
    assert client.got.startswith(b"HTTP/1.1 200 ")
    assert b'"id":1,' in body_of(client)
