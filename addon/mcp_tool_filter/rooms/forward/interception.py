"""mitmproxy's regular, transparent and local modes: the engine frames every connection.

A client connects to us as its proxy, or is redirected to us. Whatever mitmproxy or another addon
would choose for it, the connection gets a ``ForwardLayer``; each tunnel through it gets another
one, inside TLS if the client speaks TLS there. What is neither TLS nor HTTP is closed, unless
``raw_hosts`` names its host.

TLS: a client that offers HTTP/1.1 gets it. One that offers only HTTP/2, as gRPC does, keeps
mitmproxy's own layer. There gRPC passes as a stream, which is cut off if it turns out to be MCP;
any other request waits until it is complete, and one of MCP goes through the engine as a replay
does.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from mitmproxy import ctx
from mitmproxy.connection import Server
from mitmproxy.http import Headers, HTTPFlow, Request, Response
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import ClientTLSLayer, HttpLayer, ServerTLSLayer, TCPLayer, UDPLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy.proxy.mode_servers import LocalRedirectorInstance, ServerInstance
from mitmproxy.proxy.mode_specs import LocalMode, ProxyMode, ReverseMode, UpstreamMode
from mitmproxy.proxy.tunnel import TunnelLayer
from mitmproxy.tls import ClientHelloData, TlsData
from mitmproxy_rs.local import LocalRedirector

from mcp_tool_filter.core.engine.service import Address, Asking, Service
from mcp_tool_filter.core.engine.wire import Fault, RequestHead, RequestWire
from mcp_tool_filter.core.errors import InvalidOption, StartError
from mcp_tool_filter.core.http.bodies import may_be_event_stream
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.http.urls import Origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.sentences import Once
from mcp_tool_filter.core.sockets.connect import Via
from mcp_tool_filter.rooms.forward.endpoints import MOST_URLS, Connection, Endpoints
from mcp_tool_filter.rooms.forward.passing import ForwardClient
from mcp_tool_filter.rooms.forward.recognise import (
    BodyReader,
    EventPeeker,
    Treatment,
    coding_in,
    inflating,
    is_mcp_head,
)
from mcp_tool_filter.rooms.mitmproxy.connections import Newcomer
from mcp_tool_filter.rooms.mitmproxy.layer import EngineLayer, Orders, RefusingLayer, Seat
from mcp_tool_filter.rooms.mitmproxy.options import FORWARD_MODES

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.client_h1 import H1Client
    from mcp_tool_filter.core.engine.exchange import Exchange
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


def refuse_options(config: Config) -> None:
    """Raise InvalidOption for an option that concerns a single upstream."""
    for name, field in _REFUSED.items():
        if getattr(config, field):
            why = "It is for a single upstream, but a forward proxy has many. Leave it out."
            raise InvalidOption(name, "…", why=why)


class _H2Options:
    """mitmproxy's options for its own HTTP layer, which must not let anything pass unread."""

    stream_large_bodies = None
    validate_inbound_headers = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def __getattr__(self, name: str) -> object:
        return getattr(self._options, name)


