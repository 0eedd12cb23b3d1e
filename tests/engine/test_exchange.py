"""One request and its answer, through values: bytes in, orders out."""

from __future__ import annotations

from tests.engine.table import PONG, Table, call, result
from tests.raw_client import post
from tests.raw_upstream import answer


def test_a_call_goes_to_the_upstream_and_a_denied_one_does_not() -> None:
    table = Table()
    client = table.asks(call("read"))
    assert table.link.got.endswith(b"\r\n\r\n" + call("read"))
    table.link.says(answer(result("hi")))
    assert client.taken().endswith(b"\r\n\r\n" + result("hi"))
    client.says(post(call("wipe")))
    assert b'"message":"Tool not found: wipe"' in client.taken()
    assert table.link.got.count(b"POST ") == 1


def test_a_connection_is_used_again() -> None:
    table = Table()
    assert table.answers() == table.answers()
    assert len(table.links) == 1
    assert table.link.got.count(b"POST ") == 2
    assert table.answers().endswith(PONG)
