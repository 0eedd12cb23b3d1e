"""Cancel many requests while many others are open, as an attacker does in one batch."""

from __future__ import annotations

from mcp_tool_filter.observers.audit.entries import OpenRequest
from mcp_tool_filter.observers.open_requests import OpenRequests, key_of
from mcp_tool_filter.policy.exchange import Client, Exchange


def cancel_audited(raw: bytes) -> None:
    """Cancel as many requests as there are bytes; none of them is open."""
    kept: OpenRequests[OpenRequest] = OpenRequests()
    client = Client()
    for number, _ in enumerate(raw):
        exchange = Exchange("tools/call", str(number), "read")
        key = key_of(client, str(number))
        kept.add(OpenRequest(exchange, {}, 0.0, None, client, key))
    for _ in raw:
        kept.take_by_id(client, '"none"')
