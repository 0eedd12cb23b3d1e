"""Forward proxies: a site for each named host, and where requests go."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.engine.service import Address
from mcp_tool_filter.core.engine.wire import Fault, RequestHead
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Site, Surroundings
from mcp_tool_filter.rooms.forward import sites as module
from mcp_tool_filter.rooms.forward.client import ForwardClient
from mcp_tool_filter.rooms.forward.hosts import NamedHosts
from mcp_tool_filter.rooms.forward.interception import TunnelWay, choose_way
from mcp_tool_filter.rooms.forward.sites import ForwardRoutes, Sites
from tests.core.engine.table import LIST, Client, Table, call
from tests.mcp_upstream import tool, tool_list
from tests.raw_client import post
from tests.raw_upstream import answer
from tests.rows import each_row

AT = Address("upstream", 3000, is_tls=False)
FORM = b"Content-Type: application/x-www-form-urlencoded\r\nHost: localhost\r\n"


def opened(**options: Any) -> Sites:
    tls = ssl.create_default_context
    proxy = Proxy(
        Surroundings(
            rooms=ROOMS, warn=print, render=render_report, report=print, leave=print, make_tls=tls
        )
    )
    proxy.adopt(parse_config(deny=["^wipe"], **{"hosts": ["upstream"], **options}))
    return Sites(proxy)


class Scene:
    def __init__(self, sites: Sites, tunnel: Address | None) -> None:
        self.sites, self.table = sites, Table()
        self.client = Client(self.table)
        self.client.engine = ForwardClient(ForwardRoutes(sites, tunnel), self.client)


def events(target: str = "/mcp") -> RequestHead:
    return RequestHead("GET", target, ((b"Accept", b"text/event-stream"),))


@pytest.mark.parametrize("tunnel", [AT, None])
async def test_a_named_host_is_a_reverse_proxy(tunnel: Address | None) -> None:
    """Its site has the name of the URL to which the first message is sent."""
    scene = Scene(opened(), tunnel)
    url = "" if tunnel else "http://upstream:3000"
    hosted = b"Host: upstream:3000\r\n"
    scene.client.says(post(LIST, path=f"{url}/mcp?key=1", headers=hosted))
    assert scene.table.link.got.startswith(b"POST /mcp?key=1 HTTP/1.1\r\nhost: upstream:3000\r\n")
    scene.table.link.says(answer(tool_list([tool("read"), tool("wipe")], id="1")))
    assert b'"wipe"' not in scene.client.taken()
    scene.client.says(post(call("wipe"), path=f"{url}/other", headers=hosted))
    assert b"Tool not found: wipe" in scene.client.taken()
    assert scene.sites.urls == {"http://upstream:3000/mcp", "http://upstream:3000/other"}
    assert [*scene.sites._proxy.sites] == ["http://upstream:3000/mcp"]


async def test_a_login_may_come_before_the_first_message() -> None:
    """It is no message, so its path is no endpoint; but a message in its form is one."""
    scene = Scene(opened(), AT)
    forms = FORM.replace(b"localhost", b"upstream")
    scene.client.says(post(b"grant_type=refresh_token", path="/token", headers=forms))
    assert scene.table.link.got.startswith(b"POST /token ")
    scene.table.link.says(answer(b"{}"))
    scene.client.taken()
    assert not scene.sites._proxy.sites
    scene.client.says(post(LIST, path="/token", headers=forms))
    scene.table.link.says(answer(tool_list([tool("read"), tool("wipe")], id="1")))
    assert b'"read"' in (got := scene.client.taken())
    assert b'"wipe"' not in got
    assert [*scene.sites._proxy.sites] == ["http://upstream:3000/token"]
    assert not scene.sites._proxy.more_services


@each_row(("at", "in_tls", "host", "url", "address"), [
    ("upstream", None, b"upstream", "http://upstream:3000", ""),
    ("127.0.0.1", None, b"A.test:99", "http://a.test:3000", "127.0.0.1"),
    ("127.0.0.1", None, b"127.0.0.1", "http://127.0.0.1:3000", ""),
    ("127.0.0.1", "a.test", b"a.test", "https://a.test:3000", "127.0.0.1"),
    ("127.0.0.1", "a.test", b"127.0.0.1", "https://a.test:3000", "127.0.0.1"),
])  # fmt: skip
async def test_a_server_has_the_name_that_the_client_uses(
    at: str, in_tls: str | None, host: bytes, url: str, address: str
) -> None:
    """Anybody can send a Host: so with one, another address is another server, with other tools.
    We ask where the client does, and name the server as the client does."""
    to = Address(at, 3000, is_tls=in_tls is not None)
    sites = opened(hosts=["upstream", "127.0.0.1", "a.test"])
    head = RequestHead("GET", "/mcp", (*events().fields, (b"Host", host)))
    site = ForwardRoutes(sites, to, name=in_tls).find(head).service
    assert isinstance(site, Site)
    assert (site.target.url, site.target.address) == (url, address)
    assert site.authority.decode() == url.partition("//")[2]


@each_row(("tunnel", "target", "fields"), [
    (AT, "/", ((b"Host", b"other"),)),
    (AT, "http://other/", ((b"Host", b"upstream"),)),
    (AT, "/", ((b"Host", b"upstream"), (b"Host", b"upstream"))),
    (AT, "/", ((b"Host", b"["),)),
    (None, "http://upstream\\@other/", ()), (None, "http://other\\@upstream/", ()),
    (None, "http://a@upstream/", ()), (AT, "http://upstream#@other/", ()),
    (None, "http://upstream:x/", ()), (None, "/mcp", ()),
    (None, "https://upstream/mcp", ()), (None, "ftp://x/", ()), (None, "*", ()),
])  # fmt: skip
async def test_a_request_that_names_no_server_or_two_is_refused(
    tunnel: Address | None, target: str, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    with pytest.raises(Fault):
        ForwardRoutes(opened(), tunnel).find(RequestHead("GET", target, fields))


@each_row(("tunnel", "target", "host", "is_filtered"), [
    (None, "http://mcp.example/", "x", True), (None, "http://other.example/", "mcp.example", False),
    (None, "http://10.0.0.1/", "x", True), (None, "http://10.0.0.2/", "mcp.example", False),
    ("10.0.0.1", "/", "other.example", True), ("10.0.0.2", "/", "other.example", False),
    ("10.0.0.2", "/", "mcp.example", True), ("10.0.0.3", "/", "other.example", True),
])  # fmt: skip
async def test_a_request_is_filtered_by_any_of_its_servers_names(
    tunnel: str | None, target: str, host: str, is_filtered: bool
) -> None:
    """Of what is not in a tunnel, the URL is the only one."""
    sites = opened(hosts=["mcp.example", "10.0.0.3"])
    sites.hosts.note_place("10.0.0.1", 80)
    to = Address(tunnel, 80, is_tls=False) if tunnel else None
    head = RequestHead("GET", target, ((b"Host", host.encode()),))
    assert (ForwardRoutes(sites, to).find(head).service is not None) is is_filtered


async def test_a_stored_login_is_not_for_the_clients_of_a_forward_proxy() -> None:
    site = opened().service_of(Origin("upstream", 3000, False), events())
    assert isinstance(site, Site)
    assert not site.target.uses_login


async def test_the_oldest_site_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SITES", 2)
    sites = opened()
    first, *_ = [sites.service_of(Origin(name, 80, False), events()) for name in "ab"]
    assert sites.service_of(Origin("a", 80, False), events()) is first
    sites.service_of(Origin("c", 80, False), events())
    assert [*sites._proxy.sites] == ["http://a/mcp", "http://c/mcp"]


async def test_a_changed_configuration_also_counts_for_other_traffic() -> None:
    sites = opened()
    before = sites.others.listener.config.limits.message
    sites._proxy.adopt(parse_config(deny=["^wipe"], message_limit="1KB", hosts=["other"]))
    assert ForwardRoutes(sites, AT).others.listener.config.limits.message == 1024 < before
    assert ForwardRoutes(sites, AT).find(RequestHead("GET", "/", ())) == (AT, None, None, ())


async def test_a_tunnel_leads_where_connect_says_and_nowhere_within_a_tunnel() -> None:
    opened_to: list[tuple[Address, bytes]] = []
    client = Client(Table())
    routes = ForwardRoutes(opened(), None, open_tunnel=lambda *to: opened_to.append(to))
    client.engine = ForwardClient(routes, client)
    client.says(b"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01")
    assert opened_to == [(Address("::1", 443, is_tls=False), b"\x16\x03\x01")]
    for target, tunnel in (("x:1", AT), ("/mcp", None), ("x", None), ("x:1/y", None)):
        inner = Scene(opened(), tunnel).client
        inner.says(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert not inner.is_open


# Which hosts are named, and what the first bytes of a tunnel say


@each_row(("named", "host", "port", "is_named"), [
    ("mcp.example", "MCP.example.", 443, True), ("mcp.example", "xmcp.example", 443, False),
    ("mcp.example", "a.mcp.example", 443, False), ("mcp.example:444", "mcp.example", 443, False),
    ("mcp.example:444", "mcp.example", 444, True),
    ("127.0.0.1", "127.0.0.1", 80, True), ("127.0.0.1", "0x7f.1", 80, True),
    ("127.0.0.1", "::ffff:127.0.0.1", 80, True), ("127.0.0.1", "0.0.0.0", 80, True),
    ("::1", "[::1]", 80, True), ("[::1]:81", "::1", 80, False),
    ("b\u00fccher.example", "xn--bcher-kva.example", 80, True),
    ("xn--bcher-kva.example", "B\u00dcCHER.example", 80, True),
    ("localhost:80", "127.0.0.1", 80, True), ("localhost:80", "127.0.0.1", 81, False),
    ("localhost", "127.0.0.1", 80, False),  # as long as nobody has used this port
])  # fmt: skip
def test_a_host_is_named_in_any_spelling(named: str, host: str, port: int, is_named: bool) -> None:
    assert NamedHosts([named]).has(host, port) is is_named


async def test_the_addresses_of_a_name_are_looked_up() -> None:
    hosts = NamedHosts(["localhost", "no-such-host.invalid", "10.0.0.1"])
    await hosts.look_up()
    assert hosts.has("127.0.0.1", 443)
    assert not hosts.has("127.0.0.1", 3000)
    hosts.note_place("127.0.0.1", 3000)
    assert hosts.has("127.0.0.1", 3000)
    hosts.note_place("192.0.2.1", 443)
    assert hosts.is_at("192.0.2.1")


def hello(sni: str | None) -> bytes:
    """Return what a client of TLS sends first."""
    sent, own = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.check_hostname = False
    tls = own.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=sni)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def asking(host: str, more: str = "") -> bytes:
    return f"GET / HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


ENGINE, RAW, CLOSED = TunnelWay.ENGINE, TunnelWay.RAW, TunnelWay.CLOSED
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"


@each_row(("to", "first", "way"), [
    # To a named host, all is framed, also what the engine then refuses.
    ("mcp.example", hello("mcp.example"), ENGINE), ("mcp.example", hello(None), ENGINE),
    ("mcp.example", asking("x"), ENGINE), ("mcp.example", b"SSH-2.0-x\r\n", ENGINE),
    ("mcp.example", hello("other.example"), CLOSED),
    # To another name, nothing that claims to be for a named host.
    ("other.example", hello("other.example"), RAW), ("other.example", hello(None), RAW),
    ("other.example", hello("cdn.example"), RAW), ("other.example", hello("MCP.example"), CLOSED),
    ("other.example", asking("other.example"), RAW),
    ("other.example", asking("mcp.example"), CLOSED),
    ("other.example", b"GET http://mcp.example/ HTTP/1.1\r\nHost: x\r\n\r\n", CLOSED),
    ("other.example", asking("other.example", UPGRADE), RAW),
    ("other.example", b"SSH-2.0-x\r\n", RAW),
    ("other.example", b"\x16\x03\x05" + bytes(90), CLOSED),
    ("other.example", b"\x16\x04\x01" + bytes(90), RAW),
    # An address has the name that the client gives in TLS or in a request.
    ("10.0.0.9", hello("mcp.example"), ENGINE), ("10.0.0.9", hello("other.example"), RAW),
    ("10.0.0.9", hello(None), RAW), ("10.0.0.9", asking("other.example"), ENGINE),
    ("10.0.0.9", asking("other.example", UPGRADE), RAW), ("10.0.0.9", b"SSH-2.0-x\r\n", RAW),
    ("10.0.0.9", b"GET / HTTP/1.1\nHost: mcp.example\n\n", ENGINE),
    ("10.0.0.9", b"OPTIONS rtsp://x RTSP/1.0\r\n\r\n", RAW),
    # An address of a named host has no other name that the client chooses.
    ("10.0.0.1", hello("mcp.example"), ENGINE), ("10.0.0.1", hello(None), ENGINE),
    ("10.0.0.1", hello("other.example"), CLOSED), ("10.0.0.1", asking("other.example"), ENGINE),
    ("10.0.0.1", asking("other.example", UPGRADE), ENGINE), ("10.0.0.1", b"SSH-2.0-x\r\n", CLOSED),
])  # fmt: skip
def test_the_first_bytes_of_a_tunnel_decide(to: str, first: bytes, way: TunnelWay) -> None:
    """However they are cut: what is not enough decides nothing."""
    hosts, at = NamedHosts(["mcp.example"]), Address(to, 443, is_tls=False)
    hosts.note_place("10.0.0.1", 443)
    choice = choose_way(hosts, at, first)
    assert choice
    assert choice.way is way
    for end in range(1, len(first), max(1, len(first) // 50)):
        early = choose_way(hosts, at, first[:end])
        assert early is None or early.way is way


def test_many_hosts_share_an_address_that_a_system_has_looked_up() -> None:
    """Only a client that names the address itself must not call it by another name."""
    hosts, at = NamedHosts(["mcp.example"]), Address("10.0.0.1", 443, is_tls=False)
    hosts.note_place("10.0.0.1", 443)
    choice = choose_way(hosts, at, hello("other.example"), is_chosen=False)
    assert choice
    assert choice[:2] == (RAW, "other.example")


def test_a_hello_that_does_not_end_is_closed() -> None:
    hosts, at = NamedHosts(["mcp.example"]), Address("other.example", 443, is_tls=False)
    piece = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(0x3FFC)
    more = b"\x16\x03\x01\x40\x00" + bytes(0x4000)
    assert choose_way(hosts, at, piece) is None
    choice = choose_way(hosts, at, piece + more * 4)
    assert choice
    assert choice.way is CLOSED
