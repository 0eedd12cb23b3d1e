"""One client connection after something has gone wrong on it, and with many requests at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy import events
from mitmproxy.proxy.layer import NextLayer

from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import FilteredHttpLayer, http_layer_of
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import choose_layer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream
from tests.proxy import proxy
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, answer, free_port, raw_upstream


class Answering:
    """Answers paths that begin with /ours itself."""

    def __init__(self) -> None:
        self.flows: list[HTTPFlow] = []

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def request(self, flow: HTTPFlow) -> None:
        self.flows.append(flow)
        if flow.request.path.startswith("/ours"):
            flow.response = Response.make(200, flow.request.path)


async def echo_paths(peer: Peer) -> None:
    while True:
        request = await peer.request()
        await peer.say(answer(request.line.split(" ")[1].encode()))


async def test_a_layer_is_found_by_its_client(tmp_path: Path) -> None:
    addon = Answering()
    async with (
        raw_upstream(echo_paths) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(post(b"{}"))
        (flow,) = addon.flows
        assert isinstance(http_layer_of(flow.client_conn), FilteredHttpLayer)


async def test_requests_sent_at_once_are_answered_in_order(tmp_path: Path) -> None:
    """Far more than are read in one go; some we answer ourselves, some the upstream."""
    paths = [f"/ours{number}" if number % 3 else f"/theirs{number}" for number in range(100)]
    async with (
        raw_upstream(echo_paths) as upstream,
        proxy(Answering(), to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.say(b"".join(post(b"{}", path=path) for path in paths))
        assert [(await client.answer()).body.decode() for _ in paths] == paths


@pytest.mark.usefixtures("our_error_answers")
async def test_an_upstream_that_is_back_is_reached_on_the_same_client_connection(
    tmp_path: Path,
) -> None:
    """mitmproxy would let every later request fail with the error of the first."""
    port = free_port()
    async with (
        proxy(Answering(), to=f"http://127.0.0.1:{port}", home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(post(b"{}"))).body == b"ours: connect-failed"
        async with raw_upstream(echo_paths, port=port):
            assert (await client.ask(post(b"{}", path="/back"))).body == b"/back"


@pytest.mark.parametrize("side", ["client", "upstream"])
async def test_an_internal_error_leaves_no_client_waiting(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is closed, and the next one works."""
    usual = SafeStream.handle_event
    broken: list[events.Event] = []

    def handle_event(self: SafeStream, event: events.Event) -> object:
        name = type(event).__name__
        if not broken and name.startswith("Request" if side == "client" else "Response"):
            broken.append(event)
            raise ZeroDivisionError("a bug")
        return usual(self, event)

    monkeypatch.setattr(SafeStream, "handle_event", handle_event)
    async with (
        raw_upstream(echo_paths) as upstream,
        proxy(Answering(), to=upstream.url, home=tmp_path) as running,
    ):
        async with raw_client(running.port) as client:
            await client.say(post(b"{}"))
            said = await client.rest()
            assert b" 200 " not in said.partition(b"\r\n")[0]
        async with raw_client(running.port) as client:
            assert (await client.ask(post(b"{}", path="/next"))).body == b"/next"
    assert broken
    assert caplog.messages.count("internal error: cannot continue with a connection") == 1
