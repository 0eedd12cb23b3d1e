"""Clients that leave: no failure of the upstream, and nothing that stays open."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.adapters.mitmproxy.forward.open_streams import endless
from tests.adapters.mitmproxy.forward.streaming import FIRST, Streaming, before
from tests.adapters.mitmproxy.forward.upstream_failures import mute, one_event
from tests.proxy import proxy
from tests.raw_client import get, h2_client, raw_client
from tests.raw_upstream import Script, raw_upstream

pytestmark = pytest.mark.usefixtures("our_error_answers")


@pytest.mark.parametrize("script", [mute, one_event])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_leaves_is_not_the_upstreams_fault(
    script: Script, how: str, tmp_path: Path
) -> None:
    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await addon.asked(1)
        getattr(client, how)()
        await addon.failed(1)
        assert addon.blamed == [False]


async def test_a_client_that_resets_its_stream_is_not_the_upstreams_fault(tmp_path: Path) -> None:
    """Its connection stays up, and mitmproxy's words are the same as for an upstream's reset."""

    addon = Streaming()
    async with before(mute, addon, tmp_path) as running, h2_client(running.port) as client:
        number = client.ask("GET")
        await addon.asked(1)
        client.reset(number)
        await addon.failed(1)
        assert addon.blamed == [False]


async def test_a_client_that_leaves_while_we_connect_is_not_the_upstreams_fault(
    tmp_path: Path,
) -> None:
    addon = Streaming()
    with unreachable() as port:
        to = f"http://127.0.0.1:{port}"
        async with proxy(addon, to=to, home=tmp_path) as running:
            async with raw_client(running.port) as client:
                await client.say(get())
                await addon.connecting(1)
            await addon.failed(1)
            assert (addon.blamed, addon.blamed_connects) == ([False], [False])


@contextmanager
def unreachable() -> Iterator[int]:
    """A port that neither accepts nor refuses: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with closing(socket.create_connection(listener.getsockname())):
            yield listener.getsockname()[1]


async def test_a_client_that_leaves_several_streams_leaves_none_open(tmp_path: Path) -> None:
    """mitmproxy cancels the task of each twice, and so the closing of its socket."""

    async def scenario() -> None:
        addon = Streaming()
        async with (
            raw_upstream(endless) as upstream,
            proxy(addon, to=upstream.url, home=tmp_path) as running,
        ):
            async with h2_client(running.port) as client:
                for number in [client.ask("GET") for _ in range(3)]:
                    await client.until(number, lambda it: FIRST in it.data)
            async with asyncio.timeout(20):
                for peer in upstream.peers:
                    await peer.gone.wait()

    with uncollected():
        await scenario()


@contextmanager
def uncollected() -> Iterator[None]:
    """The garbage collector would close the sockets in the end."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
