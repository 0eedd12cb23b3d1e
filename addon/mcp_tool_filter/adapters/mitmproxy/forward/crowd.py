"""Limit the number of clients and connections, in mitmproxy's hooks."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import defaultdict
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.serving.limits import (
    Reserve,
    Seats,
    most_clients,
    most_upstream_connections,
    soft_limit,
)
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)

_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOST_AT_ONCE = 128
"""Connections to the upstream for one client; HTTP/2 has at most 100 streams at a time."""


class Crowd:
    """Counts connected clients. The addon calls each method in the hook of the same name."""

    def __init__(self) -> None:
        limit = soft_limit()
        self.reserve = Reserve()
        self._seats = Seats(most_clients(limit))
        self.surplus: Container[str] = self._seats.standing
        """The ids of the clients above the limit; each request checks it."""
        self._limit = limit
        self._once = Once()
        self._report: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

    def running(self, most: int | None) -> None:
        """Allow ``most`` clients to connect; None means as many as the descriptors allow."""
        self.adopt(most)
        self.reserve.fill()
        loop = asyncio.get_running_loop()
        self._report = (
            loop.get_exception_handler() or asyncio.AbstractEventLoop.default_exception_handler
        )
        loop.set_exception_handler(self._has_failed)

    def _has_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log once that a burst of clients has used up the descriptors; asyncio tries again later.

        mitmproxy would log a traceback for each client that has to wait.
        """
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno in _NONE_LEFT
            and "accept" in context.get("message", "")
        ):
            text = (
                "New clients have to wait: no file descriptor is left (see ulimit -n, max_clients)"
            )
            self._once.log(log, logging.WARNING, text)
        else:
            self._report(loop, context)

    def done(self) -> None:
        self.reserve.release()

    def adopt(self, most: int | None) -> None:
        self._seats.most = most or most_clients(self._limit)

    def client_connected(self, client: Client) -> None:
        _let_streams_be(client)
        gone = self._seats.enter(client.id)
        if gone is not None:
            self._close(gone)
        if client.id in self.surplus:
            text = "%d clients are connected: more clients are refused (see max_clients)"
            self._once.log(log, logging.WARNING, text, self._seats.most)

    def client_disconnected(self, client: Client) -> None:
        self._seats.leave(client.id)

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Refuse a connection to the upstream if no descriptor is left for it."""
        handlers = ctx.master.addons.get("proxyserver").connections.values()
        clients = len(handlers)
        opened = sum(len(handler.transports) for handler in handlers) - clients
        if opened > most_upstream_connections(self._limit, clients):
            data.server.error = "too many connections to the upstream"

    @staticmethod
    def _close(client_id: str) -> None:
        server = ctx.master.addons.get("proxyserver")
        handler = server.connections.get(client_id) if server else None
        if handler and handler.client in handler.transports:
            handler.close_connection(handler.client)


def _let_streams_be(client: Client) -> None:
    """Give each stream of a client its own connection to the upstream at once.

    mitmproxy opens at most five per client. Five open event streams of an HTTP/2 client would use
    all of them, and a sixth request would wait forever.
    """
    server = ctx.master.addons.get("proxyserver")
    if handler := server.connections.get(client.id) if server else None:
        handler.max_conns = defaultdict(partial(asyncio.Semaphore, _MOST_AT_ONCE))
