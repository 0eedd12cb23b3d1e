"""The outermost layer of a client closes the connection if any layer within it raises.

mitmproxy logs what a layer raises and goes on: client and upstream would wait for each other until
one of them gives up.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import Layer

log = logging.getLogger(__name__)

type Steps = Generator[commands.Command, Any, None]


class OutermostLayer(Layer):
    """Inherit from this before the layer of mitmproxy."""

    def handle_event(self, event: events.Event) -> Steps:
        try:
            yield from super().handle_event(event)
        except Exception:
            yield close_after_error(self.context.client)


def close_after_error(client: Client) -> commands.Command:
    """Log the exception at hand; mitmproxy closes the upstream's side with the client's."""
    log.exception("internal error; connection closed")
    return commands.CloseConnection(client)
