"""mitmproxy's regular, upstream, transparent, SOCKS and local modes: what is filtered there.

A client connects to us as its proxy, or is redirected to us. Whatever mitmproxy or another addon
would choose for it, the connection gets a ``ForwardLayer``. In a tunnel that one looks at the first
bytes of the client, and takes one of these ways:

    ENGINE    a named host: TLS with our certificate if the client speaks TLS, and the engine in it
    RAW       any other host: mitmproxy moves the bytes, and nobody reads them
    CLOSED    the client has given two names, and one of them is that of a named host

A tunnel has up to three names: that of CONNECT (or of the redirected connection, an address), that
of TLS, and that of the first request. The engine compares those of all later requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from mitmproxy import ctx
from mitmproxy.connection import Connection, Server
from mitmproxy.http import Headers, HTTPFlow, Request
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import ClientTLSLayer, ServerTLSLayer, TCPLayer, UDPLayer
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy.proxy.layers.tls import parse_client_hello
from mitmproxy.proxy.mode_servers import LocalRedirectorInstance, ServerInstance
from mitmproxy.proxy.mode_specs import (
    LocalMode,
    ProxyMode,
    RegularMode,
    ReverseMode,
    UpstreamMode,
)
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.proxy.tunnel import TunnelLayer
from mitmproxy.tls import ClientHelloData, TlsData
from mitmproxy_rs.local import LocalRedirector

from mcp_tool_filter.core.engine.service import Address, Asking
from mcp_tool_filter.core.engine.wire import Fault, RequestHead, RequestWire
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.core.http.head import values_of
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.sentences import Once
from mcp_tool_filter.core.sockets.connect import ProxyHop
from mcp_tool_filter.rooms.forward.client import ForwardClient, Forwarded, Unread
from mcp_tool_filter.rooms.forward.hosts import NamedHosts, are_same, is_address
from mcp_tool_filter.rooms.forward.sites import MOST_URLS, ForwardRoutes, Sites, host_in
from mcp_tool_filter.rooms.mitmproxy.connections import Newcomer
from mcp_tool_filter.rooms.mitmproxy.layer import EngineLayer, Orders, RefusingLayer, Seat
from mcp_tool_filter.rooms.mitmproxy.options import FORWARD_MODES
from mcp_tool_filter.rooms.mitmproxy.shown import ShownExchange

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.process.limits import Holder
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.rooms.mitmproxy.flows import Flows

log = logging.getLogger(__name__)

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_ASKS = (b"proxy-authenticate", b"www-authenticate")
_SHORTEST_QUIC, _DNS = 18, 53
_REFUSED = {
    "upstream_headers": "upstream_headers",
    "paths": "only_mcp",
    "endpoint": "endpoint",
}
"""Options that concern a single upstream, and their names in ``Config``."""


def refuse_options(config: Config, *, needs_hosts: bool = True) -> None:
    """Raise StartError for an option that concerns a single upstream, and if no host is named:
    nothing would be filtered."""
    for name, field in _REFUSED.items():
        if getattr(config, field):
            why = "It is for a single upstream, but a forward proxy has many. Leave it out."
            raise InvalidOption(name, "…", why=why)
    if needs_hosts and not config.hosts:
        why = "Name the hosts of your MCP servers: --set hosts=mcp.example,localhost:3000"
        raise StartError("A forward proxy filters named hosts only, and none is named", why=why)


# The ways of a tunnel


class TunnelWay(Enum):
    ENGINE = auto()
    RAW = auto()
    CLOSED = auto()


class TunnelChoice(NamedTuple):
    """What becomes of a tunnel."""

    way: TunnelWay
    host: str = ""
    """The server's name, for a report."""
    sni: str | None = None
    """Its name in TLS."""
    is_tls: bool = False


_TLS = b"\x16\x03"
_LONGEST_HELLO = 1 << 16
_LIKE_HTTP = re.compile(rb"\s*[!-~]{1,64}[ \t]+[!-~]+[ \t]+HTTP/1", re.IGNORECASE)


