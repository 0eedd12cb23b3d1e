"""What a layer cannot do: reset connections, close what mitmproxy forgets, end the process.

These functions look for mitmproxy's connection handler. Where one is not what we expect, they do
nothing: a client then waits a little longer for its end, but nothing passes.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from mitmproxy import ctx
from mitmproxy.connection import Client, Connection, ConnectionState
from mitmproxy.proxy.events import ConnectionClosed
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.core.engine.service import Seats
from mcp_tool_filter.core.engine.wire import DEFAULT_LIMITS
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.process.limits import Crowd, most_upstream_connections
from mcp_tool_filter.core.sockets.keepalive import keep_alive

if TYPE_CHECKING:
    from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

_MUCH_UNSENT = 1 << 20
_LARGEST_PIECE = 1 << 20


def handler_of(client: Client) -> ConnectionHandler | None:
    """Return the connection handler of a client, while it is connected."""
    server = ctx.master.addons.get("proxyserver")
    return server.connections.get(client.id) if server else None


def _io_of(client: Client, connection: Connection) -> ConnectionIO | None:
    """Return mitmproxy's streams of a client's connection, or of one to its upstream."""
    handler = handler_of(client)
    return handler.transports.get(connection) if handler else None


def _transport_of(client: Client, connection: Connection) -> asyncio.Transport | None:
    io = _io_of(client, connection)
    transport = getattr(io.writer, "transport", None) if io else None
    return transport if isinstance(transport, asyncio.Transport) else None


def _disconnect(handler: ConnectionHandler) -> None:
    """Close a client's connection; one without a task still waits in ``client_connected``."""
    io = handler.transports.get(handler.client)
    if io and io.handler:
        handler.close_connection(handler.client)


def _handlers() -> list[ConnectionHandler]:
    server = ctx.master.addons.get("proxyserver")
    return list(server.connections.values()) if server else []


def let_streams_be(client: Client) -> None:
    """Give a client as many connections to the upstream as it needs.

    mitmproxy opens at most five per client, and counts those that are idle for too long to be used.
    """
    if handler := handler_of(client):
        handler.max_conns = defaultdict(partial(asyncio.Semaphore, MANY))


class _LargePieces:
    """Reads an answer in larger pieces than mitmproxy asks for, each of which costs it much."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def read(self, _most: int) -> bytes:
        return await self._reader.read(_LARGEST_PIECE)


def read_large_pieces(data: ServerConnectionHookData) -> None:
    """In the ``server_connected`` hook: let an answer of megabytes come in few pieces."""
    io = _io_of(data.client, data.server)
    if io and isinstance(io.reader, asyncio.StreamReader):
        io.reader = cast("asyncio.StreamReader", _LargePieces(io.reader))


class UpstreamPlaces:
    """The limit of the connections to upstreams: mitmproxy's, and those of our own fetches."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._lent = 0

    @property
    def is_overfull(self) -> bool:
        handlers = _handlers()
        both = sum(len(handler.transports) for handler in handlers)
        clients = sum(
            handler.client in handler.transports for handler in handlers
        )  # others are leaving
        most = most_upstream_connections(self._crowd.descriptors, clients)
        return both - clients + self._lent > most

    def take(self) -> bool:
        """Count a connection of a fetch; False if there are too many."""
        self._lent += 1
        if self.is_overfull:
            self._lent -= 1
            return False
        return True

    def give_back(self) -> None:
        self._lent -= 1


def close_all_but(is_ours: Callable[[Client], bool]) -> None:
    """Close connections that mitmproxy accepted before we were loaded: they are not filtered."""
    for handler in _handlers():
        if not is_ours(handler.client):
            _disconnect(handler)


def when_over(data: ServerConnectionHookData, call: Callable[[], None]) -> None:
    """In the ``server_connect`` hook: call this when mitmproxy is done with a connection."""

    def over(work: asyncio.Task[None]) -> None:
        if not work.cancelled() and work.exception() is not None:
            close_leftover(data)
        call()

    if (work := asyncio.current_task()) is not None:
        work.add_done_callback(over)


def close_leftover(data: ServerConnectionHookData) -> None:
    """In the ``server_disconnected`` hook: close a socket that mitmproxy may have left open.

    mitmproxy ends a connection by cancelling its task. If it does that twice, as for a client that
    leaves several streams of one HTTP/2 connection, the socket stays open until garbage collection.
    """
    handler = handler_of(data.client)
    io = handler.transports.pop(data.server, None) if handler else None
    if io and io.writer:
        io.writer.close()


def has_left(client: Client) -> bool:
    """Tell whether a client has left before mitmproxy reads from it, which would then crash."""
    io = _io_of(client, client)
    return bool(io and isinstance(io.reader, asyncio.StreamReader) and io.reader.at_eof())


