"""Clients with an open stream hear of it when an edit of the patterns changes their list.

Only where the upstream has declared that it says so itself; other clients do not expect it.
"""

from __future__ import annotations

from collections.abc import Callable

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.streams import inject, open_flows
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.protocol.sse import render_event

_NOTICE = render_event(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')


def tell_list_changed(
    before: Config, now: Config, conversation_of: Callable[[HTTPFlow], Conversation | None]
) -> None:
    """Tell the clients whose stream is open, and carries no answer to a request.

    ``conversation_of`` returns that of an event stream.
    """
    if (before.deny, before.allow) == (now.deny, now.allow):
        return
    for flow in open_flows():
        conversation = conversation_of(flow) if flow.request.method == "GET" else None
        session = conversation.client.session if conversation else None
        if session is not None and session.declares_changes:
            inject(flow, _NOTICE)
