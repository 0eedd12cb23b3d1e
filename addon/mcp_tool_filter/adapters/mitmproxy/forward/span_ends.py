"""End the spans that no answer will end. Added to mitmproxy only if requests are traced."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.known import KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.streams import upstream_failed
from mcp_tool_filter.adapters.watch.tracing import Tracer

_BAD_REQUEST = 400


class SpanEnds:
    """An addon after the tool filter, which sees how each flow ends."""

    def __init__(self, tracer: Tracer, known: KnownFlows) -> None:
        self._tracer = tracer
        self._known = known

    def response(self, flow: HTTPFlow) -> None:
        """End the spans of a complete answer. (A stream that closes early is not an error.)"""
        if flow.response and not flow.websocket:
            status = flow.response.status_code
            self._end(flow, str(status) if status >= _BAD_REQUEST else None)

    def error(self, flow: HTTPFlow) -> None:
        self._end(flow, "upstream_failed" if upstream_failed(flow) else "client_left")

    def websocket_end(self, flow: HTTPFlow) -> None:
        is_upstreams = flow.websocket and flow.websocket.closed_by_client is False
        self._end(flow, "upstream_left" if is_upstreams else "client_left")

    def _end(self, flow: HTTPFlow, why: str | None) -> None:
        if client := self._known.client_of(flow):
            self._tracer.leave(client, why)
