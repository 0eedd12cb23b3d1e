"""Bodies pass through HTTP/1 connections as through mitmproxy's own, only with fewer copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.http import Headers, Request, Response
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestEndOfMessage,
    RequestHeaders,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Connection, Http1Server
from mitmproxy.test.tflow import tclient_conn

from mcp_tool_filter.adapters.mitmproxy.forward.fast.routing import tell
from tests.make import chunks

type Tell = Callable[[Http1Connection, events.Event], Iterable[commands.Command]]

_POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


def as_mitmproxy_does(
    connection: Http1Connection, event: events.Event
) -> Iterable[commands.Command]:
    return connection.handle_event(event)


def context() -> Context:
    return Context(tclient_conn(), Options())


def waiting_client() -> Http1Client:
    """A connection to an upstream that has been asked."""
    connection = Http1Client(context())
    request = Request.make("POST", "http://a/", b"")
    for event in (events.Start(), RequestHeaders(1, request, True), RequestEndOfMessage(1)):
        list(connection.handle_event(event))
    return connection


def waiting_server() -> Http1Server:
    """A client's connection, which has asked nothing."""
    connection = Http1Server(context())
    list(connection.handle_event(events.Start()))
    return connection


def received(connection: Http1Connection, pieces: Iterable[bytes], way: Tell) -> Iterator[object]:
    for piece in pieces:
        for command in way(connection, events.DataReceived(connection.conn, piece)):
            event = command.event if isinstance(command, ReceiveHttp) else command
            yield type(event).__name__, bytes(getattr(event, "data", b""))
        yield bytes(connection.buf)


HEADS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n", b"x" * 60),
    "too long": (b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n", b"x" * 90),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"28\r\n%s\r\n1\r\n\r\r\n14;x=1\r\n%s\r\n0\r\n\r\n" % (b"\r\n0\r" * 10, b"y" * 20),
    ),
    "broken chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"28\r\n%s\n\r5\r\nabc" % (b"x" * 40),
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 60),
}


@pytest.mark.parametrize("name", HEADS)
@given(sizes=st.lists(st.integers(1, 45), min_size=1, max_size=8))
def test_a_response_is_read_like_mitmproxy_does(name: str, sizes: list[int]) -> None:
    pieces = chunks(b"".join(HEADS[name]), sizes)
    theirs = list(received(waiting_client(), pieces, as_mitmproxy_does))
    assert list(received(waiting_client(), pieces, tell)) == theirs


@given(sizes=st.lists(st.integers(1, 45), min_size=1, max_size=8), is_chunked=st.booleans())
def test_a_request_is_read_like_mitmproxy_does(sizes: list[int], is_chunked: bool) -> None:
    head = b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"Content-Length: 60\r\n\r\n"
    body = b"3c\r\n%s\r\n0\r\n\r\n" % (b"x" * 60) if is_chunked else b"x" * 60
    pieces = chunks(_POST + head + body + _POST, sizes)
    theirs = list(received(waiting_server(), pieces, as_mitmproxy_does))
    assert list(received(waiting_server(), pieces, tell)) == theirs


@pytest.mark.parametrize("name", ["length", "chunks", "until the end"])
def test_the_middle_of_a_body_is_not_buffered(name: str) -> None:
    head, body = HEADS[name]
    connection = waiting_client()
    list(received(connection, [head + body[:10]], tell))
    middle = events.DataReceived(connection.conn, body[10:20])
    (command,) = tell(connection, middle)
    assert isinstance(command, ReceiveHttp)
    assert isinstance(command.event, ResponseData)
    assert command.event.data is middle.data


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("coding", ["chunked", "Chunked", "", "gzip"])
def test_a_body_is_sent_like_mitmproxy_does(size: int, coding: str) -> None:
    def sent(way: Tell) -> bytes:
        connection = waiting_server()
        list(received(connection, [_POST + b"\r\n"], as_mitmproxy_does))
        headers = Headers([(b"transfer-encoding", coding.encode())] if coding else [])
        response = Response(b"HTTP/1.1", 200, b"OK", headers, None, None, 0, 0)
        answer: list[HttpEvent] = [
            ResponseHeaders(1, response, False),
            ResponseData(1, b"x" * size),
            ResponseData(1, b"y" * size),
            ResponseEndOfMessage(1),
        ]
        said = [command for event in answer for command in way(connection, event)]
        return b"".join(one.data for one in said if isinstance(one, commands.SendData))

    assert sent(tell) == sent(as_mitmproxy_does)


def test_a_large_chunk_is_not_copied() -> None:
    connection = waiting_server()
    list(received(connection, [_POST + b"\r\n"], as_mitmproxy_does))
    headers = Headers([(b"transfer-encoding", b"chunked")])
    response = Response(b"HTTP/1.1", 200, b"OK", headers, None, None, 0, 0)
    list(connection.handle_event(ResponseHeaders(1, response, False)))
    event = ResponseData(1, b"x" * 100_000)
    said = tell(connection, event)
    assert any(isinstance(one, commands.SendData) and one.data is event.data for one in said)
