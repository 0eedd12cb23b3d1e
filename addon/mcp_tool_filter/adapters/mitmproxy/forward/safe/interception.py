"""Forward proxies: MCP goes through the filter, everything else passes unchanged.

In mitmproxy's regular, upstream, transparent and local modes all traffic of clients goes through
us. A stream waits until we know what its request is (see ``http/recognise``). MCP is handled as
in a reverse proxy. Other requests and answers pass unchanged: no hook runs for them, so no addon
changes or records them, and we keep none of their bodies.

If an answer turns out to be an MCP event stream, or a WebSocket carries MCP, we adopt it: the
filter judges it from its first message on.

It is one module because a stream opens tunnels, and a tunnel contains streams again.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from mitmproxy.connection import Server
from mitmproxy.http import Request, Response
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import Layer, NextLayer, NextLayerHook
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import DropStream, HTTPMode, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpResponseHeadersHook,
)
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy.proxy.layers.tls import HTTP_ALPNS
from mitmproxy.proxy.tunnel import TunnelLayer

from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.forward.safe.interceptor import interceptor, is_direct
from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import FilteredHttpLayer, _forked
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import GiveUp, Order, ReadOn, Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.outermost import OutermostLayer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.passing import PassingStream
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import (
    RefusingLayer,
    guard_client,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import Paused, SafeStream
from mcp_tool_filter.http.recognise import BodyReader, Spoken, Treatment, first_bytes

log = logging.getLogger(__name__)

_SHORTEST_QUIC = 18  # bytes
_DNS = 53


class InterceptedHttpLayer(FilteredHttpLayer):
    """One client connection of a forward proxy, or a tunnel through it."""

    def _new_stream(self, stream_id: int) -> SafeStream:
        return InterceptedStream(_forked(self.context), stream_id)

    def _handle_event(self, event: events.Event) -> Steps:
        yield from super()._handle_event(event)
        if isinstance(event, ReadOn):
            yield from self._tell_tunnels(event)

    def _carry_out(self, order: Order) -> Steps:
        if self.streams.get(order.stream.stream_id) is order.stream:
            yield from super()._carry_out(order)
        else:
            yield from self._tell_tunnels(order)

    def _tell_tunnels(self, event: events.Event) -> Steps:
        for stream in list(self.streams.values()):
            if stream.child_layer is not None:
                yield from self.event_to_child(stream, event)


class InterceptedStream(PassingStream):
    """One request through a forward proxy, and its response."""

    def __init__(self, context: Context, stream_id: int) -> None:
        super().__init__(context, stream_id)
        self._reader: BodyReader | None = None
        self._waiting: list[HttpEvent] = []
        self._authority = ""  # for a proxy behind us: the client's own authority

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + (self._reader.size if self._reader else 0)

    def adopt(self) -> None:
        """Filter from now on what passed unchanged so far."""
        self._way = Treatment.MCP
        self._upstream_asked = self._headers_sent = True
        if self.flow.response:
            self.held = [self.flow.response.stream]

    def handle_event(self, event: events.Event) -> Steps:
        paused: Any = self._paused
        if self._way is Treatment.MCP or type(paused) is Paused:
            return super().handle_event(event)
        return HttpStream.handle_event(self, event)

    def _handle_event(self, event: events.Event) -> Steps:
        if self._way is Treatment.MCP:
            return super()._handle_event(event)
        if self._way is not None:
            return self._pass_on(event)
        if isinstance(event, GiveUp):
            return self._give_up_reading()
        return self._recognise(event) if isinstance(event, HttpEvent) else nothing(event)

    def _recognise(self, event: HttpEvent) -> Steps:
        match event:
            case RequestProtocolError():  # the client has left
                self._forget()
                yield DropStream(self.stream_id)
                return
            case RequestHeaders():
                if self.mode is HTTPMode.upstream and not is_direct(event.request.host):
                    self._authority = event.request.authority
                yield from self._look_at_head(event)
            case RequestData(data=data) if self._reader:
                self._way = self._reader.feed(data)
            case RequestEndOfMessage() if self._reader:
                self._way = self._reader.finish()
        if self._reader is None or not isinstance(event, RequestData):
            self._waiting.append(event)
        if self._way is None:
            return
        if self._reader and (held := self._reader.held):
            self._waiting.insert(1, RequestData(self.stream_id, held))  # after the head
            self._watch = self._reader.watch if self._way is Treatment.WATCHED else None
        self._reader = None
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            yield from self.handle_event(one)  # if it waits, the next ones wait too

    def _give_up_reading(self) -> Steps:
        """Close the connection of a client that sends too much before we know what it is."""
        self._waiting.clear()
        self._reader = None
        self._forget()
        yield DropStream(self.stream_id)
        kill = ResponseProtocolError(self.stream_id, "too much is held", ErrorCode.KILL)
        yield SendHttp(kill, self.context.client)

    def _look_at_head(self, event: RequestHeaders) -> Steps:
        found = Treatment.OTHER if event.request.method == "CONNECT" else self._ask_about(event)
        if isinstance(found, Treatment):
            self._way = found
            return
        self._reader = found
        if event.request.headers.get("expect", "").lower() == "100-continue":
            del event.request.headers["expect"]
            go_on = Response.make(100)
            go_on.headers.clear()
            yield SendHttp(ResponseHeaders(self.stream_id, go_on), self.context.client)

    def _ask_about(self, event: RequestHeaders) -> Treatment | BodyReader:
        if (asked := interceptor()) is None:
            return Treatment.MCP  # the filter refuses it
        try:
            return asked.look_at_head(
                self.context, self.mode, event.request, has_body=not event.end_stream
            )
        except Exception:
            log.exception("cannot judge the head of a request")
            return Treatment.MCP

    def _before(self, hook: commands.StartHook) -> None:
        if isinstance(hook, HttpResponseHeadersHook) and (told := interceptor()):
            told.note_answer(self.flow)
        super()._before(hook)

    def _note_asked(self, request: Request) -> None:
        super()._note_asked(request)
        if self._authority:
            request.authority = self._authority  # a proxy needs the complete URL
        else:
            request.headers.pop("proxy-authorization", None)  # meant only for this proxy

    def make_server_connection(self) -> Generator[commands.Command, Any, bool]:
        if self.mode is HTTPMode.upstream and is_direct(self.flow.request.host):
            self.flow.server_conn = Server(address=None)
            self.flow.request.authority = ""
        return (yield from super().make_server_connection())

    # Tunnels

    def handle_connect_regular(self) -> Steps:
        server, options = self.context.server, self.context.options
        if not self.flow.response and options.connection_strategy == "eager":
            problem = yield commands.OpenConnection(server)
            if problem:
                self.flow.response = Response.make(502, f"Cannot connect: {problem}")
        self.child_layer = InterceptedNextLayer(self.context)
        yield from self.handle_connect_finish()  # type: ignore[no-untyped-call]  # mitmproxy's

    def handle_connect_upstream(self) -> Steps:
        if is_direct(self.flow.request.host):
            self.context.server.via = None
            yield from self.handle_connect_regular()
            return
        tunnel = HttpUpstreamProxy.make(self.context, True)[0]
        self.child_layer = tunnel
        while isinstance(tunnel, TunnelLayer) and isinstance(tunnel.child_layer, TunnelLayer):
            tunnel = tunnel.child_layer
        assert isinstance(tunnel, TunnelLayer)
        tunnel.child_layer = InterceptedNextLayer(self.context)
        yield from self.handle_connect_finish()  # type: ignore[no-untyped-call]  # mitmproxy's


class InterceptedNextLayer(NextLayer):
    """Chooses the layer of a connection without asking addons, so that no script can bypass us."""

    def _ask(self) -> Steps:
        asked = super()._ask()  # type: ignore[no-untyped-call]  # mitmproxy gives it no types
        for command in asked:
            if isinstance(command, NextLayerHook):
                self.layer = self._choose()
            else:
                yield command

    def _choose(self) -> Layer | None:
        context = self.context
        mode = _PROXY_MODES.get(type(context.layers[-1]))
        client: bytes = self.data_client()  # type: ignore[no-untyped-call]  # mitmproxy's
        server: bytes = self.data_server()  # type: ignore[no-untyped-call]  # mitmproxy's
        if context.client.transport_protocol == "udp":
            return _layer_for_udp(context, client)
        spoken = first_bytes(client, server)
        if spoken is Spoken.TLS:
            return _tls(context, mode)
        if mode:
            return InterceptedHttpLayer(context, mode)
        if spoken is Spoken.HTTP or context.client.alpn in HTTP_ALPNS:
            return InterceptedHttpLayer(context, HTTPMode.transparent)
        return None if spoken is Spoken.UNKNOWN else layers.TCPLayer(context, ignore=True)


def _tls(context: Context, mode: HTTPMode | None) -> Layer:
    """Decrypt TLS; with a ``mode``, the client uses TLS to the proxy itself."""
    if mode:
        client = layers.ClientTLSLayer(context)
        client.child_layer = InterceptedHttpLayer(context, mode)
        return client
    server = layers.ServerTLSLayer(context)
    client = layers.ClientTLSLayer(context)
    server.child_layer = client
    client.child_layer = InterceptedNextLayer(context)
    return server


def _layer_for_udp(context: Context, data: bytes) -> Layer:
    """Refuse HTTP/3, so that clients use HTTP/2; other UDP traffic passes unread."""
    port = context.server.address[1] if context.server.address else 0
    is_quic = len(data) >= _SHORTEST_QUIC and bool(data[0] & 0x40) and port != _DNS
    return RefusingLayer(context) if is_quic else layers.UDPLayer(context, ignore=True)


class InterceptedProxy(OutermostLayer, modes.HttpProxy):
    """The outermost layer of a client in regular mode."""

    def _handle_event(self, event: events.Event) -> Steps:
        yield from _begin(self, event)


class InterceptedUpstreamProxy(OutermostLayer, modes.HttpUpstreamProxy):
    """The outermost layer of a client in upstream mode."""

    def _handle_event(self, event: events.Event) -> Steps:
        yield from _begin(self, event)


class InterceptedTransparentProxy(OutermostLayer, modes.TransparentProxy):
    """The outermost layer of a client in transparent and local mode."""

    def finish_start(self) -> Generator[commands.Command, Any, str | None]:
        guard_client(self.context.client)
        self.child_layer = InterceptedNextLayer(self.context)
        return (yield from super().finish_start())


_PROXY_MODES: dict[type[Layer], HTTPMode] = {
    InterceptedProxy: HTTPMode.regular,
    InterceptedUpstreamProxy: HTTPMode.upstream,
}


def _begin(outermost: Layer, event: events.Event) -> Steps:
    guard_client(outermost.context.client)
    following = InterceptedNextLayer(outermost.context)
    outermost._handle_event = following.handle_event  # type: ignore[method-assign]  # as mitmproxy
    yield from following.handle_event(event)


def guard_forward_proxies() -> None:
    """Serve every new client of a forward proxy with our layers."""
    modes.HttpProxy = InterceptedProxy  # type: ignore[misc]  # a subclass in its place
    modes.HttpUpstreamProxy = InterceptedUpstreamProxy  # type: ignore[misc]  # as above
    modes.TransparentProxy = InterceptedTransparentProxy  # type: ignore[misc]  # as above
