"""Which requests will not be answered any more, as the flows say that they came with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mitmproxy import flow as mitmproxy_flow
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test import taddons, tflow

from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.unanswered import UnansweredRequests
from mcp_tool_filter.observers.audit.entries import EndOf, Unanswered
from mcp_tool_filter.policy.exchange import Client, Via

HOUR = 3600.0


@pytest.fixture(autouse=True)
def mitmproxy() -> Iterator[None]:
    """Forget the mitmproxy of an earlier test: it listens no more."""
    with taddons.context():
        yield


def answered(status: int, kind: str = "application/json") -> HTTPFlow:
    flow: HTTPFlow = tflow.tflow()
    flow.response = Response.make(status, b"", {"content-type": kind})
    return flow


def failed() -> HTTPFlow:
    flow: HTTPFlow = tflow.tflow()
    flow.error = mitmproxy_flow.Error("Client disconnected.")
    return flow


def broken_stream() -> HTTPFlow:
    flow = answered(200, "text/event-stream")
    flow.error = mitmproxy_flow.Error("Client disconnected.")
    return flow


def socket(closed: float | None) -> HTTPFlow:
    flow: HTTPFlow = tflow.twebsocketflow()
    assert flow.websocket
    flow.websocket.timestamp_end = closed
    return flow


@pytest.mark.parametrize(
    ("flow", "age", "end"),
    [
        (answered(500), 1.0, Unanswered(status=500)),
        (answered(200), 1.0, Unanswered()),
        (failed(), 1.0, Unanswered("client_left")),
        (answered(202), 1.0, None),  # the answer may come on another stream
        (answered(202), HOUR, Unanswered()),
        (answered(200, "text/event-stream"), 1.0, None),  # it may be resumed
        (broken_stream(), 1.0, None),
        (broken_stream(), HOUR, Unanswered("client_left")),
        (socket(None), HOUR, None),
        (socket(1.0), 1.0, Unanswered("client_left")),
        (object(), HOUR, None),  # no flow of mitmproxy's
    ],
)
async def test_a_flow_says_whether_its_request_has_ended(
    flow: object, age: float, end: Unanswered | None
) -> None:
    assert await end_of(flow, Client(), age) == end


async def test_the_answer_to_an_older_client_comes_on_its_stream_as_long_as_that_is_open() -> None:
    """Its POST has ended with 202 at once."""
    client = Client(Via.LEGACY_SSE)
    assert await end_of(answered(202), client, 1.0) == Unanswered("client_left")


async def end_of(flow: object, client: Client, age: float) -> Unanswered | None:
    told: asyncio.Queue[EndOf] = asyncio.Queue()
    looking = UnansweredRequests(KnownFlows(Listeners()), told.put_nowait)
    try:
        return (await told.get())(flow, client, age)
    finally:
        looking.close()
