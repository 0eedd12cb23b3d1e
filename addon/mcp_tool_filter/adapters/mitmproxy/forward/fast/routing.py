"""Route events between a connection and its streams with fewer steps.

``HttpLayer`` passes events and commands between its streams and connections. Each step is a
generator within a generator, and together they are most of mitmproxy's work for a request. Here we
call an HTTP/1 connection directly, because it never waits.

We use these internals of mitmproxy: what ``HttpLayer.event_to_child`` does for each command, what
``Http1Connection._handle_event`` does, and that neither pauses.
"""

from __future__ import annotations

from collections.abc import Iterable
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

from mcp_tool_filter.adapters.mitmproxy.forward.fast.bodies import LARGE, carry_received, carry_sent
from mcp_tool_filter.adapters.mitmproxy.forward.safe.http1 import (
    BoundedHttp1Server,
    PatientHttp1Client,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import (
    FilteredHttpLayer,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps

_NEVER_PAUSE = (BoundedHttp1Server, PatientHttp1Client)


class QuickHttpLayer(FilteredHttpLayer):
    """Behaves like ``FilteredHttpLayer``."""

    def event_to_child(self, child: Any, event: events.Event) -> Steps:
        # Not isinstance, which is slow for these abstract classes.
        if type(child) in _NEVER_PAUSE and child.debug is None:
            return self._carry(child, tell(child, event))
        return self._carry(child, child.handle_event(event))

    def register_connection(self, command: RegisterHttpConnection) -> Steps:
        client = self.connections[command.connection]
        if not command.err and type(client) is HttpClient:
            self.connections[command.connection] = client.child_layer  # to call it directly
        return super().register_connection(command)

    def _carry(self, child: Layer, said: Iterable[commands.Command]) -> Steps:
        """Route the commands of a stream or connection to the others; yield the remaining
        commands."""
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
                if stream is not None:  # the stream may be over already
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
    """Handle an event of a connection, as ``handle_event`` does in two more steps."""
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
