"""What we remember about a flow between its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.websocket import Socket
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.exchange import Client


@dataclass(slots=True)
class Known:
    listener: Listener
    exchange: HttpExchange
    stream: EventStream | None = None
    socket: Socket | None = None
    login_at: str | None = None
    """The URL to which we redirect a browser that logs in."""


class KnownFlows(WeakKeyDictionary[HTTPFlow, Known]):
    def __init__(self, listeners: Listeners) -> None:
        super().__init__()
        self._listeners = listeners
        self.failed: WeakSet[HTTPFlow] = WeakSet()
        """The flows whose upstream could not be reached, or disconnected before it had answered."""

    def of(self, flow: HTTPFlow) -> Known:
        """Return what we know about a flow. If it is new, another addon has answered before us."""
        known = self.get(flow)
        if known is None:
            listener = self._listeners.listener_of(flow)
            known = self[flow] = Known(listener, listener.unasked())
        return known

    def client_of(self, flow: HTTPFlow) -> Client | None:
        """Return the client that waits for the flow's answer; None if it waits on another
        stream."""
        known = self.get(flow)
        if known is None:
            return None
        if known.socket:
            return known.socket.client
        exchange = known.exchange
        is_post_of_stream = exchange.is_legacy and exchange.head.method != "GET"
        return None if is_post_of_stream else exchange.conversation.client

    def socket_of(self, flow: HTTPFlow) -> Socket | None:
        known = self.get(flow)
        return known.socket if known else None