class ForwardLayer(EngineLayer):
    """A client's connection to us as a proxy, or a tunnel through it."""

    def __init__(
        self,
        context: Context,
        interception: Interception,
        tunnel: Address | None,
        service: Service | None = None,
    ) -> None:
        super().__init__(context, service or interception.places.others, interception.flows)
        self._interception, self._tunnel = interception, tunnel
        self._via = partial(interception.via, context.client.proxy_mode)
        self._places = Connection(
            interception.places,
            tunnel,
            open_tunnel=self._open_tunnel,
            via=self._via,
            admit=self._admit,
            name=context.client.sni if tunnel is not None and tunnel.is_tls else None,
        )
        self.inner: layer.Layer | None = None
        self._to: Address | None = None
        """Where the tunnel leads that was opened last."""
        self._first = bytearray()
        """What the client has sent in it, until we know its protocol."""

    def _handle_event(self, event: events.Event) -> Orders:
        if self.inner is not None:
            yield from self.inner.handle_event(event)
        elif self._to is not None:
            yield from self._look_into_tunnel(event)
        elif (
            # At the start, when TLS is done: a script may say anything about a client later.
            isinstance(event, events.Start)
            and self._tunnel is not None
            and self.context.client.alpn == b"h2"
        ):
            self._interception.keep_seat(self.context)
            self._lead_through_proxy(self.context.server)
            self.context.options = cast("Options", _H2Options(self.context.options))
            yield from self._begin(HttpLayer(self.context, HTTPMode.transparent), event)
        else:
            yield from super()._handle_event(event)
            if self._is_ahead():
                yield from self._look_into_tunnel(None)

    def _is_ahead(self) -> bool:
        """Tell whether the client has not waited for its tunnel."""
        return self._to is not None and bool(self._first)

    def _open_client(self) -> H1Client:
        return ForwardClient(self._places, self)

    def owner_of(self, server: Server) -> EngineLayer | None:
        inner = (one for one in _inside(self.inner) if isinstance(one, EngineLayer))
        owners = (super().owner_of(server), *(one.owner_of(server) for one in inner))
        return next(filter(None, owners), None)

    def holders(self) -> Iterator[ForwardClient]:
        """Yield the clients of this connection and of its tunnels, for the memory budget."""
        for one in (self, *_inside(self.inner)):
            if isinstance(one, ForwardLayer) and isinstance(one._client, ForwardClient):
                yield one._client

    def tick(self, now: float) -> None:
        super().tick(now)
        for one in _inside(self.inner):
            if isinstance(one, EngineLayer):
                one.tick(now)

    def _point(self, name: str, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Show the exchange's own server, since there are many."""
        if exchange.flow is None and exchange.address is not None:
            self.service = exchange.service
            self.context.server = Server(
                address=(exchange.address.host, exchange.address.port),
                tls=exchange.address.is_tls,
            )
        super()._point(name, exchange, go_on)

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
            asking = [one for one in flow.response.headers.fields if one[0].lower() in _ASKS]
            raise Fault("a client without a login to this proxy", 407, tuple(asking))
        logins.authenticated[self.context.client] = flow.metadata["proxyauth"]

    def _address_for(self, exchange: Asking) -> Address:
        """A request that is not in a tunnel goes to the proxy, which needs its URL."""
        at = super()._address_for(exchange)
        if self._tunnel is not None or (via := self._via(at.host)) is None:
            return at
        return Address(via.origin.host, via.origin.port, via.origin.tls)

    def _wrap(self, server: Server) -> None:
        """Ask the proxy for a tunnel, unless it gets the request itself."""
        if server.tls and self._tunnel is not None and self.context.client.sni:
            server.sni = self.context.client.sni  # a client may know the name, and we the address
        if self._tunnel is None or not self._lead_through_proxy(server):
            return super()._wrap(server)
        context = self.context.fork()
        context.server = server
        stack = HttpUpstreamProxy.make(context, True)[0]
        assert isinstance(stack, TunnelLayer)
        inner: TunnelLayer = stack
        while isinstance(inner.child_layer, TunnelLayer):
            inner = inner.child_layer
        seat = Seat(context, self._take)
        inner.child_layer = seat
        if server.tls:
            inner.child_layer = tls = ServerTLSLayer(context)
            tls.child_layer = seat
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
        self._to = to
        self._first += ahead
        self.send(_ESTABLISHED)

    def _look_into_tunnel(self, event: events.Event | None) -> Orders:
        """Choose a layer by the first bytes of a tunnel."""
        assert self._to is not None
        match event:
            case None:
                pass
            case events.DataReceived() if event.connection is self.context.client:
                self._first += event.data
            case events.ConnectionClosed() if event.connection is self.context.client:
                yield commands.CloseConnection(self.context.client)
                return
            case _:
                return
        first = bytes(self._first)
        if len(first) < 3 and b"\x16\x03".startswith(first[:2]):
            return
        context = self.context.fork()
        context.server = Server(address=(self._to.host, self._to.port))
        chosen = self._interception.choose(context, self._to, first)
        yield from self._begin(chosen, events.DataReceived(self.context.client, first))

    def _begin(self, inner: layer.Layer, event: events.Event) -> Orders:
        self.inner = inner
        yield from inner.handle_event(events.Start())
        if not isinstance(event, events.Start):
            yield from inner.handle_event(event)


def _inside(inner: layer.Layer | None) -> list[layer.Layer]:
    """Return the layers within a layer."""
    found: list[layer.Layer] = []
    while inner is not None:
        found.append(inner)
        inner = getattr(inner, "child_layer", None) or getattr(inner, "inner", None)
    return found


class Interception:
    """What the forward proxies of the process share.

    It is an addon, the last one of all: where mitmproxy's own layer speaks HTTP, no other addon may
    let anything pass as a stream that we have not read.
    """

    def __init__(self, proxy: Proxy, flows: Flows) -> None:
        self._proxy, self.flows = proxy, flows
        self.places = Endpoints(proxy)
        self.refused_tls: set[str] = set()
        """Hosts for which a client did not accept our certificate."""
        self._not_trusted = Once(MOST_URLS)
        self._told: set[str] = set()
        self._watch: asyncio.Future[None] | None = None  # watches local mode
        self.is_direct: Callable[[str], bool] = lambda _host: False
        """Tells whether the proxy behind us is left out for a host."""
        self._tls: ssl.SSLContext | None = None  # towards the proxy behind us

    def via(self, mode: ProxyMode, host: str) -> Via | None:
        """Return the proxy behind us that leads to a host; None if we reach it without one."""
        if not isinstance(mode, UpstreamMode) or self.is_direct(host):
            return None
        if mode.scheme == "https" and self._tls is None:
            self._tls = self._proxy.around.make_tls()
        at = Origin(*mode.address, mode.scheme == "https")
        login = getattr(ctx.options, "upstream_auth", None)  # our own
        basic = b"Basic " + b64encode(login.encode()) if login else None
        return Via(at, self._tls if at.tls else None, basic)

    async def begin(self) -> None:
        """Start, and report where clients are served. Raises StartError."""
        report, server = self._proxy.around.report, ctx.master.addons.get("proxyserver")
        for instance in server.servers if server else ():
            if (
                not isinstance(instance.mode, FORWARD_MODES)
                or instance.mode.full_spec in self._told
            ):
                continue
            self._told.add(instance.mode.full_spec)
            if isinstance(instance.mode, LocalMode):
                self._watch = await watch_redirector(instance, self._proxy.fail)
                report("Filtering MCP of local programs. Their other traffic passes untouched.")
            elif instance.listen_addrs:
                host, port, *_ = instance.listen_addrs[0]
                where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                report(
                    f"Filtering MCP of all clients that use the proxy http://{where}."
                    " Their other traffic passes untouched."
                )

    # Layers

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
            address = context.server.address  # of a client that was redirected
            to = Address(address[0], address[1], is_tls=False) if address else None
            if not first and to is not None and not asked.data_server():
                return None
            if len(first) < 3 and b"\x16\x03".startswith(first[:2]):
                return None
            asked.layer = self.choose(context, to, first)
        except Exception:
            log.exception("cannot choose a layer; connection closed")
            asked.layer = RefusingLayer(context)
        return next((one for one in _inside(asked.layer) if isinstance(one, EngineLayer)), None)

    def choose(self, context: Context, to: Address | None, first: bytes) -> layer.Layer:
        """Return the layer for a connection that begins with these bytes."""
        is_raw = to is not None and to.host.lower() in self._proxy.config.raw_hosts
        if is_raw and not is_tls_or_http(first):
            self.keep_seat(context)
            return TCPLayer(context, ignore=True)
        if first[:1] == b"\x16":
            if first[1:2] != b"\x03" or first[2] > 4:
                return self._refuse(context, to, "a strange TLS record")
            tls = ClientTLSLayer(context)
            within = to and Address(to.host, to.port, is_tls=True)
            if within is not None:
                context.server.tls = True
            tls.child_layer = ForwardLayer(context, self, within)
            return tls
        return ForwardLayer(context, self, to)

    def keep_seat(self, context: Context) -> None:
        """Let a client have its seat as long as it likes: the engine does not see what it says."""
        if (seats := self.places.others.seats) is not None:
            seats.keep(Newcomer(context.client))

    def _refuse(self, context: Context, to: Address | None, why: str) -> layer.Layer:
        self.places.note_closed(to.host if to else "a proxy's client", why)
        return RefusingLayer(context)

    # TLS

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Choose HTTP/1.1 if the client offers it: the engine frames it here."""
        if isinstance(data.context.client.proxy_mode, ReverseMode):
            return
        offered = data.client_hello.alpn_protocols
        if b"http/1.1" in offered or not any(one in (b"h2", b"http/1.0") for one in offered):
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

    # What only speaks HTTP/2

    def requestheaders(self, flow: HTTPFlow) -> None:
        """Let gRPC pass as a stream; all other requests wait until they are complete."""
        headers = flow.request.headers
        is_grpc = headers.get("content-type", "").lower().startswith("application/grpc")
        may_be_cut_off = is_grpc and "content-length" not in headers
        flow.request.stream = cast("bool", self._only_others(flow)) if may_be_cut_off else False

    def _only_others(self, flow: HTTPFlow) -> Callable[[bytes], bytes | Sequence[bytes]]:
        """Return what lets a stream pass until it turns out to be MCP."""
        reader = self._reader_for(flow)
        is_decided = False

        def look(chunk: bytes) -> bytes | Sequence[bytes]:
            nonlocal is_decided
            if flow.error is not None:  # mitmproxy asks until the client is through
                return []
            if is_decided:
                may_pass = all(one.may_pass(chunk) for one in reader.watches)
            else:
                way = reader.feed(chunk) if chunk else reader.finish()
                if way is None:
                    return []
                may_pass = is_decided = way is Treatment.OTHER
                chunk = reader.held
            if may_pass:
                return chunk or []
            log.warning("Cut off a stream of gRPC that turned out to be MCP")
            flow.kill()
            return []

        return look

    def _reader_for(self, flow: HTTPFlow) -> BodyReader:
        coding = coding_in(flow.request.headers.fields)
        return BodyReader(coding, self.places.others.listener.config.limits)

    def judging(self, flow: HTTPFlow) -> tuple[Callable[[Context], EngineLayer], Address] | None:
        """Return what makes the layer for a complete request if it is MCP, and where it goes.

        A request that must not pass gets an answer here.
        """
        request, body = flow.request, flow.request.raw_content or b""
        if flow.request.stream:
            return None
        head = RequestHead(request.method, request.path, tuple(request.headers.fields))
        at = Address(request.host, request.port, request.scheme == "https")
        is_mcp = is_mcp_head(Head(head.method, head.target, head.fields))
        if body and not is_mcp:
            reader = self._reader_for(flow)
            way = reader.feed(body) or reader.finish()
            if way is Treatment.REFUSED:
                flow.response = Response.make(403)
            is_mcp = way is Treatment.MCP
        if not is_mcp:
            return None
        via = partial(self.via, flow.client_conn.proxy_mode)
        name = flow.client_conn.sni
        service = Connection(self.places, at, via=via, name=name).service_of(at, head)
        return partial(ForwardLayer, interception=self, tunnel=at, service=service), at

    def responseheaders(self, flow: HTTPFlow) -> None:
        """Let answers pass as streams; an event stream only while it is not MCP."""
        response = flow.response
        is_upstreams = flow.server_conn.timestamp_start is not None  # not judged by the engine
        if response is None or flow.is_replay or not is_upstreams:
            return
        response.stream = True
        if may_be_event_stream(response.headers.get("content-type", "")):
            response.stream = cast("bool", self._no_events_of_mcp(flow, response))

    def _no_events_of_mcp(
        self, flow: HTTPFlow, response: Response
    ) -> Callable[[bytes], bytes | Sequence[bytes]]:
        """Return what lets an event stream pass, compressed or not, until it turns out to be
        MCP."""
        peeker = EventPeeker(self.places.others.listener.config.limits)
        coding = coding_in(response.headers.fields)
        inflate: Callable[[bytes], Iterator[bytes]] | None = None
        held = b""

        def seen(chunk: bytes) -> tuple[bytes, bool]:
            nonlocal inflate, held
            if coding.lower() in ("", "identity"):
                passed, rest = peeker.feed(chunk) if chunk else peeker.finish()
                return passed, rest is None
            inflate, held = inflate or inflating(coding), held + chunk
            pieces = map(peeker.feed, inflate(chunk)) if chunk else [peeker.finish()]
            may_pass = all(rest is None for _, rest in pieces)
            passed, held = (b"", held) if peeker.held else (held, b"")
            return passed, may_pass

        def peek(chunk: bytes) -> bytes | Sequence[bytes]:
            if flow.error is not None:  # mitmproxy asks until the upstream is through
                return []
            try:
                passed, may_pass = seen(chunk)
            except Exception as error:  # also of a coding's library: nothing more may pass
                log.warning("Cut off an event stream over HTTP/2: %s", error)
                may_pass, passed = False, b""
            else:
                if not may_pass:
                    log.warning("Cut off an event stream over HTTP/2 that turned out to be MCP")
                    passed = b"" if inflate else passed
            if not may_pass:
                flow.kill()
            return passed or []

        return peek


def is_tls_or_http(first: bytes) -> bool:
    """Tell whether a connection that begins like this is one that the engine can read."""
    if first[:1] == b"\x16":
        return first[1:2] == b"\x03" and first[2:3] <= b"\x04"
    wire = RequestWire()
    wire.receive(first)
    try:
        wire.next()
    except Fault:
        return False
    return True


def _layer_for_udp(context: Context, first: bytes) -> layer.Layer:
    """Refuse HTTP/3, so that clients use HTTP/2; other UDP traffic passes unread."""
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
