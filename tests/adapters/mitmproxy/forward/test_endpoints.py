"""Forward proxies: which URLs are MCP endpoints, and by which listener each is judged."""

from __future__ import annotations

import pytest
from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.forward import endpoints
from mcp_tool_filter.adapters.mitmproxy.forward.endpoints import Endpoints
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.http.listener import Listener

SERVER = "http://server.example"


def flow_to(url: str, status: int = 200) -> HTTPFlow:
    return tflow(req=Request.make("POST", url), resp=Response.make(status))


@pytest.fixture
def attached() -> list[Listener]:
    return []


@pytest.fixture
def known(attached: list[Listener]) -> Endpoints:
    return Endpoints(Listeners(), attached.append)


def test_each_url_has_a_listener_of_its_own(known: Endpoints, attached: list[Listener]) -> None:
    one = known.listener_of(flow_to(f"{SERVER}/mcp"))
    assert known.listener_of(flow_to(f"{SERVER}/mcp")) is one
    other = known.listener_of(flow_to(f"{SERVER}/other"))
    assert other is not one
    assert attached == [one, other]
    assert one.is_forward
    assert known.urls == {f"{SERVER}/mcp", f"{SERVER}/other"}


def test_shown_urls_have_no_query(known: Endpoints) -> None:
    known.listener_of(flow_to(f"{SERVER}/mcp?token=secret"))
    assert known.urls == {f"{SERVER}/mcp"}


@pytest.mark.parametrize(("status", "is_endpoint"), [(200, True), (202, True), (404, False)])
def test_an_endpoint_is_known_once_it_has_answered_well(
    known: Endpoints, status: int, is_endpoint: bool
) -> None:
    known.note_answer(flow_to(f"{SERVER}/mcp?a", status))
    assert known.has(SERVER, "/mcp") is is_endpoint
    assert known.has(SERVER, "/mcp?b") is is_endpoint
    assert not known.has(SERVER, "/other")
    assert not known.has("http://other.example", "/mcp")


def test_the_least_recently_used_listener_is_forgotten(
    known: Endpoints, attached: list[Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_LISTENERS", 2)
    one, two = (known.listener_of(flow_to(f"{SERVER}/{name}")) for name in ("one", "two"))
    assert known.listener_of(flow_to(f"{SERVER}/one")) is one
    known.listener_of(flow_to(f"{SERVER}/three"))
    assert known.listener_of(flow_to(f"{SERVER}/one")) is one
    assert known.listener_of(flow_to(f"{SERVER}/two")) is not two
    assert len(known._listeners.by_mode) == 2


def test_the_number_of_endpoints_is_bounded(
    known: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_ENDPOINTS", 2)
    for name in ("one", "two", "three"):
        known.note_answer(flow_to(f"{SERVER}/{name}"))
        known.listener_of(flow_to(f"{SERVER}/{name}"))
    assert [known.has(SERVER, f"/{name}") for name in ("one", "two", "three")] == [
        False, True, True,
    ]  # fmt: skip
    assert len(known.urls) == 2