def choose_way(
    hosts: NamedHosts, to: Address, first: bytes, *, is_chosen: bool = True
) -> TunnelChoice | None:
    """Choose by the first bytes of a tunnel; None if more are needed.

    ``is_chosen`` if the client has chosen an address, instead of a system that has looked it up:
    then an address of a named host must not be called by another name.

    >>> hosts, github = NamedHosts(["mcp.example"]), Address("github.com", 22, False)
    >>> choose_way(hosts, github, b"SSH-2.0-x\\r\\n").way
    <TunnelWay.RAW: 2>
    >>> choose_way(hosts, github, b"GET / HTTP/1.1\\r\\nHost: mcp.example\\r\\n\\r\\n").way
    <TunnelWay.CLOSED: 3>
    """
    if len(first) < len(_TLS) and _TLS.startswith(first):
        return None
    if first.startswith(_TLS):
        return _way_of_tls(hosts, to, first, is_chosen=is_chosen)
    if hosts.has(to.host, to.port):
        return TunnelChoice(TunnelWay.ENGINE)
    is_there = hosts.is_at(to.host)
    wire = RequestWire()
    wire.receive(first)
    try:
        head = wire.next()
        said = host_in(head) if isinstance(head, RequestHead) else ""
    except Fault:
        # The engine refuses what it cannot read, but some server might.
        like_http = is_address(to.host) and _LIKE_HTTP.match(first)
        return TunnelChoice(
            TunnelWay.ENGINE if like_http else TunnelWay.CLOSED if is_there else TunnelWay.RAW,
            to.host,
        )
    if head is None:
        return None
    assert isinstance(head, RequestHead)
    is_named = bool(said) and hosts.has(said, to.port)
    if not is_address(to.host):
        return TunnelChoice(TunnelWay.CLOSED if is_named else TunnelWay.RAW, to.host)
    is_unread = values_of(head.fields, b"upgrade") and not (is_named or is_there)
    return TunnelChoice(TunnelWay.RAW if is_unread else TunnelWay.ENGINE, said or to.host)


def _way_of_tls(
    hosts: NamedHosts, to: Address, first: bytes, *, is_chosen: bool
) -> TunnelChoice | None:
    try:
        hello = parse_client_hello(first)
    except ValueError:
        return TunnelChoice(TunnelWay.CLOSED, to.host)
    if hello is None:
        return None if len(first) < _LONGEST_HELLO else TunnelChoice(TunnelWay.CLOSED, to.host)
    sni, is_named = hello.sni or "", hosts.has(to.host, to.port)
    is_named_so = bool(sni) and hosts.has(sni, to.port)
    if is_address(to.host):  # which has no name but that in TLS
        is_there = hosts.is_at(to.host)
        if is_named or is_named_so or (is_there and not sni):
            return TunnelChoice(TunnelWay.ENGINE, sni or to.host, sni or None, is_tls=True)
        return TunnelChoice(
            TunnelWay.CLOSED if is_there and is_chosen else TunnelWay.RAW, sni or to.host
        )
    if sni and (is_named or is_named_so) and not are_same(sni, to.host):
        return TunnelChoice(TunnelWay.CLOSED, to.host)
    return TunnelChoice(
        TunnelWay.ENGINE if is_named else TunnelWay.RAW, to.host, sni or None, is_tls=True
    )


