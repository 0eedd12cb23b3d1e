"""Subscriptions to changes of the tool list.

Clients of 2026-07-28 subscribe to ``notifications/tools/list_changed``: they send
``subscriptions/listen``, and the upstream acknowledges and says which of the requested
notifications it will send. Each of these names the id of that request:

>>> notice("7")
b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed",\
"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_tool_filter.core.messages.messages import Notification, Place, Response
from mcp_tool_filter.core.messages.scan import Value, open_value
from mcp_tool_filter.core.messages.sizes import NAME

if TYPE_CHECKING:
    from mcp_tool_filter.core.conversation.conversation import Exchanges

LIST_CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def notice(subscription: str | None = None) -> bytes:
    """Render the notification, for a session or for the subscription with this id."""
    params = f',"params":{{"_meta":{{"{_SUBSCRIPTION}":{subscription}}}}}' if subscription else ""
    return f'{{"jsonrpc":"2.0","method":"{LIST_CHANGED}"{params}}}'.encode()


def agreed_subscription(message: Notification) -> str | None:
    """Return the id, as it was written, of a subscription to changes of the tool list.

    None if the message acknowledges no such subscription.
    """
    params = message.params
    meta = params.get("_meta") if params else None
    id = meta.get(_SUBSCRIPTION) if meta else None
    if params is None or id is None:
        return None
    written = message.place.cut(id)
    is_id = len(written) <= NAME and written[0] in '"-0123456789'
    agrees = is_true(message.place, params.get("notifications"), "toolsListChanged")
    return written if is_id and agrees else None


def note_subscription(exchanges: Exchanges, message: Notification) -> None:
    """Note that the upstream will tell the client about list changes, if the message says so."""
    if id := agreed_subscription(message):
        for spelling in (id, id.strip('"')):  # some upstreams write a number as a string
            asked = exchanges.answered_by(Response(spelling)) if spelling else None
            if asked is not None and asked.method == "subscriptions/listen":
                asked.subscription = id
                return


def is_true(place: Place, value: Value | None, *keys: str) -> bool:
    """Tell whether a value has a member, in these members, that is true. (Of two, most read the
    last.)"""
    for key in keys:
        members = (open_value(place.text, value).members or ()) if value else ()
        value = next((member.value for member in reversed(members) if member.key == key), None)
    return value is not None and place.cut(value) == "true"
