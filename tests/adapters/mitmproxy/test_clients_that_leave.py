"""A client that leaves is not a failure of the upstream, and HTTP/3 connections are closed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from tests.adapters.mitmproxy.streaming import Streaming, before
from tests.adapters.mitmproxy.upstream_failures import mute, ok, one_event
from tests.proxy import certified, proxy
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


async def test_http_3_connections_are_closed(tmp_path: Path) -> None:
    """mitmproxy would ask the upstream by QUIC, and we would take it for lost."""
    quic = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, idle_timeout=0.5
    )

    addon = Streaming()
    async with (
        raw_upstream(ok, tls=certified(tmp_path)) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
    ):
        with pytest.raises(ConnectionError):
            async with connect("127.0.0.1", running.port, configuration=quic):
                pass
        assert (addon.requests, addon.connects) == ([], 0)
        async with raw_client(running.port) as client:
            assert (await client.ask(get())).body == b"fine"


@contextmanager
def unreachable() -> Iterator[int]:
    """A port that neither accepts nor refuses: nobody takes connections from its full queue."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with closing(socket.create_connection(listener.getsockname())):
            yield listener.getsockname()[1]
