"""mitmproxy's HTTP layer, with fewer steps between a connection and its stream.

``HttpLayer`` passes on what its streams and its connections say to each other; every step of that
is a generator in a generator, and most of what mitmproxy does for a request. What cannot wait is
asked here directly: an HTTP/1 connection, which never does.

Internals of mitmproxy that are used: what ``HttpLayer.event_to_child`` does for each command, what
``Http1Connection._handle_event`` does, and that neither pauses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.layers.http import (
    DropStream,
    GetHttpConnection,
    HttpClient,
    RegisterHttpConnection,
    SendHttp,
)
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._events import RequestHeaders, ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Connection

from mcp_tool_filter.adapters.mitmproxy.fast.bodies import LARGE, carry_received, carry_sent
from mcp_tool_filter.adapters.mitmproxy.safe.http1 import BoundedHttp1Server, PatientHttp1Client
from mcp_tool_filter.adapters.mitmproxy.safe.layers import (
    FilteredHttpLayer,
)

_NEVER_PAUSE = (BoundedHttp1Server, PatientHttp1Client)

type Steps = Generator[commands.Command, Any, None]


class QuickHttpLayer(FilteredHttpLayer):
    """Does what ``FilteredHttpLayer`` does."""

    def event_to_child(self, child: Any, event: events.Event) -> Steps:
        # No isinstance: these are abstract classes, for which it is slow.
        if type(child) in _NEVER_PAUSE and child.debug is None:
            return self._carry(child, tell(child, event))
        return self._carry(child, child.handle_event(event))

    def register_connection(self, command: RegisterHttpConnection) -> Steps:
        client = self.connections[command.connection]
        if not command.err and type(client) is HttpClient:
            self.connections[command.connection] = client.child_layer  # no need to ask through it
        return super().register_connection(command)

    def _carry(self, child: Layer, said: Iterable[commands.Command]) -> Steps:
        """Pass on what a stream or a connection wants; yield what is not for another of them."""
        for command in said:
            kind = type(command)
            if kind is commands.SendData:
                yield command
            elif kind is SendHttp:
                sent: Any = command
                yield from self.event_to_child(self.connections[sent.connection], sent.event)
            elif kind is ReceiveHttp:
                received: Any = command
                event = received.event
                if type(event) is RequestHeaders:
                    yield from self.make_stream(event.stream_id)
                stream = self.streams.get(event.stream_id)
                if stream is not None:  # it may be over already
                    yield from self._carry(stream, stream.handle_event(event))
            else:
                yield from self._carry_rarer(child, command)

    def _carry_rarer(self, child: Layer, command: commands.Command) -> Steps:
        if command.blocking or isinstance(command, commands.RequestWakeup):
            self.command_sources[command] = child
        match command:
            case DropStream(stream_id=number):
                self.streams.pop(number, None)
            case GetHttpConnection():
                yield from self.get_connection(command)
            case RegisterHttpConnection():
                yield from self.register_connection(command)
            case commands.OpenConnection(connection=connection):
                self.connections[connection] = child
                yield command
            case _:
                yield command


def tell(connection: Http1Connection, event: events.Event) -> Iterable[commands.Command]:
    """Let an event happen to a connection, which ``handle_event`` does in two steps more."""
    if type(event) is events.DataReceived:
        carried = carry_received(connection, event.data)
        if carried is not None:
            return carried
        if connection.state != connection.passthrough:
            connection.buf += event.data
    elif isinstance(event, HttpEvent):
        if type(event) is ResponseData and len(event.data) > LARGE:
            return carry_sent(connection, event) or connection.send(event)
        return connection.send(event)
    return connection.state(event)
