"""The mitmproxy addon: puts the engine in front of the upstreams of mitmproxy's reverse proxies.

``Proxy`` does what both hosts need (fetching, rules, logins, losses, observers). Here is what only
mitmproxy has: options, hooks, layers, flows, its pages and commands.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.exceptions import AddonHalt, OptionsError
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.mode_specs import ProxyMode, ReverseMode
from mitmproxy.proxy.server import ConnectionHandler
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import ClientHelloData

from mcp_tool_filter.cli.options import KEYS
from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.service import Address, InLane, Service
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.wire import RequestHead
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.core.process.limits import Holder
from mcp_tool_filter.core.process.plugs import RoomMissing
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Site, Surroundings
from mcp_tool_filter.rooms.mitmproxy import connections
from mcp_tool_filter.rooms.mitmproxy.flows import Flows, flow_of, shown_request
from mcp_tool_filter.rooms.mitmproxy.hooks import Hooks
from mcp_tool_filter.rooms.mitmproxy.layer import (
    EngineLayer,
    RefusingLayer,
    put_engine,
)
from mcp_tool_filter.rooms.mitmproxy.options import (
    ConfigReader,
    Loopback,
    address_of,
    declare_options,
    edit_deny,
    idle_options,
    is_forward,
    keep_quiet_streams_alive,
    overruled_option,
    parse_modes,
    problem_in_options,
    refuse_no_mode,
    target_of,
    tls_of,
    unknown_option,
)
from mcp_tool_filter.rooms.mitmproxy.selftest import refuse_other_mitmproxy
from mcp_tool_filter.rooms.mitmproxy.views import FlowObserver
from mcp_tool_filter.rooms.recordings.inner_client import InnerClient

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_TICKS = 5.0
_FORWARD = "mcp_tool_filter.rooms.forward.interception"


class Interceptor(Protocol):
    """Chooses the layers of forward proxies: the room ``forward``, if it is there."""

    @property
    def unread(self) -> Container[Connection]:
        """The connections to servers that nobody reads."""

    async def begin(self) -> None:
        """Start, and report where clients are served. Raises StartError."""

    def put(self, asked: NextLayer) -> EngineLayer | None:
        """Choose the layers of a client's connection."""


