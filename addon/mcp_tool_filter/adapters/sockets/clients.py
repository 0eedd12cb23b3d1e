"""The clients' connections: bytes in and out, TLS, and the clock for their time-outs.

A connection may speak TLS on the same port as plain HTTP: its first byte tells. ``Clients`` ticks
for all connections together, because a timer for each request would cost more than most of what
else it needs.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.serving.limits import MemoryBudget
from mcp_tool_filter.adapters.sockets.tls import ServerTls
from mcp_tool_filter.adapters.sockets.upstreams import Pool
from mcp_tool_filter.engine.client_h1 import H1Client
from mcp_tool_filter.engine.service import Point, Service

if TYPE_CHECKING:
    from mcp_tool_filter.engine.client_h2 import H2Client

log = logging.getLogger(__name__)

_HANDSHAKE = b"\x16"  # the first byte of a TLS connection
_LINGER = 2.0
"""Seconds after the last byte of our answer in which a client that still sends may read it: a reset
would destroy it."""
_STALLED = 30.0
"""Seconds in which a closed client must read some of the rest."""
_MOST_IGNORED = 1024 * 1024
"""Bytes that such a client may still send."""
_TICK = 2.5  # seconds


class Clients:
    """All clients of one site."""

    def __init__(
        self,
        service: Service,
        pool: Pool,
        budget: MemoryBudget,
        make_tls: Callable[[], ssl.SSLContext],
        *,
        tick: float = _TICK,
    ) -> None:
        """``make_tls`` is called when the first client uses TLS."""
        self.service, self.pool, self.budget = service, pool, budget
        self.all: set[ClientConnection] = set()
        self.loop = asyncio.get_running_loop()
        self._make_tls = make_tls
        self._tls: ssl.SSLContext | None = None
        self._seconds = tick
        self._timer = self.loop.call_later(tick, self._tick)

    def connect(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    @property
    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._make_tls()
        return self._tls

    def close(self) -> None:
        """Close every connection when its last bytes are sent."""
        self._timer.cancel()
        for one in list(self.all):
            one.hang_up()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self._seconds, self._tick)
        now = self.loop.time()
        for one in list(self.all):
            one.speaks.tick(now)


class ClientConnection(asyncio.Protocol):
    """One client's connection; it is the engine's ``Host``."""

    point: Point | None = None

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.is_tls = False
        self.connect = clients.pool.connect
        self._received = clients.budget.received
        self._tls: ServerTls | None = None
        self._is_plain = self._is_closing = False
        self._ignored = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        own, peer = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        self.own, self.peer, self.port = str(own[0]), str(peer[0]), int(peer[1])
        self.send: Callable[[bytes], None] = self._write
        self._clients.all.add(self)
        self._log("client connect")
        self.speaks: H1Client | H2Client = H1Client(self._clients.service, self)

    def data_received(self, data: bytes) -> None:
        self._received(len(data))
        if self._is_plain and not self._is_closing:
            self.speaks.receive(data)
        elif self._is_closing:
            self._ignored += len(data)
            if self._ignored > _MOST_IGNORED:
                self._transport.abort()
        elif self._tls is not None or data[:1] == _HANDSHAKE:
            self._receive_tls(data)
        else:
            self._is_plain = True
            self.speaks.receive(data)

    def _receive_tls(self, data: bytes) -> None:
        try:
            if self._tls is None:
                self.is_tls = True
                self._tls = ServerTls(self._clients.tls, self._write)
                self.send = self._tls.send
            tls, was_ready = self._tls, self._tls.is_ready
            plain = tls.receive(data)
        except Exception as error:
            if not isinstance(error, ssl.SSLError):
                log.exception("internal error; connection closed")
            log.info("the TLS of a client failed: %s", error)
            self._transport.close()
            return
        if tls.is_ready and not was_ready and tls.alpn == "h2":
            from mcp_tool_filter.engine.client_h2 import H2Client

            self.speaks.gone()
            self.speaks = H2Client(self._clients.service, self)
        if plain:
            self.speaks.receive(plain)
        if tls.has_ended:
            self._transport.close()

    def eof_received(self) -> bool:
        return False  # a half-closed client counts as gone

    def connection_lost(self, _error: Exception | None) -> None:
        self._clients.all.discard(self)
        self._log("client disconnect")
        self._is_closing = True
        self.speaks.gone()
        self._clients.pool.release(self)

    def _log(self, what: str) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", what, extra={"client": (self.peer, self.port)})

    def pause_writing(self) -> None:
        self.speaks.held(True)

    def resume_writing(self) -> None:
        self.speaks.held(False)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # asyncio would log each write
            self._transport.write(data)

    # What the engine orders

    def hold(self, on: bool) -> None:
        if not self._transport.is_closing():
            (self._transport.pause_reading if on else self._transport.resume_reading)()

    def close(self) -> None:
        if self._is_closing or self._transport.is_closing():
            return
        self._is_closing = True
        if self._tls is not None:
            self._tls.close()
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._wait_for_the_client(self.held_bytes, 0.0)

    def _wait_for_the_client(self, unsent: int, stalled: float) -> None:
        """Let the client read, however slowly; it has read nothing for so many seconds."""
        self._clients.loop.call_later(_LINGER, self._look_at_the_client, unsent, stalled)

    def _look_at_the_client(self, unsent: int, stalled: float) -> None:
        left = self.held_bytes
        stalled = stalled + _LINGER if left == unsent else 0.0
        if unsent == 0 or stalled >= _STALLED:
            self._transport.abort()
        else:
            self._wait_for_the_client(left, stalled)

    def abort(self) -> None:
        self._transport.abort()

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self._clients.loop.call_later(seconds, act)

    def wake(self) -> None:
        """Nothing to do: orders are carried out at once."""

    # What the process needs

    @property
    def held_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Disconnect a client that does not read."""
        self._transport.abort()

    def hang_up(self) -> None:
        """Close the connection when its last bytes are sent."""
        self._transport.close()
