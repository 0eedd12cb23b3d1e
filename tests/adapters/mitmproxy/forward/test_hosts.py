"""The host a client asks for, which mitmproxy overwrites, and what the upstream gets to see."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.streams import asked_hosts, client_host
from tests.adapters.mitmproxy.forward.streaming import Streaming
from tests.proxy import certified, proxy
from tests.raw_client import get, h2_client, raw_client, trusting
from tests.raw_upstream import Peer, answer, raw_upstream


async def ok(peer: Peer) -> None:
    while await peer.request():
        await peer.say(answer(b"fine"))


@dataclass
class Asking(Streaming):
    hosts: list[tuple[str, ...]] = field(default_factory=list)
    host: list[str | None] = field(default_factory=list)

    def requestheaders(self, flow: HTTPFlow) -> None:
        self.hosts.append(asked_hosts(flow))
        self.host.append(client_host(flow))


ASKED = [
    (get(headers=b"Host: evil.example\r\n"), ("evil.example",), "evil.example"),
    (get(headers=b"Host: LocalHost:80\r\n"), ("LocalHost:80",), "LocalHost:80"),
    (get(headers=b"Host: a\r\nhost: b\r\n"), ("a", "b"), None),
    (get(headers=b"Host: a\r\nhost: a\r\n"), ("a", "a"), "a"),
    (get(path="http://a/mcp", headers=b"Host: a\r\n"), ("a", "a"), "a"),
    (get(path="http://a/mcp", headers=b"Host: b\r\n"), ("a", "b"), None),
    (get(path="http://a/mcp", headers=b""), ("a",), "a"),
    (get(headers=b""), (), None),
]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("request_", "hosts", "host"), ASKED, ids=range(len(ASKED)))
async def test_every_requested_host_is_reported_as_the_client_sent_it(
    request_: bytes, hosts: tuple[str, ...], host: str | None, keep: bool, tmp_path: Path
) -> None:
    addon = Asking()
    async with (
        raw_upstream(ok) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, keep_host_header=keep) as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(request_)).status == 200
        assert (addon.hosts, addon.host) == ([hosts], [host])
        if not keep:
            assert upstream.requests[0].all("host") == [f"127.0.0.1:{upstream.port}"]


async def test_keep_host_header_passes_the_clients_host(tmp_path: Path) -> None:
    async with (
        raw_upstream(ok) as upstream,
        proxy(Asking(), to=upstream.url, home=tmp_path, keep_host_header=True) as running,
        raw_client(running.port) as client,
    ):
        await client.ask(get(headers=b"Host: kept.example\r\n"))
        assert upstream.requests[0].all("host") == ["kept.example"]


@pytest.mark.parametrize(
    ("authority", "header", "hosts", "host"),
    [
        ("evil.example", None, ("evil.example",), "evil.example"),
        ("a", b"a", ("a", "a"), "a"),
        ("a", b"b", ("a", "b"), None),
        (None, b"b", ("b",), "b"),
    ],
    ids=["authority", "both", "contradiction", "host"],
)
async def test_the_authority_of_http_2_is_checked_too(
    authority: str | None,
    header: bytes | None,
    hosts: tuple[str, ...],
    host: str | None,
    tmp_path: Path,
) -> None:
    addon = Asking()
    async with (
        raw_upstream(ok) as upstream,
        proxy(
            addon, to=upstream.url, home=tmp_path, validate_inbound_headers=header is None
        ) as running,
        h2_client(running.port) as client,
    ):
        headers = [(b"host", header)] if header else []
        stream = await client.over(client.ask("GET", authority=authority, headers=headers))
        assert stream.headers[b":status"] == b"200"
        assert (addon.hosts, addon.host) == ([hosts], [host])
        assert upstream.requests[0].all("host") == [f"127.0.0.1:{upstream.port}"]


@pytest.mark.parametrize("client_tls", [False, True])
async def test_an_https_upstream_is_verified_by_its_own_name(
    client_tls: bool, tmp_path: Path
) -> None:
    names: list[str | None] = []
    tls = certified(tmp_path)
    tls.sni_callback = lambda _socket, name, _context: names.append(name)

    async with (
        raw_upstream(ok, tls=tls) as upstream,
        proxy(
            Asking(),
            to=f"https://localhost:{upstream.port}",
            home=tmp_path,
            ssl_insecure=False,
            ssl_verify_upstream_trusted_ca=str(tmp_path / "upstream-ca-cert.pem"),
        ) as running,
        raw_client(running.port, tls=trusting() if client_tls else None) as c,
    ):
        answered = await c.ask(get(headers=b"Host: evil.example\r\n"))
        assert answered.status == 200
        assert names == ["localhost"]
        assert upstream.requests[0].all("host") == [f"localhost:{upstream.port}"]
