"""Serve every connection to a reverse proxy with our own layers, whatever other scripts choose.

In mitmproxy, addons choose the layer of a connection in the hook ``next_layer``.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any
from weakref import WeakSet

from mitmproxy.connection import Client
from mitmproxy.net.tls import starts_like_tls_record
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.layer import Layer, NextLayer, NextLayerHook
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import (
    HTTPMode,
)
from mitmproxy.proxy.layers.modes import ReverseProxy
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.tunnel import LayerStack, TunnelLayer

from mcp_tool_filter.adapters.mitmproxy.forward.safe import last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import installed
from mcp_tool_filter.adapters.mitmproxy.forward.safe.layers import FilteredHttpLayer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.outermost import OutermostLayer
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)
_once = Once()


def choose_layer(next_layer: NextLayer) -> None:
    """Choose our HTTP layer for every client of a reverse proxy. For the hook ``next_layer``.

    Like mitmproxy's own addon, but ignore_hosts and tcp_hosts cannot bypass the filter.
    """
    context = next_layer.context
    mode = context.client.proxy_mode
    if not context.layers or not isinstance(context.layers[0], ReverseProxy):
        return
    if not isinstance(mode, ReverseMode) or mode.scheme not in ("http", "https"):
        return
    del context.layers[1:]  # the choice of mitmproxy's own addon, if it ran before us
    stack = LayerStack()
    if context.client.transport_protocol == "udp":
        stack /= RefusingLayer(context)
    else:
        if mode.scheme == "https":
            stack /= layers.ServerTLSLayer(context)
        if starts_like_tls_record(next_layer.data_client()):
            stack /= layers.ClientTLSLayer(context)
        stack /= (installed.http_layer or FilteredHttpLayer)(context, HTTPMode.transparent)
    next_layer.layer = stack[0]
    if isinstance(next_layer, FilteredNextLayer):
        next_layer.chosen = stack[0]


class FilteredReverseProxy(OutermostLayer, ReverseProxy):
    """The outermost layer of a client; the next layer must be ours."""

    def finish_start(self) -> Generator[commands.Command, Any, str | None]:
        _guarded.add(self.context.client)
        self.child_layer = FilteredNextLayer(self.context)
        return (yield from super().finish_start())


class FilteredNextLayer(NextLayer):
    """Asks the addons for the layer of a connection, and closes the connection unless it is
    ours."""

    chosen: Layer | None = None

    def _ask(self) -> Steps:
        asked = super()._ask()  # type: ignore[no-untyped-call]  # mitmproxy gives it no types
        for command in asked:
            yield command
            if isinstance(command, NextLayerHook) and not self._may_be_read():
                asked.close()
                text = "Closed a connection: a script chose another layer to read it"
                _once.log(log, logging.ERROR, text)
                self.layer = None
                self._handle = nothing
                yield commands.CloseConnection(self.context.client)
                return

    def _may_be_read(self) -> bool:
        if last_look._look is None:
            return True  # no filter is loaded
        if self.layer is None:  # another script has suppressed our hook
            choose_layer(self)
        layer = self.layer
        if layer is not self.chosen:
            return False
        while isinstance(layer, TunnelLayer):
            layer = layer.child_layer
        return isinstance(layer, FilteredHttpLayer | RefusingLayer)


# Clients that are served by our layers.
_guarded: WeakSet[Client] = WeakSet()


def guard_connections() -> None:
    """Serve every new client of a reverse proxy with our layers."""
    modes.ReverseProxy = FilteredReverseProxy  # type: ignore[misc]  # a subclass in its place


def guard_client(client: Client) -> None:
    """Note that a client of another kind of proxy is served by our layers."""
    _guarded.add(client)


def is_guarded(client: Client) -> bool:
    return client in _guarded


class RefusingLayer(Layer):
    """Close HTTP/3 connections, which mitmproxy would only forward as HTTP/3.

    ``reverse:https://`` listens for it. If the upstream has no HTTP/3, it would seem to be lost.
    """

    def _handle_event(self, _event: events.Event) -> Steps:
        yield commands.CloseConnection(self.context.client)