async def close_client(client: Client) -> None:
    """In the ``client_disconnected`` hook: close a socket that mitmproxy may have left open.

    If mitmproxy closes a connection just before it reads from it, it forgets the socket, which
    stays open.
    """
    handler, io = handler_of(client), _io_of(client, client)
    if handler and io:
        client.state = ConnectionState.CLOSED
        await handler.server_event(ConnectionClosed(client))
        handler.transports.pop(client, None)
        if io.writer:
            io.writer.close()


@dataclass(frozen=True, slots=True)
class HoldingClient:
    """A client that may hold memory because it does not read."""

    client: Client

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be sent to it, or to an upstream for it."""
        handler = handler_of(self.client)
        connections = list(handler.transports) if handler else []
        transports = [_transport_of(self.client, connection) for connection in connections]
        return sum(
            transport.get_write_buffer_size() for transport in transports if transport is not None
        )

    def give_up(self) -> None:
        """Disconnect it."""
        if transport := _transport_of(self.client, self.client):
            transport.abort()
        if (handler := handler_of(self.client)) and self.client in handler.transports:
            handler.close_connection(self.client)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The seat of a client that the engine does not know yet: nothing of it has come through TLS,
    or through its new tunnel. It must not keep others out."""

    client: Client
    heard: ClassVar = 0.0
    was_served: ClassVar = False

    def close_silent(self) -> None:
        """Give the seat to another client."""
        if handler := handler_of(self.client):
            _disconnect(handler)


def close_silent(seats: Seats) -> None:
    """Close the clients that say nothing: the engine, which closes its own, does not know them."""
    for handler in _handlers():
        if seats.silence_of(Newcomer(handler.client)) >= DEFAULT_LIMITS.idle_time:
            _disconnect(handler)


def keep_client_alive(client: Client) -> None:
    """Notice a client that has vanished without a word."""
    if transport := _transport_of(client, client):
        keep_alive(transport.get_extra_info("socket"))


def keep_upstream_alive(data: ServerConnectionHookData) -> None:
    """In the ``server_connected`` hook: the same for an upstream."""
    if transport := _transport_of(data.client, data.server):
        keep_alive(transport.get_extra_info("socket"))


class Sockets:
    """What a layer cannot order by mitmproxy's commands."""

    def later(self, seconds: float, call: Callable[[], None]) -> object:
        """Call a function after so many seconds; 0 means the next turn of the event loop."""
        return asyncio.get_running_loop().call_later(seconds, call)

    def hold(self, client: Client, connection: Connection, on: bool) -> None:
        """Stop reading from a client or from one of its upstream connections, or read on."""
        transport = _transport_of(client, connection)
        if transport and not transport.is_closing():
            (transport.pause_reading if on else transport.resume_reading)()

    def is_slow(self, client: Client) -> bool:
        """Tell whether a client, or an upstream of its, has much to read that we have sent."""
        return HoldingClient(client).held_bytes > _MUCH_UNSENT

    def reset_when_closed(self, client: Client) -> None:
        """Make the connection end with a TCP reset: here a normal close would mean that the answer
        is complete."""
        transport = _transport_of(client, client)
        if transport and (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# The end of the process


async def leave() -> None:
    """End the process with exit code 1, in mitmdump, mitmweb, the console and our own master.

    ``master.shutdown()`` would exit with 0, and ``sys.exit`` in a hook would lose the current
    answer.
    """
    await hang_up()
    # Not in this task: asyncio would log its exception.
    asyncio.get_running_loop().call_soon(_exit)


def _exit() -> None:
    atexit.register(end_at_once, 1)
    sys.exit(1)


def end_at_once(status: int) -> None:
    """Exit the process without Python's usual teardown.

    mitmproxy_rs has threads for the UDP port of an https upstream. If they still run during the
    teardown, the process crashes: every second time on 3.12.1.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def close_doors() -> None:
    """Accept no new clients."""
    if server := ctx.master.addons.get("proxyserver"):
        await server.servers.update([])


def at_next_signal(act: Callable[[], None]) -> None:
    """Call this at Ctrl+C or SIGTERM from now on, if the process is ending: mitmproxy would ignore
    a second signal."""
    if not ctx.master.should_exit.is_set():  # we are only removed from its addons
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or a thread
            asyncio.get_running_loop().add_signal_handler(number, act)


async def hang_up() -> None:
    """Accept no new clients, and close every connection when its last bytes are sent."""
    await close_doors()
    for handler in _handlers():
        _disconnect(handler)
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.0
    while _handlers() and loop.time() < end:  # asyncio in Python 3.12 logs what it aborts
        await asyncio.sleep(0.01)