class ForwardLayer(EngineLayer):
    """A client's connection to us as a proxy, or a tunnel through it.

    It is the host of the engine for requests, and it looks into a tunnel. What is in the tunnel is
    the ``inner`` layer.
    """

    def __init__(
        self,
        context: Context,
        interception: Interception,
        *,
        tunnel: Address | None = None,
        sni: str | None = None,
        to: Address | None = None,
    ) -> None:
        """``tunnel`` is where the connection leads, and ``sni`` its name in TLS; ``to`` is where a
        tunnel leads at which nobody has looked yet."""
        super().__init__(context, interception.sites.others, interception.flows)
        self._interception, self._tunnel, self._to, self._sni = interception, tunnel, to, sni
        self._via = partial(interception.via, context.client.proxy_mode)
        self._routes = ForwardRoutes(
            interception.sites,
            tunnel,
            open_tunnel=self._open_tunnel,
            via=self._via,
            admit=self._admit,
            name=sni,
        )
        self.inner: layer.Layer | None = None
        self._has_chosen = False
        self._first = bytearray()
        """What the client has sent in the tunnel, until we know its way."""
        self._before: set[Connection] = set()
        """The connections of the requests before the tunnel, which are closed."""

    def _handle_event(self, event: events.Event) -> Orders:
        if self._to is not None and self._is_of_requests(event):
            yield from super()._handle_event(event)
        elif self._has_chosen and self.inner is not None:
            yield from self.inner.handle_event(event)
        elif self._to is not None:
            yield from self._look_into_tunnel(self._to, event)
        else:
            yield from super()._handle_event(event)
            yield from self._enter_tunnel()

    def _is_of_requests(self, event: events.Event) -> bool:
        """Tell whether an event belongs to the requests before the tunnel, and not into it."""
        match event:
            case events.ConnectionEvent():
                return event.connection in self._before
            case events.CommandCompleted():
                return event.command in self._waiting or event.command in self._from_tls
        return False

    def _open_client(self) -> H1Client:
        return ForwardClient(self._routes, self)

    def owner_of(self, server: Server) -> EngineLayer | None:
        inner = (one for one in _inside(self.inner) if isinstance(one, EngineLayer))
        owners = (super().owner_of(server), *(one.owner_of(server) for one in inner))
        return next(filter(None, owners), None)

    def holders(self) -> Iterator[Holder]:
        """Yield the clients of this connection and of its tunnels, for the memory budget."""
        yield from super().holders()
        for one in (self, *_inside(self.inner)):
            if isinstance(one, ForwardLayer) and isinstance(one._client, ForwardClient):
                yield one._client

    def tick(self, now: float) -> None:
        super().tick(now)
        for one in _inside(self.inner):
            if isinstance(one, EngineLayer):
                one.tick(now)

    def point(self, name: str, exchange: ShownExchange, go_on: Callable[[], None]) -> None:
        """Show the exchange's own server, since there are many."""
        if exchange.flow is None and isinstance(exchange, Forwarded):
            at = exchange.route.at
            self.service = exchange.service
            self.context.server = Server(address=(at.host, at.port), tls=at.is_tls)
        super().point(name, exchange, go_on)

    # The proxy behind us

    def _admit(self, head: RequestHead) -> None:
        """Ask mitmproxy's option ``proxyauth``. Raises Fault for a client without a login."""
        logins = ctx.master.addons.get("proxyauth")
        if logins is None or not getattr(ctx.options, "proxyauth", None):
            return
        flow = HTTPFlow(self.context.client, self.context.server)
        flow.request = Request.make(head.method, "http://localhost/", headers=Headers(head.fields))
        if not logins.authenticate_http(flow):
            assert flow.response
            asking = [field for field in flow.response.headers.fields if field[0].lower() in _ASKS]
            raise Fault("a client without a login to this proxy", 407, tuple(asking))
        logins.authenticated[self.context.client] = flow.metadata["proxyauth"]

    def _address_for(self, exchange: Asking) -> Address:
        if exchange.address is None and isinstance(exchange, Forwarded | Unread):
            return exchange.route.next
        return super()._address_for(exchange)

    def _wrap(self, server: Server) -> None:
        """Ask the proxy for a tunnel, unless it gets the request itself."""
        if server.tls and self._sni:
            server.sni = self._sni  # a client may know the name, and we the address
        if self._tunnel is None or not self._lead_through_proxy(server):
            return super()._wrap(server)
        context = self.context.fork()
        context.server = server
        seat = Seat(context, self._take)
        within: layer.Layer = seat
        if server.tls:
            within = tls = ServerTLSLayer(context)
            tls.child_layer = seat
        stack = _through_proxy(context, within)
        self._tls[server] = self._tls[stack.tunnel_connection] = stack, seat
        return None

    def _lead_through_proxy(self, server: Server) -> bool:
        """Name the proxy behind us that leads to a server; False if we reach it without one."""
        via = self._via(str((server.address or ("",))[0]))
        if via is not None:
            server.via = "https" if via.origin.tls else "http", (via.origin.host, via.origin.port)
        return via is not None

    # Tunnels

    def _open_tunnel(self, to: Address, ahead: bytes) -> None:
        if self._client is not None:  # what is in the tunnel has a client of its own
            self._client.gone()
        if (seats := self.service.seats) is not None:
            seats.enter(Newcomer(self.context.client))
        self._before = {*self._upstreams, *self._tls}
        for server in list(self._upstreams):
            self._drop(server)
        self._to = to
        self._first += ahead
        self.send(_ESTABLISHED)

    def _enter_tunnel(self) -> Orders:
        if self._to is not None:
            yield from self._look_into_tunnel(self._to, events.Start())

    def _look_into_tunnel(self, to: Address, event: events.Event) -> Orders:
        """Choose a way by the first bytes of a tunnel.

        Where these cannot make it one to a named host, the server is connected at once: it may be
        the one that speaks first.
        """
        try:
            match event:
                case events.Start():
                    hosts = self._interception.sites.hosts
                    if not (hosts.has(to.host, to.port) or is_address(to.host)):
                        yield from self._open_raw(to)
                    yield from self._choose(to)
                case events.DataReceived() if event.connection is self.context.client:
                    self._first += event.data
                    yield from self._choose(to)
                case events.ConnectionClosed() if event.connection is self.context.client and (
                    self._first or self.inner is None
                ):  # what it has said so far has no meaning
                    yield commands.CloseConnection(self.context.client)
                case _ if self.inner is not None:
                    yield from self.inner.handle_event(event)
        except Exception:
            log.exception("internal error; connection closed")
            yield commands.CloseConnection(self.context.client)

    def _choose(self, to: Address) -> Orders:
        is_chosen = isinstance(self.context.client.proxy_mode, RegularMode | UpstreamMode)
        sites, first = self._interception.sites, bytes(self._first)
        choice = choose_way(sites.hosts, to, first, is_chosen=is_chosen) if first else None
        if choice is None:
            return
        self._has_chosen = True
        self._first.clear()
        if choice.way is TunnelWay.CLOSED:
            self.inner = RefusingLayer(self.context)
            yield from self.inner.handle_event(events.Start())
            return
        if choice.way is TunnelWay.RAW:
            sites.note_unread(choice.host)
            if self.inner is None:
                yield from self._open_raw(to)
            self._keep_seat()
        else:
            yield from self._open_engine(to, choice)
        assert self.inner is not None
        yield from self.inner.handle_event(events.DataReceived(self.context.client, first))

    def _open_raw(self, to: Address) -> Orders:
        """Let the bytes of a tunnel pass."""
        context = self.context.fork()
        server = context.server = Server(address=(to.host, to.port))
        self._interception.unread.add(server)
        inner: layer.Layer = TCPLayer(context, ignore=True)
        if self._lead_through_proxy(server):
            inner = stack = _through_proxy(context, inner)
            self._interception.unread.add(stack.tunnel_connection)
        yield from self._begin(inner)

    def _open_engine(self, to: Address, choice: TunnelChoice) -> Orders:
        """Filter a tunnel."""
        context, interception = self.context.fork(), self._interception
        tunnel = Address(to.host, to.port, is_tls=choice.is_tls)
        context.server = Server(address=(to.host, to.port), tls=choice.is_tls)
        tls = ClientTLSLayer(context) if choice.is_tls else None
        engine = ForwardLayer(context, interception, tunnel=tunnel, sni=choice.sni)
        if tls is not None:
            tls.child_layer = engine
        yield from self._begin(tls or engine)

    def _begin(self, inner: layer.Layer) -> Orders:
        self.inner = inner
        yield from inner.handle_event(events.Start())

    def _keep_seat(self) -> None:
        """Let a client have its seat as long as it likes: the engine does not see what it says."""
        if (seats := self.service.seats) is not None:
            seats.keep(Newcomer(self.context.client))


