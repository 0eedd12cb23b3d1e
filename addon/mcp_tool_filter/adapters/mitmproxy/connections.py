"""Connections of clients and to upstreams: read on, close what mitmproxy leaves open, reset."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.proxy.events import ConnectionClosed
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.mitmproxy.background import in_background
from mcp_tool_filter.adapters.mitmproxy.safe.orders import ReadOn
from mcp_tool_filter.adapters.mitmproxy.safe.reverse_proxy import is_guarded

if TYPE_CHECKING:
    from mitmproxy.proxy.server import ConnectionHandler


def handler_of(client: Client) -> ConnectionHandler | None:
    """Return what serves a client, while it is connected."""
    server = ctx.master.addons.get("proxyserver")
    return server.connections.get(client.id) if server else None


def resume(client: Client) -> bool:
    """Let the connection of a client read on when all that was said to it is sent."""
    handler = handler_of(client)
    if handler is None:
        return False
    in_background(_resume(handler))
    return True


async def _resume(handler: ConnectionHandler) -> None:
    await asyncio.sleep(0)  # the connection is in the middle of something
    await handler.drain_writers()
    await handler.server_event(ReadOn())


def close_unguarded() -> None:
    """Close connections that mitmproxy accepted before we were loaded: nobody filters them."""
    server = ctx.master.addons.get("proxyserver")
    for handler in list(server.connections.values()) if server else ():
        if handler.client in handler.transports and not is_guarded(handler.client):
            handler.close_connection(handler.client)


def connect_failed(data: ServerConnectionHookData) -> bool:
    """In the ``server_connect_error`` hook: was it the upstream, and not a client that left?"""
    return data.client.connected


def close_leftover(data: ServerConnectionHookData) -> None:
    """In the ``server_disconnected`` hook: close what mitmproxy may have left open.

    It ends a connection by cancelling its task; when that happens twice, as for a client that
    leaves several streams of one HTTP/2 connection, the socket stays open until it is collected.
    """
    handler = handler_of(data.client)
    io = handler.transports.pop(data.server, None) if handler else None
    if io and io.writer:
        io.writer.close()


async def close_client(client: Client) -> None:
    """In the ``client_disconnected`` hook: close what mitmproxy may have left open.

    When it wants to close a connection of which it is about to read, it forgets to: nobody is told
    of the end, and the socket stays.
    """
    handler = handler_of(client)
    io = handler.transports.get(client) if handler else None
    if handler and io:
        client.state = ConnectionState.CLOSED
        await handler.server_event(ConnectionClosed(client))
        handler.transports.pop(client, None)
        if io.writer:
            io.writer.close()


def hang_up_on(client: Client) -> None:
    """Close the connection of a client soon."""
    if handler := handler_of(client):
        # Not now: the connection may be in the midst of something.
        asyncio.get_running_loop().call_soon(handler.close_connection, client)


def reset_when_closed(client: Client) -> None:
    """Where closing means "this was all", only a TCP reset can say that it was not."""
    handler = handler_of(client)
    if handler and (io := handler.transports.get(client)) and io.writer:
        sock = io.writer.get_extra_info("socket", None)
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
