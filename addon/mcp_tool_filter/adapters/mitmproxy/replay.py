"""Send requests that the user replays in mitmweb or the console through the engine.

mitmproxy replays a flow with an HTTP layer of its own, which nobody can replace. But it asks
addons first, in the hook ``request``: there we send the request ourselves, through the engine as
always, and give mitmproxy the answer. So a replayed call is judged, and the operator's headers and
logins go with it without becoming part of the flow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace

from mitmproxy import ctx
from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionHandler

from mcp_tool_filter.adapters.mitmproxy.flows import Flows, shown_request
from mcp_tool_filter.adapters.mitmproxy.layer import EngineLayer
from mcp_tool_filter.adapters.serving.in_process import InnerClient
from mcp_tool_filter.adapters.serving.site import Site
from mcp_tool_filter.engine.exchange import Answer, Exchange
from mcp_tool_filter.engine.service import Address, Service
from mcp_tool_filter.engine.wire import RequestHead
from mcp_tool_filter.http.urls import parse_origin

_GATEWAY = 502
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})


class _Handler(ConnectionHandler):
    """mitmproxy's connections to the upstream, without a client's socket."""

    async def handle_hook(self, hook: commands.StartHook) -> None:
        await ctx.master.addons.handle_lifecycle(hook)

    def close(self) -> None:
        for io in list(self.transports.values()):
            if io.handler:
                io.handler.cancel("the replay is over")


def site_for(flow: HTTPFlow, sites: Iterable[Site]) -> tuple[Site, Address | None] | None:
    """Return the site that judges a replayed request, and where it goes if not there.

    A name that we do not know may still be the upstream's: its port decides.
    """
    request = flow.request
    address = Address(request.host, request.port, request.scheme == "https")
    at = [(site, parse_origin(site.listener.upstream)) for site in sites]
    for site, origin in at:
        if (origin.host, origin.port) == address[:2]:
            return site, None
    return next(((site, address) for site, origin in at if origin.port == address.port), None)


def layer_for_replay(
    service: Service, mode: ProxyMode, flows: Flows, upstream: tuple[str, int]
) -> EngineLayer:
    """Return a layer for one replayed request."""
    client = Client(
        peername=("127.0.0.1", 0),
        sockname=("127.0.0.1", 0),
        timestamp_start=time.time(),
        proxy_mode=mode,
        state=ConnectionState.OPEN,
    )
    context = Context(client, ctx.options)
    context.server = Server(address=upstream)
    layer = EngineLayer(context, service, flows)
    layer.point = None  # mitmproxy runs the hooks of a replay
    return layer


async def replay(flow: HTTPFlow, layer: EngineLayer, address: Address | None) -> None:
    """Send a flow's request as the engine sees it now; put the answer into the flow.

    It goes to the layer's upstream, or to another address without the operator's headers.
    """
    client = layer.context.client
    handler = _Handler(layer.context)
    handler.layer = layer
    connected = ctx.master.addons.get("proxyserver").connections
    connected[client.id] = handler
    try:
        await handler.server_event(events.Start())
        down = InnerClient(layer)
        exchange = _begin(flow, layer.service, address, down)
        layer.wake()
        await down.over.wait()
        if exchange.seat is not None or down.answer is None:
            flow.response = Response.make(_GATEWAY)
        else:
            flow.response = _response(down.answer, bytes(down.body))
    finally:
        del connected[client.id]
        handler.close()


def _begin(
    flow: HTTPFlow, service: Service, address: Address | None, down: InnerClient
) -> Exchange:
    target, fields, body = shown_request(flow)
    kept = [one for one in fields if one[0].lower() not in (*_FRAMING, b"host")]
    head = RequestHead(
        flow.request.method, target.decode("latin-1"), ((b"host", b"localhost"), *kept)
    )
    exchange = Exchange(service, down, head)
    exchange.address = address
    exchange.flow = SimpleNamespace(flow=flow)
    down.ask(exchange, body)
    return exchange


def _response(answer: Answer, body: bytes) -> Response:
    fields = (*answer.fields, (b"content-length", b"%d" % len(body)))
    now = time.time()
    return Response(
        b"HTTP/1.1", answer.status, answer.reason or b"", Headers(fields), body, None, now, now
    )