class ToolFilter:
    """The addon. One site for each ``--mode reverse:URL``."""

    def __init__(
        self,
        *,
        argv: Sequence[str] = (),
        config_reader: ConfigReader | None = None,
        needs_hosts: bool = True,
        **around: Any,
    ) -> None:
        """``argv`` is the command line, which a configuration file of mitmproxy may have overruled.
        A ``config_reader`` may have read the options already. A forward proxy ``needs_hosts``,
        unless somebody else says that none is named. The others are ``Surroundings``; a report and
        warnings are shown if nobody takes them.
        """
        surroundings: dict[str, Any] = {"report": say, "warn": say, **around}
        self.proxy = Proxy(
            Surroundings(
                **surroundings,
                rooms=ROOMS,
                tell=lambda name, judged: self.views.tell(name, judged),
                name_flow=_name_of,
                render=render_report,
                leave=self._leave,
                make_tls=_make_tls,
                edit_deny=edit_deny,
            )
        )
        self.views = FlowObserver(self.proxy)
        self._argv, self._needs_hosts = argv, needs_hosts
        self._config_reader = config_reader or ConfigReader()
        self._loopback = Loopback()
        self._hooks: Hooks
        self._flows: Flows
        self._layers: WeakValueDictionary[str, EngineLayer] = WeakValueDictionary()
        """The layers of all clients, by the clients' ids."""
        self._ticker: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_running = False
        self._reason = ""  # why the process ends
        self.interception: Interceptor | None = None
        """The interception, if a mode is a forward proxy."""
        self.problem: StartError | None = None
        """The reason why the filter cannot start, if it is known before mitmproxy listens."""

    # Start and end

    def load(self, loader: Loader) -> None:
        refuse_other_mitmproxy()
        declare_options(loader)
        self._hooks = Hooks(ctx.master.addons, self)
        self.proxy.room = self._room = connections.UpstreamPlaces(self.proxy.crowd)
        self._flows = Flows(
            self._hooks, self.views, connections.Sockets(), self.proxy.budget.received
        )
        self.proxy.more_holders = self._holders
        self._loopback.load(ctx.options)
        self.views.load(ctx.master)

    def configure(self, updated: set[str]) -> None:
        try:
            self._configure(updated)
        except StartError as error:
            if self._is_running:  # the user edits the options: mitmproxy reverts the edit
                self.views.note_refused_edit(error)
                raise OptionsError(str(error)) from error
            self.problem = self.problem or error

    def _configure(self, updated: set[str]) -> None:
        self._hooks.configure()
        self.views.configure(updated)
        if danger := problem_in_options(ctx.options):
            raise danger
        if "mode" in updated:
            parse_modes(ctx.options.mode)
            refuse_no_mode(ctx.options)
        if updated & KEYS.keys():
            config = self.proxy.plugs.settle(
                self._config_reader.read(ctx.options), self.proxy.config
            )
            if config != self.proxy.config:  # a reverted edit also comes here
                self.views.note_refused_edit(None)
            if self._is_forward and self._is_running:  # before, options may be missing
                self._refuse_for_forward(config)
            self.proxy.adopt(config)
        self._flows.keeps_host = ctx.options.keep_host_header
        for site in self.proxy.sites.values():
            site.listener.keeps_host = ctx.options.keep_host_header
        self._hide_secrets()
        if self._is_running and not updated.isdisjoint(("mode", "connection_strategy")):
            asyncio.get_running_loop().call_soon(keep_quiet_streams_alive, ctx.options)
        if self._is_running and "mode" in updated:
            in_background(self._try(self._start()))

    def _refuse_for_forward(self, config: Config) -> None:
        """Raise StartError for options that a forward proxy cannot have, or lacks."""
        _forward_room().refuse_options(config, needs_hosts=self._needs_hosts)

    @property
    def _is_forward(self) -> bool:
        return is_forward(ctx.options.mode)

    def _hide_secrets(self) -> None:
        """Hide secrets in flows from now on if somebody can see flows."""
        addons, options = ctx.master.addons, ctx.options
        prints = addons.get("dumper") is not None and getattr(options, "flow_detail", 0) > 0
        writes = getattr(options, "save_stream_file", None) or getattr(options, "hardump", None)
        is_shown = prints or writes or addons.get("view") is not None
        if self.proxy.config.shows_secrets or not is_shown:
            self._flows.finder = None
        elif self._flows.finder is None:
            from mcp_tool_filter.rooms.secrets.finder import SecretFinder

            self._flows.finder = SecretFinder()

    def running(self) -> None:
        self.problem = (
            self.problem
            or unknown_option(ctx.options.deferred)
            or overruled_option(ctx.options, self._argv)
        )
        modes = parse_modes(ctx.options.mode) if self.problem is None else []
        try:
            if self.problem:
                raise self.problem
            if self._is_forward:
                self._refuse_for_forward(self.proxy.config)
            if idle := idle_options(ctx.options, is_forward=self._is_forward):
                self.proxy.warn(idle)
            keep_quiet_streams_alive(ctx.options)
            has_page = ctx.master.addons.get("view") is not None
            self.proxy.begin(
                names_upstreams=len(modes) > 1 or self._is_forward, shows_page=has_page
            )
        except StartError as error:
            self.proxy.ending.fail(str(error))
            return
        self._is_running = True
        connections.close_all_but(lambda client: client.id in self._layers)
        self.views.running()
        self._hide_secrets()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        in_background(self._try(self._start()))
        in_background(self._try(self.proxy.plugs.serve()))

    async def _start(self) -> None:
        await self._loopback.rebind()
        for mode in parse_modes(ctx.options.mode):
            if mode.full_spec not in self.proxy.sites:
                await self._open(mode)
        if self._is_forward:
            if self.interception is None:
                self.interception = _forward_room().Interception(self.proxy, self._flows)
                ctx.master.addons.add(self.interception)
            await self.interception.begin()
        self.proxy.check_patterns()
        self.proxy.plugs.announce()
        self.proxy.ready.set()

    async def _try(self, work: Coroutine[None, None, None]) -> None:
        """Await a part of the start; end the process if it fails."""
        try:
            await work
        except StartError as error:
            self.proxy.ending.fail(str(error))
        except Exception:
            log.exception("cannot start")
            why = "This is a bug in mcp-tool-filter"
            self.proxy.ending.fail(f"Error: The tool filter cannot start\n{why}")

    async def _open(self, mode: ReverseMode) -> None:
        await self.proxy.open(
            mode.full_spec,
            lambda config: target_of(mode, config, ctx.options),
            address=address_of(mode, ctx.master.addons.get("proxyserver"), ctx.options),
            keeps_host=ctx.options.keep_host_header,
        )
        self.proxy.adopt(self.proxy.config)  # the options may have been edited meanwhile

    async def started(self) -> bool:
        """Wait until clients are served; return False if the start has failed and the process
        ends."""
        await self.proxy.ready.wait()
        return not self.proxy.ending.has_failed

    async def _tick(self) -> None:
        """Let the engine look for time-outs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_TICKS)
            connections.close_silent(self.proxy.crowd.seats)
            for layer in list(self._layers.values()):
                layer.tick(loop.time())

    def _holders(self) -> Iterator[Holder]:
        for layer in list(self._layers.values()):
            yield connections.HoldingClient(layer.context.client)
            yield from layer.holders()

    def _leave(self, why: str) -> None:
        self._reason = why
        in_background(connections.leave())

    def done(self) -> Awaitable[None] | None:
        """End; mitmproxy awaits it, unless it only removes us from its addons."""
        if self._ticker:
            self._ticker.cancel()
        self.views.done()
        if self._reason:  # now that the console has left the screen
            sys.stderr.write(f"{self._reason}\n")
            sys.stderr.flush()
        try:
            self._closing = asyncio.get_running_loop().create_task(self._end())
        except RuntimeError:  # no loop runs any more
            return None
        return self._closing

    async def _end(self) -> None:
        if not self._reason and not self.proxy.ending.is_leaving:
            connections.at_next_signal(self.hurry)
            await self.drain()
        await self.proxy.close()

    async def drain(self) -> None:
        """Accept no new clients, and let open calls finish."""
        self.proxy.ending.begin_to_leave()
        await connections.close_doors()
        await self.proxy.ending.wait_for_requests_in_flight()
        await self.proxy.ending.drain()

    def hurry(self) -> None:
        """Do not wait for open calls any more."""
        self.proxy.ending.is_hurried = True

    # Connections

    async def client_connected(self, client: Client) -> None:
        self._loopback.client_connected(client)
        if client.error:
            return
        chain = ctx.master.addons.chain
        if chain[0] is not self:  # an addon before us could keep a hook from us
            chain.remove(self)
            chain.insert(0, self)
        connections.let_streams_be(client)
        connections.keep_client_alive(client)
        if client.transport_protocol == "tcp":
            self.proxy.crowd.seats.enter(connections.Newcomer(client))
        await self.proxy.ready.wait()
        if connections.has_left(client):
            client.error = "The client has left"

    async def client_disconnected(self, client: Client) -> None:
        self.proxy.crowd.seats.leave(connections.Newcomer(client))
        await connections.close_client(client)

    async def request(self, flow: HTTPFlow) -> None:
        """Judge a replayed request; see below. (All others have passed the engine.)"""
        if flow.is_replay == "request":
            await self.started()  # --client-replay begins before the tools are known
        # A replay to a named host would go past its tunnel, and is refused (``server_connect``).
        sites = [one for one in self.proxy.sites.values() if not one.listener.is_forward]
        if flow.is_replay == "request" and (found := site_for(flow, sites)):
            site, address = found
            [mode] = parse_modes([site.name])
            layer = layer_for_replay(
                partial(EngineLayer, service=site, flows=self._flows), mode, mode.address
            )
        else:
            return
        self._layers[layer.context.client.id] = layer
        await replay(flow, layer, address)

    async def next_layer(self, asked: NextLayer) -> None:
        """Have the last word on the layers of a reverse proxy's connection."""
        client = asked.context.client
        if not isinstance(client.proxy_mode, ReverseMode):
            if self.interception is None:
                asked.layer = RefusingLayer(asked.context)
            elif forward := self.interception.put(asked):
                self._layers[client.id] = forward
            raise AddonHalt
        await self._hooks.choose_layer(asked)
        site = self.proxy.sites.get(client.proxy_mode.full_spec)
        if site is None:
            asked.layer = RefusingLayer(asked.context)
        elif layer := put_engine(asked, site, self._flows):
            self._layers[client.id] = layer
        raise AddonHalt  # nobody chooses after us

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Choose HTTP/1.1: a client that offers only HTTP/2 gets no protocol, and is refused."""
        if isinstance(data.context.client.proxy_mode, ReverseMode):
            data.context.client.alpn = b"http/1.1"

    def server_connect(self, data: ServerConnectionHookData) -> None:
        if self.interception is not None and data.server in self.interception.unread:
            return
        layer = self._layers.get(data.client.id)
        owner = layer.owner_of(data.server) if layer is not None else None
        if owner is None:
            data.server.error = "a connection past the tool filter"
        elif self._room.is_overfull:
            data.server.error = "too many connections to the upstream"
        else:
            connections.when_over(data, partial(owner.opening_ended, data.server))

    def server_connected(self, data: ServerConnectionHookData) -> None:
        connections.read_large_pieces(data)
        connections.keep_upstream_alive(data)
        if site := self.proxy.sites.get(data.client.proxy_mode.full_spec):
            site.note_connection()

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        connections.close_leftover(data)

    async def tool_filter_waits(self, work: asyncio.Future[None]) -> None:
        """Wait for the hooks of other addons; see ``layer.ToolFilterWaitsHook``."""
        await work


def _forward_room() -> Any:
    """Return the module of the room for forward proxies. Raises StartError if it is missing."""
    try:
        return import_module(_FORWARD)
    except ModuleNotFoundError:
        raise RoomMissing("A forward proxy", _FORWARD) from None


def say(text: str) -> None:
    """Show a text where people read it: the console draws over its terminal."""
    if type(ctx.master).__name__ == "ConsoleMaster":
        log.info("%s", text)
    else:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _make_tls() -> ssl.SSLContext:
    return tls_of(ctx.options)


def _name_of(exchange: Exchange | InLane) -> str:
    flow = flow_of(exchange) if isinstance(exchange, Exchange) else None
    return flow.id if flow else ""


# Replays
#
# mitmproxy replays a flow with an HTTP layer of its own, which nobody can replace. But it asks
# addons first, in the hook ``request``: there we send the request ourselves, through the engine as
# always, and give mitmproxy the answer. So a replayed call is judged, and the operator's headers
# and logins go with it without becoming part of the flow.

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
    make: Callable[[Context], EngineLayer], mode: ProxyMode, upstream: tuple[str, int]
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
    return make(context)


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
        _begin(flow, layer.service, address, down)
        layer.wake()
        await down.over.wait()
        if down.answer is None:
            flow.response = Response.make(_GATEWAY)
        else:
            flow.response = _response(down.answer, bytes(down.body))
    finally:
        del connected[client.id]
        handler.close()


def _begin(flow: HTTPFlow, service: Service, address: Address | None, down: InnerClient) -> None:
    target, fields, body = shown_request(flow)
    kept = [field for field in fields if field[0].lower() not in (*_FRAMING, b"host")]
    head = RequestHead(
        flow.request.method, target.decode("latin-1"), ((b"host", b"localhost"), *kept)
    )
    exchange = Exchange(service, down, head)  # not shown: mitmproxy runs the hooks of a replay
    exchange.address = address
    exchange.flow = SimpleNamespace(flow=flow)
    down.ask(exchange, body)


def _response(answer: Answer, body: bytes) -> Response:
    fields = (*answer.fields, (b"content-length", b"%d" % len(body)))
    now = time.time()
    return Response(
        b"HTTP/1.1", answer.status, answer.reason or b"", Headers(fields), body, None, now, now
    )
