"""Tell clients when an edit of the patterns, or a new list, changes their tools.

We do so only if the upstream has declared such notifications: on the GET stream of a session, on a
WebSocket, and on the streams that clients of 2026-07-28 open for it.
"""

from __future__ import annotations

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.known import Known, KnownFlows
from mcp_tool_filter.adapters.mitmproxy.forward.streams import inject, open_flows
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.protocol.sse import render_event


def tell_list_changed(known_flows: KnownFlows, listener: Listener) -> None:
    """Tell all clients of this listener that have a suitable open stream."""
    for flow in open_flows():
        known = known_flows.get(flow)
        if known is not None and known.listener is listener:
            _tell(flow, known)


def _tell(flow: HTTPFlow, known: Known) -> None:
    if known.socket:
        known.socket.tell_list_changed(flow)
    elif known.stream:
        # Not in the answer to a POST, unless the client has subscribed with it.
        in_session = flow.request.method == "GET"
        for notice in known.stream.conversation.list_changed_notices(in_session=in_session):
            inject(flow, render_event(notice))
