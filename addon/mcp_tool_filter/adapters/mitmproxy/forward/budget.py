"""A memory budget for all unfinished messages of all clients together.

Each message has its own limit, but many clients could each hold one that never ends: bodies sent
slowly, answers read slowly, HTTP/2 streams with a closed window. So we count incoming bytes, and
regularly check how much is held. If it is too much, the largest holders lose it: a request or an
answer fails with an error, and a client that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from mitmproxy import ctx
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.layers.http._http1 import Http1Connection
from mitmproxy.proxy.layers.http._http2 import Http2Connection
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import (
    http_layer_of,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import (
    SafeStream,
)
from mcp_tool_filter.adapters.mitmproxy.forward.streams import give_up
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)

_STEPS = 8
"""We check whenever another eighth of the budget has come in."""
_SMALL = 256 * 1024
"""Bytes; we never drop anything smaller, such as ordinary requests."""


@dataclass(frozen=True, slots=True)
class _Held:
    size: int
    give_up: Callable[[], object]


class MemoryBudget:
    """The budget of the process. ``received`` is called for all incoming bytes."""

    def __init__(self) -> None:
        self.limit = 0
        """Bytes; 0 means no budget yet."""
        self._since = 0
        self._once = Once()

    def received(self, count: int) -> None:
        self._since += count
        if self._since * _STEPS > self.limit > 0:
            self._since = 0
            # Not now: the connection is busy with this event.
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Drop the largest until the rest is within three quarters of the budget."""
        held = sorted(_all_held(), key=lambda one: one.size, reverse=True)
        total = sum(one.size for one in held)
        if total <= self.limit:
            return
        text = "Unfinished messages hold more than %d MB: the largest ones fail with an error"
        self._once.log(log, logging.WARNING, text, self.limit // 1024 // 1024)
        for one in held:
            if total <= self.limit * 3 // 4 or one.size < _SMALL:
                return
            total -= one.size
            one.give_up()


def _all_held() -> Iterator[_Held]:
    server = ctx.master.addons.get("proxyserver")
    for handler in list(server.connections.values()) if server else ():
        unsent = sum(map(_unsent_by, list(handler.transports.values())))
        if layer := http_layer_of(handler.client):
            for stream in list(layer.streams.values()):
                if isinstance(stream, SafeStream):
                    yield _Held(stream.held_bytes, partial(give_up, stream))
            unsent += sum(map(_buffered_by, list(layer.connections.values())))
        yield _Held(unsent, partial(_disconnect, handler))


def _unsent_by(io: ConnectionIO) -> int:
    transport = getattr(io.writer, "transport", None)
    return transport.get_write_buffer_size() if transport else 0


def _buffered_by(connection: Layer) -> int:
    """Return the bytes that wait to be read, or to be sent when an HTTP/2 window opens."""
    while not isinstance(connection, Http1Connection | Http2Connection):
        inner = getattr(connection, "child_layer", None)
        if inner is None:
            return 0
        connection = inner
    if isinstance(connection, Http1Connection):
        return len(connection.buf)
    queues = connection.h2_conn.stream_buffers.values()
    return sum(len(chunk.data) for queue in queues for chunk in queue)


def _disconnect(handler: ConnectionHandler) -> None:
    """Disconnect a client that does not read."""
    io = handler.transports.get(handler.client)
    if io is None:
        return
    if transport := getattr(io.writer, "transport", None):
        transport.abort()
    handler.close_connection(handler.client)
