"""The requests that MCP knows, by method, of all revisions together."""

from __future__ import annotations

from typing import Final

from mcp_tool_filter.protocol.messages import Notification, Request, Single

CLIENT_REQUESTS: Final = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tools/call",
        "tools/list",
    }
)
"""What a client may ask of the upstream. (The union ``ClientRequest`` of the official schemas.)"""


def is_request(message: Single) -> bool:
    """Tell whether a message asks for something, also without an id: some upstreams do it."""
    if isinstance(message, Notification):
        return message.method in CLIENT_REQUESTS
    return isinstance(message, Request)
