"""Close a client's connection if any layer within it raises.

mitmproxy logs the exception and continues: client and upstream would wait for each other until one
of them gives up.
"""

from __future__ import annotations

import logging

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import Layer

from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps

log = logging.getLogger(__name__)


class OutermostLayer(Layer):
    """A mix-in; put it before mitmproxy's layer in the base classes."""

    def handle_event(self, event: events.Event) -> Steps:
        try:
            yield from super().handle_event(event)
        except Exception:
            yield close_after_error(self.context.client)


def close_after_error(client: Client) -> commands.Command:
    """Log the current exception and close the client; mitmproxy closes the upstream's side with
    it."""
    log.exception("internal error; connection closed")
    return commands.CloseConnection(client)
