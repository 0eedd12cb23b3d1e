"""What is known of a flow between its hooks, and which requests wait for its answer."""

from __future__ import annotations

import gc

import pytest
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.http.head import Head
from tests.http.listening import listener, waiting_for
from tests.make import asking


@pytest.fixture
def known() -> KnownFlows:
    """What is known behind one listener."""
    listeners, door = Listeners(), listener()
    listeners.find_intercepted = lambda _flow: door
    return KnownFlows(listeners)


def test_a_new_flow_gets_an_exchange_without_waiting_requests(known: KnownFlows) -> None:
    flow = tflow()
    assert known.client_of(flow) is None
    found = known.of(flow)
    assert not found.exchange.waits
    assert known.of(flow) is found
    assert known.client_of(flow) is found.exchange.conversation.client


def test_a_finished_flow_is_forgotten(known: KnownFlows) -> None:
    flow = tflow()
    known.of(flow)
    assert len(known) == 1
    del flow
    gc.collect()
    assert len(known) == 0


@pytest.mark.parametrize(("method", "waits_here"), [("GET", True), ("POST", False)])
def test_a_post_of_the_older_transport_is_answered_on_its_stream_only(
    known: KnownFlows, method: str, waits_here: bool
) -> None:
    door, flow = listener(), tflow()
    exchange = waiting_for(door, asking("ping"))
    exchange.is_legacy = True
    exchange.head = Head(method, "/messages", ())
    known[flow] = Known(door, exchange)
    assert (known.client_of(flow) is not None) == waits_here
    assert known.socket_of(flow) is None
