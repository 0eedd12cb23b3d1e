"""Pass requests and answers that are not MCP through a forward proxy unread.

No hook runs for them, so no addon changes or records them, and we keep none of their bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.layers.http import DropStream, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestProtocolError,
    ResponseEndOfMessage,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpConnectedHook,
    HttpConnectErrorHook,
    HttpConnectHook,
    HttpRequestHeadersHook,
    HttpResponseHeadersHook,
)
from mitmproxy.proxy.layers.websocket import WebsocketMessageHook

from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.forward.safe.interceptor import interceptor
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Order, Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.recognise import Treatment, Watch
from mcp_tool_filter.observers.redaction.shown import shown_url

log = logging.getLogger(__name__)

_OF_TUNNELS = (HttpConnectHook, HttpConnectedHook, HttpConnectErrorHook)


class PassingStream(SafeStream):
    """A request that may turn out not to be MCP, and its response."""

    _way: Treatment | None = None  # not known yet
    _watch: Watch | None = None

    def _pass_on(self, event: events.Event) -> Steps:
        """Handle an event as mitmproxy does, but without hooks and without keeping bodies."""
        if isinstance(event, Order) or self.over:
            return
        if self._watch and isinstance(event, RequestData) and not self._watch.may_pass(event.data):
            log.warning("Cut off a long request that turned out to be MCP")
            yield from self._cut_off("a message that is too long")
            return
        try:
            yield from self._without_hooks(HttpStream._handle_event(self, event))
        except ProtocolError as error:
            log.warning("Refused %s: %s", shown_url(self.flow.request.pretty_url), error)
            yield from self._cut_off(str(error))
        self.request_body_buf.clear()
        self.response_body_buf.clear()

    def _without_hooks(self, steps: Steps) -> Steps:
        reply: Any = None
        run: list[commands.StartHook] = []
        while True:
            try:
                command = steps.send(reply)
            except StopIteration:
                break
            reply = None
            if isinstance(command, commands.StartHook) and not isinstance(command, _OF_TUNNELS):
                self._instead_of(command)
                if command.blocking is not True:  # an inner layer waits for it
                    run.append(command)
            else:
                reply = yield command
        for hook in run:
            completed = HttpStream.passthrough(self, events.HookCompleted(hook))
            yield from self._without_hooks(completed)

    def _instead_of(self, hook: commands.StartHook) -> None:
        asked = interceptor()
        match hook:
            case HttpRequestHeadersHook(flow=flow):
                self._remember()
                flow.request.stream = True
                if asked:
                    asked.prepare_other(flow)
            case HttpResponseHeadersHook(flow=flow) if flow.response:
                look = asked.look_at_answer(flow) if asked else None
                flow.response.stream = look or flow.response.status_code != 101
            case WebsocketMessageHook(flow=flow) if asked:
                asked.look_at_message(flow)

    def _cut_off(self, why: str) -> Steps:
        """Close both sides, so that no reader takes the passed part for the complete body."""
        self._forget()
        error = RequestProtocolError(self.stream_id, why, ErrorCode.CANCEL)
        if self.flow.server_conn in self._connections:
            yield SendHttp(error, self.context.server)
        kill = ResponseProtocolError(self.stream_id, why, ErrorCode.KILL)
        yield DropStream(self.stream_id)
        yield SendHttp(kill, self.context.client)

    @property
    def _connections(self) -> dict[Any, Any]:
        mine = [one for one in self.context.layers if isinstance(one, layers.HttpLayer)]
        return mine[-1].connections

    def _forget(self) -> None:
        self.over = True
        self.client_state = self.server_state = nothing
        self._way = Treatment.OTHER

    def check_body_size(self, request: bool) -> Generator[commands.Command, Any, bool]:
        if self._way is Treatment.MCP:
            return (yield from super().check_body_size(request))
        return False

    def flow_done(self) -> Steps:
        if self._way is Treatment.MCP:
            yield from super().flow_done()
            return
        assert self.flow.response
        if self.flow.response.status_code != 101 or self.flow.websocket:
            yield from HttpStream.flow_done(self)
            return
        self.flow.live = False
        self.child_layer = layers.TCPLayer(self.context, ignore=True)
        self._handle_event = self.passthrough  # type: ignore[method-assign]  # as mitmproxy does
        yield from self.child_layer.handle_event(events.Start())
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def passthrough(self, event: events.Event) -> Steps:
        """Forward the bytes of a tunnel or a WebSocket."""
        if self._way is Treatment.MCP:
            yield from super().passthrough(event)
        elif self.flow.websocket:
            yield from self._without_hooks(HttpStream.passthrough(self, event))
        else:
            yield from HttpStream.passthrough(self, event)
