"""The proxy as a person starts it, with TLS on either side."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from mcp_tool_filter.cli.commands.demo import demo_upstream
from tests.cli.commands.proxying import CALL, LIST, TOOLS, ask, names_in, serving
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream
from tests.proxy import certified
from tests.raw_client import h2_client
from tests.raw_upstream import Peer, raw_upstream


async def test_no_certificate_is_made_for_plain_clients(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream, serving(upstream, tmp_path) as it:
        await ask(it.port, LIST)
        assert not (tmp_path / ".mitmproxy").exists()


async def test_a_client_can_use_tls_and_http2(tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path) as it,
        h2_client(it.port) as client,
    ):
        assert client is not None
        assert (tmp_path / ".mitmproxy" / "mitmproxy-ca.pem").exists()


async def test_a_client_with_tls_gets_the_configured_certificate(tmp_path: Path) -> None:
    certified(tmp_path)
    pem = tmp_path / "upstream-server.pem"

    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path, "--cert", str(pem)) as it,
    ):
        address = ("127.0.0.1", it.port)
        found = await asyncio.to_thread(ssl.get_server_certificate, address)
    assert found.strip() in pem.read_text()


async def test_an_upstream_with_tls_is_reachable_with_its_ca(tmp_path: Path) -> None:
    tls = certified(tmp_path)
    ca = str(tmp_path / "upstream-ca-cert.pem")

    async with demo_upstream(tls=tls) as upstream:
        url = upstream.url.replace("http:", "https:")
        async with launched("-u", url, "--ca", ca, "-d", "^file_", home=tmp_path) as it:
            await it.serving()
            assert "file_read" not in names_in(await ask(it.port, LIST))
            called = await ask(it.port, CALL % (1, b"web_search"))
            assert b"web_search was called" in called.body


async def test_an_unknown_certificate_is_answered_with_the_flag_for_it(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with (
        raw_upstream(script, tls=certified(tmp_path)) as upstream,
        launched("-u", upstream.url, "-d", "^rm", home=tmp_path) as it,
    ):
        assert await it.exit_code() == 1
        *_, why, hint = it.stderr.splitlines()
        assert why.startswith("certificate verify failed: ")
        assert hint.startswith("Hint: --ca FILE trusts its certificate")
