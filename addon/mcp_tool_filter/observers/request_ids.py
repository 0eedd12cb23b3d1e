"""Name a request by who numbers it and by its id, to find it without a search.

>>> from mcp_tool_filter.policy.exchange import Client
>>> client = Client()
>>> key_of(client, '"\\u0061"') == key_of(client, '"a"')
True
>>> key_of(client, "1") == key_of(Client(), "1")
False
"""

from __future__ import annotations

from mcp_tool_filter.policy.exchange import Client, Via
from mcp_tool_filter.protocol.messages import id_value

type RequestKey = tuple[int, str]


def key_of(client: Client, id: str) -> RequestKey:
    """Return a key for a request, however its id is written.

    The key is valid while the client is referenced: the numbers in it are those of objects.
    """
    return _scope_of(client), id_value(id)


def _scope_of(client: Client) -> int:
    """Return a key for the scope of ids: the session, or else the connection."""
    if client.via is Via.STDIO:
        return 0
    return id(client.session or client)
