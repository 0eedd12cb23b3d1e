"""One client's connection inside mitmproxy: feeds the engine, and carries out its orders.

``EngineLayer`` stands where mitmproxy would put its HTTP layer. Bytes of the client and of the
upstreams go into the engine; what the engine orders comes out as mitmproxy's commands. Nothing of
mitmproxy is overridden: a layer is the place that mitmproxy has for this.

Three things to know about mitmproxy's layers:

- ``_handle_event`` is a generator of commands. An exception in it means "mitmproxy has crashed!"
  and a client that waits for ever, so we catch all, and close the connection.
- A command with ``blocking`` set to ``True`` pauses the whole layer. We set it to this layer, as
  mitmproxy does itself one level further out: then only the exchange waits, and the completion
  comes as an event.
- The engine also orders something outside of events, for example when a decision that had to wait
  is taken. Then ``wake`` asks mitmproxy for an event.

A TLS connection to the upstream has a small stack of its own: mitmproxy's ``ServerTLSLayer`` with a
``Seat`` in it. Commands for that connection enter through the seat, and come out encrypted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mitmproxy import ctx
from mitmproxy.connection import Connection, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import ClientTLSLayer, ServerTLSLayer
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.tunnel import TunnelLayer

from mcp_tool_filter.core.engine.client_h1 import H1Client
from mcp_tool_filter.core.engine.service import Address, Asking, Service
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.rooms.mitmproxy.connections import Newcomer
from mcp_tool_filter.rooms.mitmproxy.shown import ShownExchange

if TYPE_CHECKING:
    from mcp_tool_filter.core.process.limits import Holder
    from mcp_tool_filter.rooms.mitmproxy.flows import Flows

log = logging.getLogger(__name__)

type Orders = layer.CommandGenerator[None]
type _GoOn = Callable[[Any], None]

_TLS_HANDSHAKE = b"\x16"
_MOST_HELD = 1 << 22
_SECONDS_BETWEEN_LOOKS = 0.02
"""How often we look whether a peer that reads slowly has read."""
_SECONDS_TO_READ = 2.0
"""How long a client may read our last answer."""
_MOST_AFTERWARDS = 1 << 22
"""How many bytes it may send meanwhile; they are thrown away."""


@dataclass
class ToolFilterWaitsHook(commands.StartHook):
    """Runs in our addon, so that mitmproxy's watchdog knows that the connection is not idle."""

    work: asyncio.Future[None]


class Wake(events.MessageInjected[None]):
    """Asks a layer to carry out what the engine has ordered outside of an event."""


class _Carry(events.Event):
    """Asks a seat to pass its orders on."""


class RefusingLayer(layer.Layer):
    """Closes the connection: what stands where nothing could be judged."""

    def _handle_event(self, event: events.Event) -> Orders:
        yield commands.CloseConnection(self.context.client)


class Seat(layer.Layer):
    """The innermost layer of a TLS connection to the upstream."""

    def __init__(self, context: Context, take: Callable[[events.Event], None]) -> None:
        super().__init__(context)
        self._take = take
        self.orders: deque[commands.Command] = deque()

    def _handle_event(self, event: events.Event) -> Orders:
        if not isinstance(event, events.Start | _Carry):
            self._take(event)
        while self.orders:
            yield self.orders.popleft()


