"""A client and an upstream on both ends of a real mitmproxy, without a socket."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mitmproxy.addons.next_layer import NextLayer
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.http import HTTPFlow
    from mitmproxy.test import taddons

from mcp_tool_filter.adapters.recordings.memory_connection import Heard, MemoryConnection
from mcp_tool_filter.http.head import Head

JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream"),)
UPSTREAM = "reverse:http://127.0.0.1:1"


class Seen:
    """The flows that went through mitmproxy."""

    def __init__(self) -> None:
        self.flows: list[HTTPFlow] = []

    def request(self, flow: HTTPFlow) -> None:
        self.flows.append(flow)

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        flow.response.stream = "event-stream" in flow.response.headers.get("content-type", "")


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[MemoryConnection, Seen]]:
    """Connect to an upstream at a closed port: nothing leaves the process."""
    seen = Seen()
    with taddons.context(Proxyserver(), NextLayer(), seen) as context:
        context.master._legacy_log_events.uninstall()
        context.options.update(connection_strategy="lazy")
        connection = MemoryConnection(context.master, UPSTREAM)
        yield connection, seen
        connection.hang_up()
        await connection.ended()
        assert not context.master.addons.get("proxyserver").connections


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def head(method: str = "POST", *fields: tuple[bytes, bytes]) -> Head:
    return Head(method, "/mcp", fields)


async def test_a_request_and_its_answer_pass() -> None:
    async with connected() as (connection, seen):
        connection.ask(head("POST", *JSON, (b"host", b"wrong")), "right.example", b'{"a":1}')
        await settled()
        assert connection.asked() == b'{"a":1}'
        connection.answer(404, b'{"b":2}', JSON)
        await settled()
        assert connection.heard() == Heard(404, "application/json", b'{"b":2}')
        (flow,) = seen.flows
        assert flow.request.headers["content-type"] == "application/json"
        assert flow.request.headers["content-length"] == "7"


async def test_nothing_is_heard_or_asked_before_it_is_said() -> None:
    async with connected() as (connection, _):
        await settled()
        assert connection.asked() is None
        assert connection.heard() == Heard(0, "", b"")


async def test_a_stream_is_heard_piece_by_piece() -> None:
    async with connected() as (connection, _):
        connection.ask(head("GET"), "x", b"")
        await settled()
        connection.begin_stream(200, EVENTS)
        heard = []
        for data in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            connection.say(data)
            await settled()
            heard.append(connection.heard().body)
        assert heard == [b"data: 1\n\n", b"data: 1\n\n", b"data: 1\n\ndata: 2\n\n"]
        connection.end_stream()
        await settled()
        assert connection.heard() == Heard(200, "text/event-stream", heard[-1])


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("GET", 304)])
async def test_an_answer_without_a_body_has_none(method: str, status: int) -> None:
    """HTTP allows none there, and mitmproxy would take it for the next answer."""
    async with connected() as (connection, _):
        connection.ask(head(method), "x", b"")
        await settled()
        connection.answer(status, b"left over", JSON)
        await settled()
        assert (connection.heard().status, connection.heard().body) == (status, b"")


async def test_an_answer_to_a_client_that_has_left_is_dropped() -> None:
    async with connected() as (connection, seen):
        connection.ask(head(), "x", b"{}")
        await settled()
        connection.hang_up()
        await settled()
        connection.answer(200, b"{}", JSON)
        await settled()
        assert connection.heard().status == 0
        assert seen.flows[0].error