def _through_proxy(context: Context, within: layer.Layer) -> TunnelLayer:
    """Return the layers of a tunnel through the proxy behind us, around another layer."""
    stack = HttpUpstreamProxy.make(context, True)[0]
    assert isinstance(stack, TunnelLayer)
    inner: TunnelLayer = stack
    while isinstance(inner.child_layer, TunnelLayer):
        inner = inner.child_layer
    inner.child_layer = within
    return stack


def _inside(inner: layer.Layer | None) -> list[layer.Layer]:
    """Return the layers within a layer."""
    found: list[layer.Layer] = []
    while inner is not None:
        found.append(inner)
        inner = getattr(inner, "child_layer", None) or getattr(inner, "inner", None)
    return found


class Interception:
    """What the forward proxies of the process share. It is an addon."""

    def __init__(self, proxy: Proxy, flows: Flows) -> None:
        self._proxy, self.flows = proxy, flows
        self.sites = Sites(proxy)
        self.unread: WeakSet[Connection] = WeakSet()
        """The connections to servers of tunnels that nobody reads."""
        self.refused_tls: set[str] = set()
        """Hosts for which a client did not accept our certificate."""
        self._not_trusted = Once(MOST_URLS)
        self._told: set[str] = set()
        self._watch: asyncio.Future[None] | None = None  # watches local mode
        self.is_direct: Callable[[str], bool] = lambda _host: False
        """Tells whether the proxy behind us is left out for a host."""
        self._tls: ssl.SSLContext | None = None  # towards the proxy behind us

    def via(self, mode: ProxyMode, host: str) -> ProxyHop | None:
        """Return the proxy behind us that leads to a host; None if we reach it without one."""
        if not isinstance(mode, UpstreamMode) or self.is_direct(host):
            return None
        if mode.scheme == "https" and self._tls is None:
            self._tls = self._proxy.around.make_tls()
        at = Origin(*mode.address, mode.scheme == "https")
        login = getattr(ctx.options, "upstream_auth", None)  # our own
        basic = b"Basic " + b64encode(login.encode()) if login else None
        return ProxyHop(at, self._tls if at.tls else None, basic)

    async def begin(self) -> None:
        """Start, and report where clients are served. Raises StartError."""
        report, server = self._proxy.around.report, ctx.master.addons.get("proxyserver")
        await self.sites.hosts.look_up()
        for instance in server.servers if server else ():
            if (
                not isinstance(instance.mode, FORWARD_MODES)
                or instance.mode.full_spec in self._told
            ):
                continue
            self._told.add(instance.mode.full_spec)
            named = ", ".join(self._proxy.config.hosts) or "none"
            if isinstance(instance.mode, LocalMode):
                self._watch = await watch_redirector(instance, self._proxy.ending.fail)
                report(
                    "Filtering MCP of local programs. Their other traffic passes untouched."
                    f" Hosts: {named}"
                )
            elif instance.listen_addrs:
                host, port, *_ = instance.listen_addrs[0]
                where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                report(
                    f"Filtering MCP of all clients that use the proxy http://{where}."
                    f" Their other traffic passes untouched. Hosts: {named}"
                )

    def put(self, asked: layer.NextLayer) -> EngineLayer | None:
        """Choose the layers of a client's connection, whatever others have chosen.

        Any error closes the connection: mitmproxy would log it and choose a layer of its own.
        """
        context, first = asked.context, asked.data_client()
        del context.layers[1:]  # those that another addon has made
        try:
            if context.client.transport_protocol == "udp":
                asked.layer = _layer_for_udp(context, first)
                return None
            if address := context.server.address:  # of a client that was redirected, or uses SOCKS
                to = Address(address[0], address[1], is_tls=False)
                engine = asked.layer = ForwardLayer(context, self, to=to)
                return engine
            if len(first) < len(_TLS) and _TLS.startswith(first):
                return None
            engine = asked.layer = ForwardLayer(context, self)
            if first.startswith(_TLS):  # the client speaks TLS with us as its proxy
                asked.layer = tls = ClientTLSLayer(context)
                tls.child_layer = engine
            return engine
        except Exception:
            log.exception("cannot choose a layer; connection closed")
            asked.layer = RefusingLayer(context)
            return None

    def server_connected(self, data: ServerConnectionHookData) -> None:
        """Note where a named host is."""
        address, peer, hosts = data.server.address, data.server.peername, self.sites.hosts
        if address and peer and not data.server.via and hosts.has(address[0], address[1]):
            hosts.note_place(str(peer[0]), int(peer[1]))

    # TLS

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Choose HTTP/1.1: a client that offers only HTTP/2 gets no protocol, and is refused."""
        if not isinstance(data.context.client.proxy_mode, ReverseMode):
            data.context.client.alpn = b"http/1.1"

    def tls_failed_client(self, data: TlsData) -> None:
        """Report a client that did not accept our certificate: nothing of it passes."""
        host = data.context.client.sni or (data.context.server.address or ("?",))[0]
        if host not in self.refused_tls and len(self.refused_tls) < MOST_URLS:
            self.refused_tls.add(host)
            log.warning(
                "A client does not trust our certificate for %s: it cannot connect there", host
            )

    def tls_failed_server(self, data: TlsData) -> None:
        """Report an upstream whose certificate we do not trust, or that refuses TLS with us."""
        address = data.context.server.address
        host = data.conn.sni or (address[0] if address else "?")
        if self._not_trusted.is_new(host):
            why = data.conn.error or "TLS failed"
            log.warning("No connection to %s: %s (--ca FILE trusts its certificate)", host, why)


def _layer_for_udp(context: Context, first: bytes) -> layer.Layer:
    """Refuse HTTP/3, so that clients use TCP; other UDP traffic passes unread."""
    port = context.server.address[1] if context.server.address else 0
    is_quic = len(first) >= _SHORTEST_QUIC and bool(first[0] & 0x40) and port != _DNS
    return RefusingLayer(context) if is_quic else UDPLayer(context, ignore=True)


# Local mode: mitmproxy reports it as started once it has tried, and goes on without it.

_MOMENT = 1.0  # seconds; if it fails to start, it does so within them
_WHAT = "mitmproxy's local mode could not start"
_ENDED = "Error: mitmproxy's local mode has ended\nLocal programs would no longer be filtered"


async def watch_redirector(
    instance: ServerInstance[LocalMode], on_end: Callable[[str], None]
) -> asyncio.Future[None]:
    """Call ``on_end`` when local mode ends. Raises StartError if it did not start."""
    problem = LocalRedirector.unavailable_reason() or instance.last_exception
    redirector = LocalRedirectorInstance._server
    if problem or redirector is None:
        raise StartError(_WHAT, why=" ".join(str(problem or "It gives no reason").split()))
    watch = asyncio.ensure_future(redirector.wait_closed())
    await asyncio.wait([watch], timeout=_MOMENT)
    if watch.done():
        raise StartError(_WHAT, why="The system refused: it needs root rights")
    watch.add_done_callback(lambda _: on_end(_ENDED))
    return watch
