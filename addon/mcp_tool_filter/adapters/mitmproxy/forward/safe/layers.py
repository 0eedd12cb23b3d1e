"""mitmproxy's HTTP layer, made to fail closed.

In the ``next_layer`` hook of mitmproxy, an addon chooses the layer for a connection. We choose a
``FilteredHttpLayer``: mitmproxy's ``HttpLayer`` with what a filter needs and no hook offers:

* an answer of ours where mitmproxy would write an HTML page (``install_error_answers``);
* injecting bytes into an open response, ending it, cutting it (see ``orders``);
* the hosts that a client named, before mitmproxy overwrites them with the upstream's;
* no crash, hang or bypass: an exception in a stream callable cuts the stream, an empty chunk is not
  mistaken for the end, no connection becomes a raw tunnel.

All names from ``mitmproxy.proxy`` are internals; our tests run against the real mitmproxy and show
if a release changes one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    RegisterHttpConnection,
)

from mcp_tool_filter.adapters.mitmproxy.forward.safe.http1 import (
    BoundedHttp1Server,
    bounded_server,
    make_patient,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import installed
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Order, ReadOn, Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream

log = logging.getLogger(__name__)

_AT_ONCE = 16  # waiting requests that we answer before we wait until the answers are sent


def http_layer_of(client: Client) -> FilteredHttpLayer | None:
    """Return the layer of a client's connection; in tunnels, the one that was used last."""
    kept: Callable[[], FilteredHttpLayer | None] | None = getattr(client, "read_by", None)
    return kept() if kept else None


class FilteredHttpLayer(layers.HttpLayer):
    """One client connection."""

    _is_sending = False
    """True while further requests wait until earlier answers are sent."""

    def make_stream(self, stream_id: int) -> Steps:
        read: Any = self.context.client
        read.read_by = ref(self)
        stream = self.streams[stream_id] = self._new_stream(stream_id)
        # As mitmproxy does for a new stream, and on events.Start.
        stream.mode = self.mode
        stream.client_state = stream.state_wait_for_request_headers
        yield from ()

    def _new_stream(self, stream_id: int) -> SafeStream:
        return SafeStream(_forked(self.context), stream_id)

    def register_connection(self, command: RegisterHttpConnection) -> Steps:
        if not command.err:
            make_patient(self.connections[command.connection])
        yield from super().register_connection(command)
        if command.err:
            # mitmproxy would fail every later request of this client with the same error, even when
            # the upstream is back.
            self.connections.pop(command.connection, None)

    def handle_event(self, event: events.Event) -> Steps:
        return self._handle_event(event)  # it never waits, only its streams do

    def _handle_event(self, event: events.Event) -> Steps:
        client = self.context.client
        if type(event) is events.Start and self._speaks_http1:
            self.connections.setdefault(client, bounded_server(self.context))
        try:
            if type(event) is events.DataReceived:
                installed.meter(len(event.data))
            reader = None
            if isinstance(event, events.ConnectionEvent):
                reader = self.connections.get(event.connection)
            if reader is not None:  # a shortcut for the most frequent event
                yield from self.event_to_child(reader, event)
            elif isinstance(event, ReadOn):
                self._is_sending = False
            elif isinstance(event, Order):
                yield from self._carry_out(event)
            else:
                yield from super()._handle_event(event)
            reader = self.connections.get(client)
            if type(reader) is BoundedHttp1Server and reader.is_behind:
                yield from self._read_on(reader)
        except Exception:
            # mitmproxy would log a crash and keep both sides waiting.
            log.exception("internal error: cannot continue with a connection")
            yield from self._give_up(event)
            if self._speaks_http1:  # the failed code may have been about to read the next request
                yield commands.CloseConnection(self.context.client)

    def _read_on(self, reader: BoundedHttp1Server) -> Steps:
        """Read the requests that arrived behind an answered one."""
        for _ in range(_AT_ONCE):
            if self._is_sending or not reader.is_behind:
                return
            nothing_new = events.DataReceived(self.context.client, b"")
            yield from self.event_to_child(reader, nothing_new)
        if reader.is_behind and installed.resume(self.context.client):
            self._is_sending = True  # a client may not read its answers

    @property
    def _speaks_http1(self) -> bool:
        alpn = self.context.client.alpn
        return self.context.client.transport_protocol == "tcp" and alpn != b"h2"

    def _carry_out(self, order: Order) -> Steps:
        stream = order.stream
        # The stream may have ended while the order waited, and its number may be in use again.
        if self.streams.get(stream.stream_id) is stream and stream.child_layer is None:
            yield from self.event_to_child(stream, order)

    def _give_up(self, event: events.Event) -> Steps:
        peer = getattr(event, "connection", self.context.client)
        yield commands.CloseConnection(peer)
        if peer is self.context.client:
            return
        why = "HTTP/1 protocol error: cannot be read"
        for stream in list(self.streams.values()):
            if isinstance(stream, SafeStream) and stream.context.server is peer:
                yield from self.event_to_child(stream, stream.upstream_error(why))


def _forked(context: Context) -> Context:
    """Like ``Context.fork``, but without creating a server object that is thrown away."""
    fork = Context.__new__(Context)
    fork.client, fork.server, fork.options = context.client, context.server, context.options
    fork.layers = context.layers.copy()
    return fork
