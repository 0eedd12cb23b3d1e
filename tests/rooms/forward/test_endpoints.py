"""Forward proxies: endpoints are opened as clients use them, and known by their answers."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import pytest

from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.engine.service import Address
from mcp_tool_filter.core.engine.wire import RequestHead
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.policy.config import parse_config
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Site, Surroundings
from mcp_tool_filter.rooms.forward import endpoints as module
from mcp_tool_filter.rooms.forward.endpoints import Connection, Endpoints
from mcp_tool_filter.rooms.forward.passing import ForwardClient
from tests.core.engine.table import LIST, Client, Table, call
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import post
from tests.raw_upstream import answer
from tests.rows import each_row

AT = Address("upstream", 3000, is_tls=False)


def opened(**options: Any) -> Endpoints:
    tls = ssl.create_default_context
    proxy = Proxy(Surroundings(rooms=ROOMS, warn=print, report=print, leave=print, make_tls=tls))
    proxy.adopt(parse_config(deny=["^wipe"], **options))
    return Endpoints(proxy)


class Scene:
    def __init__(self, endpoints: Endpoints, tunnel: Address | None) -> None:
        self.endpoints, self.table = endpoints, Table()
        self.client = Client(self.table)
        self.client.engine = ForwardClient(Connection(endpoints, tunnel), self.client)


@pytest.mark.parametrize("tunnel", [AT, None])
async def test_a_url_to_which_mcp_is_sent_is_an_endpoint(tunnel: Address | None) -> None:
    scene = Scene(opened(), tunnel)
    url = "/mcp?key=1" if tunnel else "http://upstream:3000/mcp?key=1"
    scene.client.says(post(LIST, path=url))
    assert scene.table.link.got.startswith(b"POST /mcp?key=1 HTTP/1.1\r\nhost: upstream:3000\r\n")
    scene.table.link.says(answer(tool_list([tool("read"), tool("wipe")], id="1")))
    assert b'"wipe"' not in scene.client.taken()
    scene.client.says(post(call("wipe"), path=url))
    assert b"Tool not found: wipe" in scene.client.taken()
    assert scene.endpoints.urls == {"http://upstream:3000/mcp"}
    assert scene.endpoints.origins == {"http://upstream:3000"}
    assert scene.endpoints.has(Origin("upstream", 3000, False), "/mcp?key=2")
    assert [*scene.endpoints._proxy.sites] == ["http://upstream:3000/mcp"]


@each_row(("at", "in_tls", "host", "url", "address"), [
    ("upstream", None, b"a.test", "http://upstream:3000", ""),
    ("127.0.0.1", None, b"A.test:99", "http://a.test:3000", "127.0.0.1"),
    ("127.0.0.1", None, b"127.0.0.1", "http://127.0.0.1:3000", ""),
    ("127.0.0.1", None, b"[", "http://127.0.0.1:3000", ""),
    ("127.0.0.1", "a.test", b"b.test", "https://a.test:3000", ""),
    ("upstream", "a.test", b"b.test", "https://a.test:3000", ""),
])  # fmt: skip
async def test_a_server_has_the_name_that_the_client_uses(
    at: str, in_tls: str | None, host: bytes, url: str, address: str
) -> None:
    """Anybody can send a Host: so with one, another address is another server, with other tools.
    We ask where the client does, and name the server as the client does."""
    to = Address(at, 3000, is_tls=in_tls is not None)
    connection, scene = Connection(opened(), to, name=in_tls), Scene(opened(), to)
    site = connection.service_of(to, RequestHead("POST", "/mcp", ((b"Host", host),)))
    assert isinstance(site, Site)
    assert (site.target.url, site.target.address) == (url, address)
    if in_tls is None:
        scene.client.says(post(LIST).replace(b"localhost", host))
        assert f"\r\nhost: {url.partition('//')[2]}\r\n".encode() in scene.table.link.got


async def test_a_stored_login_is_not_for_the_clients_of_a_forward_proxy() -> None:
    assert not opened().site_of(Origin("upstream", 3000, False), "/mcp").target.uses_login


@pytest.mark.parametrize("target", [b"/mcp", b"https://upstream/mcp", b"ftp://x/", b"*"])
async def test_a_request_names_its_server(target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(opened(), None)
    caplog.set_level(logging.WARNING)
    scene.client.says(b"GET %b HTTP/1.1\r\nHost: upstream\r\n\r\n" % target)
    assert scene.client.got.startswith(b"HTTP/1.1 400 ")
    assert not scene.table.links
    assert "Closed a connection" in caplog.text


async def test_the_oldest_endpoint_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SITES", 2)
    endpoints, origin = opened(), Origin("upstream", 3000, False)
    first = endpoints.site_of(origin, "/1")
    endpoints.site_of(origin, "/2")
    assert endpoints.site_of(origin, "/1") is first
    endpoints.site_of(origin, "/3")
    assert [*endpoints._proxy.sites] == ["http://upstream:3000/1", "http://upstream:3000/3"]


async def test_endpoints_that_differ_in_their_query_have_sites_of_their_own() -> None:
    endpoints, origin = opened(), Origin("upstream", 3000, False)
    names = [endpoints.site_of(origin, target).name for target in ("/m?a", "/m?b", "/m?a")]
    assert names == ["http://upstream:3000/m", "http://upstream:3000/m (2)", names[0]]


async def test_a_changed_configuration_also_counts_for_other_traffic() -> None:
    endpoints = opened()
    before = endpoints.others.listener.config.limits.message
    endpoints._proxy.adopt(parse_config(deny=["^wipe"], message_limit="1KB"))
    connection = Connection(endpoints, AT)
    assert connection.others.listener.config.limits.message == 1024 < before
    assert connection.address_of(RequestHead("GET", "/", ())) == AT


async def test_a_tunnel_leads_where_connect_says_and_nowhere_within_a_tunnel() -> None:
    opened_to: list[tuple[Address, bytes]] = []
    client = Client(Table())
    connection = Connection(opened(), None, open_tunnel=lambda *to: opened_to.append(to))
    client.engine = ForwardClient(connection, client)
    client.says(b"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01")
    assert opened_to == [(Address("::1", 443, is_tls=False), b"\x16\x03\x01")]
    for target, tunnel in (("x:1", AT), ("/mcp", None), ("x", None), ("x:1/y", None)):
        inner = Scene(opened(), tunnel).client
        inner.says(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert not inner.is_open
