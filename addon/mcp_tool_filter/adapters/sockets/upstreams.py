"""The connections to one upstream, shared by all its clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.serving.limits import MemoryBudget, most_upstream_connections
from mcp_tool_filter.adapters.sockets.connect import why, why_none
from mcp_tool_filter.engine.upstream import Upstream
from mcp_tool_filter.http.urls import Origin

if TYPE_CHECKING:
    from mcp_tool_filter.engine.exchange import Exchange
    from mcp_tool_filter.engine.service import Host

_OLD = 5.0  # seconds until an idle connection is closed: most servers close it then, too
_PATIENCE = 30.0  # seconds to connect
_MOST_IDLE = 64


@dataclass(slots=True, kw_only=True)
class PoolLimits:
    """What a pool may use, and its callbacks."""

    budget: MemoryBudget
    descriptors: int
    clients: Callable[[], int]
    """Returns how many clients are connected."""
    reached: Callable[[], None]
    """Called with each new connection."""


class Pool:
    """Opens connections, and keeps idle ones for later requests.

    It counts the connections of our own fetches, too: they share one limit.
    """

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, limits: PoolLimits) -> None:
        self._origin, self._tls, self.limits = origin, tls, limits
        self._tasks: set[asyncio.Task[None]] = set()
        self.all: set[UpstreamConnection] = set()
        self._lent = 0  # connections of our own fetches
        self.idle: list[UpstreamConnection] = []
        """The one that was used last is at the end."""
        self._owned: dict[Host, UpstreamConnection] = {}
        """Idle connections of one client each."""
        self.loop = asyncio.get_running_loop()
        self._sweeping: asyncio.TimerHandle | None = None

    def connect(self, exchange: Exchange, *, fresh: bool) -> None:
        """Give an exchange a connection, perhaps later."""
        if not fresh and (one := self._take_idle(exchange)) is not None:
            exchange.connected(one.speaks)
            return
        if not self._has_room():
            exchange.unreachable("too many connections to the upstream")
            return
        task = self.loop.create_task(self._open_for(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take(self) -> bool:
        """Count a connection that is not ours; False if there are too many."""
        if not self._has_room():
            return False
        self._lent += 1
        return True

    def give_back(self) -> None:
        self._lent -= 1

    def _has_room(self) -> bool:
        count = len(self.all) + len(self._tasks) + self._lent
        return count < self._most or self._close_oldest()

    @property
    def _most(self) -> int:
        return most_upstream_connections(self.limits.descriptors, self.limits.clients())

    def _take_idle(self, exchange: Exchange) -> UpstreamConnection | None:
        if self._owned and (own := self._owned.pop(exchange.down.host, None)) is not None:
            if not own.is_closing and exchange.may_use(self.loop.time() - own.since):
                return own
            own.abort()
        while self.idle:
            one = self.idle[-1]
            if one.is_closing:
                self.idle.pop()
                continue
            if not exchange.may_use(self.loop.time() - one.since):
                return None  # it may be about to close
            return self.idle.pop()
        return None

    def _close_oldest(self) -> bool:
        """Make room for a new connection; False if none is idle."""
        while self.idle:
            one = self.idle.pop(0)
            if not one.is_closing:
                one.abort()
                self.all.discard(one)
                return True
        return False

    async def _open_for(self, exchange: Exchange) -> None:
        try:
            await self._open(exchange)
        except Exception as error:
            exchange.fail(error)

    async def _open(self, exchange: Exchange) -> None:
        origin, tls = self._origin, self._tls
        try:
            async with asyncio.timeout(_PATIENCE):
                _, one = await self.loop.create_connection(  # type: ignore[call-overload]
                    lambda: UpstreamConnection(self),
                    origin.host,
                    origin.port,
                    ssl=tls,
                    server_hostname=origin.host if tls else None,
                    all_errors=True,
                )
        except ExceptionGroup as group:
            exchange.unreachable(why_none(group.exceptions, origin))
        except TimeoutError:
            exchange.unreachable("Connection timeout")
        except (OSError, ssl.CertificateError) as error:
            exchange.unreachable(why(error, origin))
        else:
            self.limits.reached()
            if exchange.is_over:
                one.be_idle()
            else:
                exchange.connected(one.speaks)

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
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        for one in list(self.all):
            one.abort()


class UpstreamConnection(asyncio.Protocol):
    """One connection to the upstream."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._received = pool.limits.budget.received
        self.since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.abort = transport.abort
        self._pool.all.add(self)
        self.speaks = Upstream(
            write=self._write, abort=transport.abort, hold=self.hold, idle=self.be_idle
        )

    def data_received(self, data: bytes) -> None:
        self._received(len(data))
        self.speaks.receive(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._pool.lost(self)
        self.speaks.lost()

    def pause_writing(self) -> None:
        self.speaks.held(True)

    def resume_writing(self) -> None:
        self.speaks.held(False)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # asyncio would log each write
            self._transport.write(data)

    def hold(self, on: bool) -> None:
        if not self._transport.is_closing():
            (self._transport.pause_reading if on else self._transport.resume_reading)()

    def be_idle(self) -> None:
        if self._transport.get_write_buffer_size():  # it answered before it had read everything
            return self._transport.abort()
        self.since = self._pool.loop.time()
        self.hold(False)
        return self._pool.kept(self)

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()
