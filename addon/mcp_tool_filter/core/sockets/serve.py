"""Serve one upstream or several on sockets: bind, fetch the tools, accept, end when told to.

    doors = bind(host, port)             # at once: a taken port is found before anything is sent
    server = Server(proxy, doors, opening(proxy, find_target), ...)
    await server.start()                 # fetches the tools, then accepts clients
    await server.run()                   # returns when all clients have gone

Clients that connect before the tools are known wait in the sockets' queues.

A site's connections to its upstream are shared by all clients. A client
may speak TLS on the same port as plain HTTP: its first byte tells. TLS is done in memory: what a
socket brings goes in, what the engine reads comes out. asyncio's own cannot take over a connection
whose first bytes were read already.

``Server`` ticks for all connections together, because a timer for each request would cost more
than most of what else it needs. What a client gets for the bytes of one read leaves in one piece.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence, Sized
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from mcp_tool_filter.core.engine.client_h1 import H1Client
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.writing import LONG
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.process.background import keep
from mcp_tool_filter.core.process.limits import (
    MemoryBudget,
    most_upstream_connections,
    return_free_memory,
)
from mcp_tool_filter.core.process.proxy import Proxy
from mcp_tool_filter.core.process.site import Site, TargetFinder
from mcp_tool_filter.core.sockets.connect import HttpFailed, connect
from mcp_tool_filter.core.sockets.keepalive import keep_alive

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.service import Asking, Host, Service

_BACKLOG = 1024
_GOODBYE = 1.0
"""Seconds for the last bytes to be sent when the process ends."""
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address family that this machine does not have."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host name, all with the same port. Raises StartError."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    doors: list[socket.socket] = []
    problems: list[OSError] = []
    for family, *_, address in dict.fromkeys(found):
        try:
            chosen = doors[0].getsockname()[1] if doors else port
            doors.append(_listen(family, (address[0], chosen, *address[2:])))
        except OSError as error:
            problems.append(error)
    serious = [problem for problem in problems if problem.errno not in _NOT_HERE]
    if serious or not doors:
        for door in doors:
            door.close()
        raise _cannot_listen(host, port, (serious or problems)[0])
    return doors


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    # asyncio sends small pieces at once only if the protocol is named.
    door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":  # there it means something else
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        door.setblocking(False)
        door.bind(address)
        door.listen(_BACKLOG)
    except OSError:
        door.close()
        raise
    return door


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    reason = error.strerror or str(error)
    return StartError(
        f"Cannot listen on {host}:{port}", why=f"{reason}; --port 0 picks a free port"
    )


def opening(proxy: Proxy, find_target: TargetFinder) -> Callable[[str], Awaitable[Site]]:
    """Return what opens the site of an only upstream."""

    async def open_site(address: str) -> Site:
        target = find_target(proxy.config)
        site = await proxy.open(target.url, find_target, address=address)
        proxy.check_patterns()
        return site

    return open_site


class Server:
    """Serves one upstream, or several, until it is told to stop.

    It has all clients of the process, and the connections that we open for them.
    """

    service: Service
    """A site, or what returns one for each request."""
    room: UpstreamRoom
    ask: Callable[[Asking], Upstream | None]

    def __init__(
        self,
        proxy: Proxy,
        doors: Sequence[socket.socket],
        open_service: Callable[[str], Awaitable[Service]],
        make_tls: Callable[[], ssl.SSLContext],
    ) -> None:
        """``open_service`` gets our address, and returns the site of the only upstream, or a
        service that knows the site of each request. ``make_tls`` returns the TLS settings towards
        clients; called when the first one uses TLS."""
        self._proxy, self._doors, self._open_service = proxy, doors, open_service
        self._make_tls = make_tls
        self.loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self.reads = Reads(proxy.budget)
        self.all: set[ClientConnection] = set()
        self._pools: dict[Site, Pool] = {}
        self._timer: asyncio.TimerHandle | None = None
        proxy.more_holders = lambda: iter(list(self.all))

    @property
    def address(self) -> str:
        """Our address as a URL."""
        if not self._doors:
            return ""  # the host of another transport
        host, port, *_ = self._doors[0].getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings towards clients; None if they cannot be made, which is told once."""
        try:
            return self._make_tls()
        except Exception as error:
            log.warning("Clients cannot use TLS here: %s (--cert names a certificate)", error)
            return None

    def leave(self) -> None:
        """Stop serving."""
        self._leaving.set()

    async def start(self) -> None:
        """Fetch the tools and accept clients. Raises StartError."""
        proxy = self._proxy
        proxy.begin()
        await proxy.plugs.serve()
        self._serve(await self._open_service(self.address))
        for door in self._doors:
            server = await self.loop.create_server(self._connected, sock=door, backlog=_BACKLOG)
            self._servers.append(server)
        proxy.plugs.announce()
        proxy.ready.set()
        return_free_memory()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    def _serve(self, service: Service) -> None:
        is_one, descriptors = isinstance(service, Site), self._proxy.crowd.descriptors
        self.service = service
        self.room = self._proxy.room = UpstreamRoom(descriptors, self.all, is_shared=not is_one)
        self.ask = self._pool_of(service).connect if is_one else self._ask
        self._tick()

    def _connected(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    async def run(self) -> None:
        """Serve until told to stop; let open calls finish; then disconnect all clients."""
        await self._leaving.wait()
        if not (proxy := self._proxy).ending.has_failed:
            proxy.ending.begin_to_leave()
            await self._take_the_last()
            self._close_doors()
            await proxy.ending.wait_for_requests_in_flight()
            self._hang_up({exchange.down.host for exchange in proxy.exchanges})
            await proxy.ending.drain()
        await self.close()

    async def _take_the_last(self) -> None:
        """Accept those who have connected already: closing the door would reset them."""
        for door in self._doors:
            with suppress(OSError):
                while True:
                    visitor, _ = door.accept()
                    await self.loop.connect_accepted_socket(self._connected, visitor)

    async def close(self) -> None:
        """Accept no new clients, and close every connection when its last bytes are sent."""
        self._proxy.has_ended = True
        self._close_doors()
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up(set())
        end = self.loop.time() + _GOODBYE
        while self.all and self.loop.time() < end:
            await asyncio.sleep(0.005)
        for one in list(self.all):
            one.abort()
        for site in list(self._pools):
            self.forget(site)
        await self._proxy.close()

    def _close_doors(self) -> None:
        for server in self._servers:
            server.close()
        for door in self._doors:
            door.close()

    def _hang_up(self, but: set[Host]) -> None:
        """Close every connection but these when its last bytes are sent."""
        for one in self.all - but:
            one.hang_up()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(_TICK, self._tick)
        now = self.loop.time()
        for one in list(self.all):
            one.speaks.tick(now)

    # Connections to upstreams

    def _ask(self, exchange: Asking) -> Upstream | None:
        return self._pool_of(exchange.service).connect(exchange)

    def _pool_of(self, site: Service) -> Pool:
        assert isinstance(site, Site)
        if (pool := self._pools.get(site)) is None:
            pool = self._pools[site] = Pool(site, self.reads, self.room)
        return pool

    def release(self, owner: Host) -> None:
        """Close a client's own connections: the client has left."""
        for pool in self._pools.values():
            pool.release(owner)

    def forget(self, site: Site) -> None:
        """Close the connections to an upstream that we serve no more."""
        if (pool := self._pools.pop(site, None)) is not None:
            pool.close()


log = logging.getLogger(__name__)

_READ_SIZE = 256 * 1024
_HANDSHAKE = b"\x16"  # the first byte of a TLS connection
_LINGER = 2.0
"""Seconds after the last byte of our answer in which a client that still sends may read it: a reset
would destroy it."""
_STALLED = 30.0
"""Seconds in which a closed client must read some of the rest."""
_MOST_IGNORED = 1024 * 1024
"""Bytes that such a client may still send."""
_TICK = 2.5  # seconds
_MOST_RECORDS = 256
"""TLS records of one client that we read in a row before we serve others: one may hold a byte."""
_LARGE = 16 * 1024
_MOST_PIECES = 16
"""Pieces for one client that are sent together: more wait for whether it reads them."""


class Reads:
    """Gives the engine what was read from any socket."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.answered: list[ClientConnection] | None = None
        """The clients that get something for the bytes that the engine reads now."""

    def give(self, speaks: H1Client | Upstream, data: bytes) -> None:
        self._budget.left -= len(data)
        if self._budget.left < 0:
            self._budget.look_soon()
        answered = self.answered = []
        try:
            speaks.receive(data)
            self.answered = None
            for one in answered:
                one.flush()
        except BaseException:  # no client may wait for what will not be sent
            self.answered = None
            for one in answered:
                one.abort()
            raise


class _Connection(asyncio.Protocol):
    """One socket; ``speaks`` is its part of the engine."""

    _transport: asyncio.Transport
    speaks: H1Client | Upstream
    _largest = 0
    """Bytes of the largest piece of which a part may be unsent: asyncio keeps all of it."""

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_writing(self) -> None:
        self.speaks.held(True)

    def resume_writing(self) -> None:
        self.speaks.held(False)

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():  # asyncio would log each write
            return
        if self._largest or len(data) >= _LARGE:
            rest = self._largest if self._transport.get_write_buffer_size() else 0
            self._largest = max(rest, len(data)) if len(data) >= _LARGE else rest
        self._transport.write(data)

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.get_write_buffer_size()

    def hold(self, on: bool) -> None:
        """Stop reading, or read on."""
        if not self._transport.is_closing():
            (self._transport.pause_reading if on else self._transport.resume_reading)()

    def abort(self) -> None:
        self._transport.abort()


class ClientConnection(_Connection):
    """One client's connection; it is the engine's ``Host``."""

    speaks: H1Client

    def __init__(self, server: Server) -> None:
        self._server, self._reads = server, server.reads
        self.is_tls = False
        self.connect = server.ask
        self._unsent: list[bytes] = []
        self._tls: ServerTls | None = None
        self._is_plain = self._is_closing = False
        self._is_held = self._has_records = False
        self._ignored = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))
        own, peer = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        self.own, self.peer, self.port = str(own[0]), str(peer[0]), int(peer[1])
        self.send: Callable[[bytes], None] = self._write
        self._server.all.add(self)
        self._log("client connect")
        self.speaks = H1Client(self._server.service, self)

    def data_received(self, data: bytes) -> None:
        if self._is_plain and not self._is_closing:
            self._reads.give(self.speaks, data)
        elif self._is_closing:
            self._ignored += len(data)
            if self._ignored > _MOST_IGNORED:
                self._transport.abort()
        elif self._tls is not None or data[:1] == _HANDSHAKE:
            self._receive_tls(data)
        else:
            self._is_plain = True
            self._reads.give(self.speaks, data)

    def _receive_tls(self, data: bytes) -> None:
        try:
            if self._tls is None:
                if (context := self._server.tls) is None:
                    self._transport.close()
                    return
                self.is_tls = True
                self._tls = ServerTls(context, self._write)
                self.send = self._tls.send
            tls = self._tls
            plain = tls.receive(data)
        except Exception as error:
            if not isinstance(error, ssl.SSLError):
                self._server.service.note_failure(error)
            log.info("the TLS of a client failed: %s", error)
            self._transport.close()
            return
        if plain:
            self._reads.give(self.speaks, plain)
        if tls.has_ended:
            self._transport.close()
        elif tls.has_more is not self._has_records:
            self._has_records = tls.has_more
            self._hold()
        if self._has_records:
            self._server.loop.call_soon(self._receive_more_tls)

    def _receive_more_tls(self) -> None:
        """Continue after other clients were served."""
        if not self._is_closing and not self._transport.is_closing():
            self._receive_tls(b"")

    def hold(self, on: bool) -> None:
        self._is_held = on
        self._hold()

    def _hold(self) -> None:
        super().hold(self._is_held or self._has_records)

    def eof_received(self) -> bool:
        return False  # a half-closed client counts as gone

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.all.discard(self)
        self._log("client disconnect")
        self._is_closing = True
        self.speaks.gone()
        self._server.release(self)

    def _log(self, what: str) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", what, extra={"client": (self.peer, self.port)})

    # What the engine orders

    def _write(self, data: bytes) -> None:
        answered = self._reads.answered
        if answered is None or len(data) > LONG:  # joining it would copy it
            self.flush()
            super()._write(data)
            return
        if not self._unsent:
            answered.append(self)
        self._unsent.append(data)
        if len(self._unsent) > _MOST_PIECES:
            self.flush()

    def flush(self) -> None:
        """Send what waits for the end of a read."""
        if unsent := self._unsent:
            self._unsent = []
            super()._write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def close(self) -> None:
        if self._is_closing or self._transport.is_closing():
            return
        self._is_closing = True
        if self._tls is not None:
            self._tls.close()
        self.flush()
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with suppress(OSError):  # the client has reset the connection meanwhile
                self._transport.write_eof()
        self._wait_for_the_client(self.unsent, 0.0)

    def _wait_for_the_client(self, unsent: int, stalled: float) -> None:
        """Let the client read, however slowly; it has read nothing for so many seconds."""
        self._server.loop.call_later(_LINGER, self._look_at_the_client, unsent, stalled)

    def _look_at_the_client(self, unsent: int, stalled: float) -> None:
        left = self.unsent
        stalled = stalled + _LINGER if left == unsent else 0.0
        if unsent == 0 or stalled >= _STALLED:
            self._transport.abort()
        else:
            self._wait_for_the_client(left, stalled)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self._server.loop.call_later(seconds, act)

    def wake(self) -> None:
        """Nothing to do: orders are carried out at once."""

    # What the process needs

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: what was not read, and the pieces that are not sent completely."""
        unsent = self.unsent
        kept = unsent + self._largest if unsent else 0
        return kept + len(self.speaks.wire.unread)

    def give_up(self) -> None:
        """Disconnect a client that does not read."""
        self.abort()

    def hang_up(self) -> None:
        """Close the connection when its last bytes are sent."""
        self.flush()
        self._transport.close()


_OLD = 5.0  # seconds until an idle connection is closed: most servers close it then, too
_PATIENCE = 30.0  # seconds to connect
_MOST_IDLE = 64
_FEW = 8
"""Connections that an upstream gets although others have many."""


class UpstreamRoom:
    """Limits the connections to all upstreams together, with those of our own fetches."""

    def __init__(self, descriptors: int, clients: Sized, *, is_shared: bool) -> None:
        """``descriptors`` are all that the process may open, also for its ``clients``.

        If it ``is_shared`` by several upstreams, a quarter is for those that have few connections:
        the load of one must not stop another.
        """
        self.descriptors, self._clients, self._is_shared = descriptors, clients, is_shared
        self.pools: set[Pool] = set()
        self._lent = 0  # connections of our own fetches

    def take(self) -> bool:
        """Count a connection that is no pool's; False if there are too many."""
        if not self.has_one(self._lent):
            return False
        self._lent += 1
        return True

    def give_back(self) -> None:
        self._lent -= 1

    def has_one(self, size: int) -> bool:
        """Tell whether there is room for one more connection of an upstream that has so many; an
        idle one may be closed for it."""
        count = sum(pool.size for pool in self.pools) + self._lent
        kept = self.most // 4 if self._is_shared and size >= _FEW else 0
        return count + kept < self.most or any(pool.close_oldest() for pool in self.pools)

    @property
    def most(self) -> int:
        return most_upstream_connections(self.descriptors, len(self._clients))


class Pool:
    """Opens connections to one upstream, and keeps idle ones for later requests."""

    def __init__(self, site: Site, reads: Reads, room: UpstreamRoom) -> None:
        target = site.target
        self._site, self._origin, self._tls = site, parse_origin(target.url), target.tls
        self.reads, self._room = reads, room
        room.pools.add(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self.all: set[UpstreamConnection] = set()
        self.idle: list[UpstreamConnection] = []
        """The one that was used last is at the end."""
        self._owned: dict[Host, UpstreamConnection] = {}
        """Idle connections of one client each."""
        self.loop = asyncio.get_running_loop()
        self._sweeping: asyncio.TimerHandle | None = None

    def connect(self, exchange: Asking) -> Upstream | None:
        """Return an idle connection for an exchange, or give it one later."""
        if (one := self._take_idle(exchange)) is not None:
            return one.speaks
        if self._room.has_one(self.size):
            keep(self._tasks, self.loop.create_task(self._open_for(exchange)))
        else:
            exchange.unreachable("too many connections to the upstream")
        return None

    @property
    def size(self) -> int:
        """The number of connections, also of those that are being opened."""
        return len(self.all) + len(self._tasks)

    def _take_idle(self, exchange: Asking) -> UpstreamConnection | None:
        if self._owned and (own := self._owned.pop(exchange.down.host, None)) is not None:
            if not own.is_closing and self._suits(exchange, own):
                return own
            own.abort()
        while self.idle:
            one = self.idle[-1]
            if one.is_closing:
                self.idle.pop()
                continue
            if not self._suits(exchange, one):
                return None  # it may be about to close
            return self.idle.pop()
        return None

    def _suits(self, exchange: Asking, one: UpstreamConnection) -> bool:
        return self.loop.time() - one.since < exchange.most_idle or exchange.may_use_any

    def close_oldest(self) -> bool:
        """Make room for a new connection; False if none is idle."""
        while self.idle:
            one = self.idle.pop(0)
            if not one.is_closing:
                one.abort()
                self.all.discard(one)
                return True
        return False

    async def _open_for(self, exchange: Asking) -> None:
        try:
            await self._open(exchange)
        except Exception as error:
            exchange.fail(error)

    async def _open(self, exchange: Asking) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                _, one = await connect(self._origin, self._tls, lambda: UpstreamConnection(self))
        except TimeoutError:
            return exchange.unreachable("Connection timeout")
        except HttpFailed as error:
            return exchange.unreachable(str(error))
        self._site.note_connection()
        return one.be_idle() if exchange.is_over else exchange.connected(one.speaks)

    def kept(self, one: UpstreamConnection) -> None:
        """Keep an idle connection for a while."""
        if (owner := one.speaks.owner) is not None:
            self.release(owner)
            self._owned[owner] = one
            return
        self.idle.append(one)
        if len(self.idle) > _MOST_IDLE:
            self.idle.pop(0).abort()
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(_OLD, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that have been idle for long."""
        self._sweeping = None
        now = self.loop.time()
        while self.idle and now - self.idle[0].since >= _OLD:
            self.idle.pop(0).abort()
        if self.idle:
            self._sweeping = self.loop.call_at(self.idle[0].since + _OLD, self._sweep)

    def release(self, owner: Host) -> None:
        """Close a client's own connection: the client has left."""
        if (one := self._owned.pop(owner, None)) is not None:
            one.abort()

    def lost(self, one: UpstreamConnection) -> None:
        self.all.discard(one)
        if one in self.idle:
            self.idle.remove(one)

    def close(self) -> None:
        self._room.pools.discard(self)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        for one in list(self.all):
            one.abort()


class UpstreamConnection(_Connection):
    """One connection to the upstream."""

    speaks: Upstream

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reads = pool.reads
        self.since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))
        self._pool.all.add(self)
        self.speaks = Upstream(
            write=self._write, abort=transport.abort, hold=self.hold, idle=self.be_idle
        )

    def data_received(self, data: bytes) -> None:
        self._reads.give(self.speaks, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._pool.lost(self)
        self.speaks.lost()

    def be_idle(self) -> None:
        if self.unsent:  # it answered before it had read everything
            return self._transport.abort()
        self.since = self._pool.loop.time()
        return self._pool.kept(self)


class ServerTls:
    """One client's TLS. ``write`` sends bytes on the socket."""

    def __init__(self, context: ssl.SSLContext, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_ready = False
        """True once the handshake is done."""
        self.has_ended = False
        """True once the client has announced that it sends no more."""
        self.has_more = False
        """True if some of what has come was not decrypted: call ``receive`` again."""

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the socket; return them decrypted. Raises SSLError."""
        self._in.write(data)
        plain = []
        try:
            if not self.is_ready:
                self._tls.do_handshake()
                self.is_ready = True
            self.has_more = False
            while piece := self._tls.read(_READ_SIZE):
                plain.append(piece)
                if len(plain) == _MOST_RECORDS:
                    self.has_more = True
                    break
            else:
                self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        finally:
            self._flush()
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def send(self, data: bytes) -> None:
        if data:
            self._tls.write(data)
            self._flush()

    def close(self) -> None:
        """Tell the client that nothing follows."""
        with suppress(ssl.SSLError):  # it waits for the client's goodbye, and we do not
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._out.pending:
            self._write(self._out.read())
