"""What the layers call before anything is installed, and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook
from mitmproxy.test import tflow

from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import (
    Installed,
    install_meter,
    install_resume,
    installed,
    use_shortcuts,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import FilteredHttpLayer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import choose_layer
from tests.proxy import proxy
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, answer, raw_upstream


@pytest.fixture(autouse=True)
def _as_at_the_start() -> Iterator[None]:
    """Install nothing, and put back afterwards what other tests have installed."""
    before = {field.name: getattr(installed, field.name) for field in fields(installed)}
    for field in fields(installed):
        setattr(installed, field.name, getattr(Installed(), field.name))
    yield
    for name, value in before.items():
        setattr(installed, name, value)


def test_without_shortcuts_every_hook_is_left_to_mitmproxy() -> None:
    flow = tflow.tflow()
    assert installed.http_layer is None
    assert installed.hook_runner(flow.client_conn)(HttpRequestHook(flow)) is False
    assert installed.resume(flow.client_conn) is False


def test_a_client_that_the_shortcut_does_not_know_has_its_hooks_left_to_mitmproxy() -> None:
    """A connection that was open before the shortcut was on has none."""
    known, other = tflow.tflow(), tflow.tflow()
    use_shortcuts(
        FilteredHttpLayer,
        lambda client: (lambda _hook: True) if client is known.client_conn else None,
    )
    assert installed.http_layer is FilteredHttpLayer
    assert installed.hook_runner(known.client_conn)(HttpRequestHook(known)) is True
    assert installed.hook_runner(other.client_conn)(HttpRequestHook(other)) is False


def test_the_installed_resume_is_asked() -> None:
    client = tflow.tflow().client_conn
    install_resume(lambda asked: asked is client)
    assert installed.resume(client) is True


class Choosing:
    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)


async def test_the_meter_counts_the_bytes_of_both_sides(tmp_path: Path) -> None:
    """A body that leaves is counted once more: its reader may be slow."""
    sizes: list[int] = []
    install_meter(sizes.append)
    request, response = post(b"{}"), answer(b"said")

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(response)

    async with (
        raw_upstream(script) as upstream,
        proxy(Choosing(), to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(request)
    assert sum(sizes) == len(request) + len(response) + len(b"said")
