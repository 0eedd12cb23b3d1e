"""``notifications/tools/list_changed``, and how clients of 2026-07-28 subscribe to it.

They send ``subscriptions/listen``. The upstream acknowledges and says which of the requested
notifications it will send; each of these names the id of that request:

>>> notice("7")
b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed",\
"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}'
"""

from __future__ import annotations

import json

from mcp_tool_filter.protocol.messages import Notification

LIST_CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LONGEST_ID = 256  # characters
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def notice(subscription: str | None = None) -> bytes:
    """Render the notification, for a session or for the subscription with this id."""
    params = f',"params":{{"_meta":{{"{_SUBSCRIPTION}":{subscription}}}}}' if subscription else ""
    return f'{{"jsonrpc":"2.0","method":"{LIST_CHANGED}"{params}}}'.encode()


def agreed_subscription(message: Notification) -> str | None:
    """Return the id, as it was written, of a subscription to changes of the tool list.

    None if the message acknowledges no such subscription.
    """
    if message.params is None:
        return None
    meta, agreed = message.params.get("_meta"), message.params.get("notifications")
    id = meta.get(_SUBSCRIPTION) if meta else None
    if id is None or agreed is None:
        return None
    try:
        kinds = json.loads(message.place.cut(agreed))
    except (ValueError, RecursionError):
        return None
    tells = isinstance(kinds, dict) and kinds.get("toolsListChanged") is True
    written = message.place.cut(id)
    return written if tells and _is_id(written) else None


def _is_id(written: str) -> bool:
    """Tell whether this is a string or a number, and short enough to keep."""
    return len(written) <= _LONGEST_ID and written[0] in '"-0123456789'