class EngineLayer(layer.Layer):
    """A client's connection; it is the engine's ``Host``."""

    def __init__(self, context: Context, service: Service, flows: Flows) -> None:
        super().__init__(context)
        self.service = service
        self._flows = flows
        self.own = str(context.client.sockname[0])
        host, port, *_ = context.client.peername
        self.peer, self.port = str(host), int(port)
        self.is_tls = context.client.tls
        self._orders: deque[commands.Command] = deque()
        self._upstreams: dict[Server, Upstream] = {}
        self._idle: dict[Server, float] = {}
        """The connections that can be used again, and since when they are idle."""
        self._tls: dict[Connection, tuple[TunnelLayer, Seat]] = {}
        self._waiting: dict[commands.Command, _GoOn] = {}
        self._from_tls: dict[commands.Command, TunnelLayer] = {}
        self._is_busy = self._has_closed = self._is_held = False
        self._held = bytearray()
        """What the client has sent while we do not read from it."""
        self._sent_afterwards = 0
        self._client: H1Client | None = None
        """None until the first byte: a connection that says nothing costs little."""

    # Events in

    def _handle_event(self, event: events.Event) -> Orders:
        self._is_busy = True
        try:
            if isinstance(event, events.CommandCompleted) and event.command in self._from_tls:
                yield from self._through_tls(self._from_tls.pop(event.command), event)
            elif isinstance(event, events.ConnectionEvent) and (
                inner := self._tls.get(event.connection)
            ):
                yield from self._through_tls(inner[0], event)
            else:
                self._take(event)
            yield from self._carry_out()
        except Exception:
            log.exception("internal error; connection closed")
            self._has_closed = True
            yield commands.CloseConnection(self.context.client)
        finally:
            self._is_busy = False

    def _take(self, event: events.Event) -> None:
        """Give one event to the engine."""
        match event:
            case events.DataReceived() if event.connection is self.context.client:
                self._flows.received(len(event.data))
                if self._is_held or self._held:
                    self._held += event.data
                    if len(self._held) > _MOST_HELD:
                        self._close_now()
                else:
                    self._from_client(event.data)
            case events.DataReceived(connection=Server() as server):
                self._flows.received(len(event.data))
                if upstream := self._upstreams.get(server):
                    upstream.receive(event.data)
            case events.ConnectionClosed() if event.connection is self.context.client:
                self._client_left()
            case events.ConnectionClosed(connection=Server() as server):
                self._upstream_left(server)
            case events.CommandCompleted():
                if go_on := self._waiting.pop(event.command, None):
                    go_on(event.reply)

    def _from_client(self, data: bytes) -> None:
        if self._has_closed:
            self._sent_afterwards += len(data)
            if self._sent_afterwards > _MOST_AFTERWARDS:
                self._close_now()
            return
        if self._client is None:
            if self.service.seats is not None:  # the engine's own takes its place
                self.service.seats.leave(Newcomer(self.context.client))
            self._client = self._open_client()
        self._client.receive(data)

    def _open_client(self) -> H1Client:
        return H1Client(self.service, self, ShownExchange)

    def _client_left(self) -> None:
        """The client has closed its side; we treat a half-closed connection as closed."""
        if self._client is not None:
            self._client.gone()
        for server in list(self._upstreams):
            self._drop(server)
        self._close_now()

    def _upstream_left(self, server: Server) -> None:
        upstream = self._upstreams.pop(server, None)
        if upstream is not None:
            self._idle.pop(server, None)
            self._orders.append(commands.CloseConnection(server))
            upstream.lost()

    def _through_tls(self, stack: TunnelLayer, event: events.Event) -> Orders:
        for command in stack.handle_event(event):
            if command.blocking or isinstance(command, commands.RequestWakeup):
                self._from_tls[command] = stack
            yield command

    # Orders out

    def _carry_out(self) -> Orders:
        while self._orders:
            command = self._orders.popleft()
            if not self._tls or not isinstance(command, commands.ConnectionCommand):
                yield command
                continue
            inner = self._tls.get(command.connection)
            if inner is None:
                yield command
                continue
            stack, seat = inner
            seat.orders.append(command)
            server = command.connection
            yield from self._through_tls(stack, _Carry())
            if isinstance(command, commands.CloseConnection):
                for one in (server, command.connection):  # a tunnel puts its own one there
                    self._tls.pop(one, None)

    def order(self, command: commands.Command, go_on: _GoOn) -> None:
        """Carry out a command, then go on with its reply."""
        command.blocking = self
        self._waiting[command] = go_on
        self._put(command)

    def _put(self, command: commands.Command) -> None:
        self._orders.append(command)
        self.wake()

    def send(self, data: bytes) -> None:
        if not self._has_closed:
            self._put(commands.SendData(self.context.client, data))

    def close(self) -> None:
        """Close our half, and all of it a little later: a client that still sends can read our
        answer."""
        if not self._has_closed:
            self._has_closed = True
            self._put(commands.CloseTcpConnection(self.context.client, half_close=True))
            self._flows.sockets.later(_SECONDS_TO_READ, self._close_now)

    def _close_now(self) -> None:
        self._has_closed = True
        self._put(commands.CloseConnection(self.context.client))

    def abort(self) -> None:
        """Close with a TCP reset: an end would mean to some clients that the answer is complete."""
        self._flows.sockets.reset_when_closed(self.context.client)
        self._close_now()

    def hold(self, on: bool) -> None:
        """Stop reading from the client, or read on; what has come already waits here."""
        if on is not self._is_held:
            self._is_held = on
            self._flows.sockets.hold(self.context.client, self.context.client, on)
            if not on and self._held:
                self.call_later(0, self._take_held)

    def _take_held(self) -> None:
        while self._held and not self._is_held:
            data = bytes(self._held)
            self._held.clear()
            self._from_client(data)

    def tick(self, now: float) -> None:
        """Let the engine look for time-outs."""
        if self._client is not None:
            self._client.tick(now)

    def wake(self) -> None:
        """Carry out what the engine has ordered outside of an event."""
        if self._is_busy or not self._orders:
            return
        # ``inject_event`` finds the connection by the flow's client.
        of_client: Any = SimpleNamespace(client_conn=self.context.client)
        try:
            ctx.master.addons.get("proxyserver").inject_event(Wake(of_client, None))
        except ValueError:  # the client has left
            self._orders.clear()

    def point(self, name: str, exchange: ShownExchange, go_on: Callable[[], None]) -> None:
        """Let other addons see and change an exchange."""
        work = self._flows.run(name, exchange, self)
        continue_ = partial(self._flows.go_on, name, exchange, go_on)
        self._when_done(work, continue_, exchange.kill)

    def _when_done(
        self, work: Awaitable[None] | None, go_on: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        if work is None:
            go_on()
            return
        task = asyncio.ensure_future(work)

        def finished(_reply: object) -> None:
            if task.done():
                go_on()
            else:  # our addon is gone: nobody has waited
                give_up()

        self.order(ToolFilterWaitsHook(task), finished)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call this after other connections were served, or later; then carry out its orders.

        It may make more to send, so it waits for a peer that reads slowly: mitmproxy does so
        itself, but only before it reads from a connection again.
        """
        sockets = self._flows.sockets

        def act_and_wake() -> None:
            if sockets.is_slow(self.context.client):
                sockets.later(_SECONDS_BETWEEN_LOOKS, act_and_wake)
                return
            act()
            self.wake()

        sockets.later(seconds, act_and_wake)

    # The upstream

    def connect(self, exchange: Asking) -> None:
        address = self._address_for(exchange)
        if server := self._find_idle(exchange, address):
            del self._idle[server]
            self._connected(exchange, server, self._upstreams[server])
            return
        server = self._flows.server_for(address, self.context)
        upstream = self._upstream(server)
        self._wrap(server)

        def opened(error: str | None) -> None:
            if error:
                self._upstreams.pop(server, None)
                self._tls.pop(server, None)
                exchange.unreachable(error)
            elif not exchange.is_over and server not in self._upstreams:
                exchange.unreachable("the upstream spoke first")  # through a tunnel; it is closed
            elif exchange.is_over:
                self._upstreams.pop(server, None)
                self._orders.append(commands.CloseConnection(server))
            else:
                self._connected(exchange, server, upstream)

        self.order(commands.OpenConnection(server), opened)

    def _address_for(self, exchange: Asking) -> Address:
        return exchange.address or upstream_of(self.context)

    def _wrap(self, server: Server) -> None:
        """Put a connection that is to be opened into the layers that it needs."""
        if server.tls:
            context = self.context.fork()
            context.server = server
            stack = ServerTLSLayer(context)
            seat = Seat(context, self._take)
            stack.child_layer = seat
            self._tls[server] = stack, seat

    def _connected(self, exchange: Asking, server: Server, upstream: Upstream) -> None:
        self._flows.note_server(exchange, server)
        exchange.connected(upstream)

    def _find_idle(self, exchange: Asking, address: Address) -> Server | None:
        wanted, now = ((address.host, address.port), address.is_tls), monotonic()
        for server, since in reversed(self._idle.items()):
            is_young = now - since < exchange.most_idle
            if (server.address, server.tls) == wanted and (is_young or exchange.may_use_any):
                return server
        return None

    def _upstream(self, server: Server) -> Upstream:
        upstream = Upstream(
            write=lambda data: self._put(commands.SendData(server, data)),
            abort=lambda: self._drop(server),
            hold=lambda on: self._flows.sockets.hold(self.context.client, server, on),
            idle=lambda: self._keep_idle(server),
            limits=self.service.limits,
        )
        self._upstreams[server] = upstream
        return upstream

    def owner_of(self, server: Server) -> EngineLayer | None:
        """Return the layer whose engine has ordered a connection."""
        return self if server in self._upstreams or server in self._tls else None

    def holders(self) -> Iterator[Holder]:
        """Yield what holds memory besides the exchanges."""
        yield self

    @property
    def held_bytes(self) -> int:
        """Bytes of the client that were not read yet."""
        return len(self._held) + (len(self._client.wire.unread) if self._client else 0)

    def give_up(self) -> None:
        """Disconnect the client because all of them hold too much memory."""
        self.abort()

    def opening_ended(self, opened: Server) -> None:
        """The work of a connection has ended; mitmproxy may not have said whether it was opened.

        It crashes if the upstream resets the connection as soon as it is there, for that has no
        address then.
        """
        stack = self._tls.get(opened)
        for command in list(self._waiting):
            if isinstance(command, commands.OpenConnection) and (
                command.connection is opened
                or (stack is not None and self._tls.get(command.connection) is stack)
            ):
                self._waiting.pop(command)("the upstream closed the connection")
        self.wake()

    def _keep_idle(self, server: Server) -> None:
        if server in self._upstreams:
            self._idle[server] = monotonic()

    def _drop(self, server: Server) -> None:
        if self._upstreams.pop(server, None) is not None:
            self._idle.pop(server, None)
            self._put(commands.CloseConnection(server))


def upstream_of(context: Context) -> Address:
    """Return where a connection's requests go."""
    address = context.server.address
    assert address
    mode = context.client.proxy_mode
    is_tls = mode.scheme == "https" if isinstance(mode, ReverseMode) else context.server.tls
    return Address(address[0], address[1], is_tls)


def put_engine(asked: layer.NextLayer, service: Service, flows: Flows) -> EngineLayer | None:
    """Choose the layers of a reverse proxy's connection, whatever others have chosen.

    Any error closes the connection: mitmproxy would log it and choose a layer of its own.
    """
    context = asked.context
    del context.layers[1:]  # those that another addon has made
    try:
        if context.client.transport_protocol != "tcp":
            log.warning("HTTP/3 and QUIC are not filtered; connection closed")
            asked.layer = RefusingLayer(context)
            return None
        is_tls = asked.data_client()[:1] == _TLS_HANDSHAKE
        tls = ClientTLSLayer(context) if is_tls else None
        engine = EngineLayer(context, service, flows)
        if tls is not None:
            tls.child_layer = engine
        asked.layer = tls or engine
        return engine
    except Exception:
        log.exception("cannot choose a layer; connection closed")
        asked.layer = RefusingLayer(context)
        return None
