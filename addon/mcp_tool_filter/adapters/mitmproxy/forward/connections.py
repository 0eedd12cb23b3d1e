"""Resume, close and reset connections, including those that mitmproxy leaves open."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.proxy.events import ConnectionClosed
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import ReadOn
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import is_guarded
from mcp_tool_filter.adapters.serving.background import in_background

if TYPE_CHECKING:
    from mitmproxy.proxy.server import ConnectionHandler


def handler_of(client: Client) -> ConnectionHandler | None:
    """Return the connection handler of a client, while it is connected."""
    server = ctx.master.addons.get("proxyserver")
    return server.connections.get(client.id) if server else None


def resume(client: Client) -> bool:
    """Let the connection of a client continue to read when everything to it has been sent."""
    handler = handler_of(client)
    if handler is None:
        return False
    in_background(_resume(handler))
    return True


async def _resume(handler: ConnectionHandler) -> None:
    await asyncio.sleep(0)  # the connection is busy with the current event
    await handler.drain_writers()
    await handler.server_event(ReadOn())


def close_unguarded() -> None:
    """Close connections that mitmproxy accepted before we were loaded: they are not filtered."""
    server = ctx.master.addons.get("proxyserver")
    for handler in list(server.connections.values()) if server else ():
        if handler.client in handler.transports and not is_guarded(handler.client):
            handler.close_connection(handler.client)


def connect_failed(data: ServerConnectionHookData) -> bool:
    """In the ``server_connect_error`` hook: tell whether the upstream failed, and the client did
    not just leave."""
    return data.client.connected


def close_leftover(data: ServerConnectionHookData) -> None:
    """In the ``server_disconnected`` hook: close a socket that mitmproxy may have left open.

    mitmproxy ends a connection by cancelling its task. If it does that twice, as for a client that
    leaves several streams of one HTTP/2 connection, the socket stays open until garbage collection.
    """
    handler = handler_of(data.client)
    io = handler.transports.pop(data.server, None) if handler else None
    if io and io.writer:
        io.writer.close()


async def close_client(client: Client) -> None:
    """In the ``client_disconnected`` hook: close a socket that mitmproxy may have left open.

    If mitmproxy closes a connection just before it reads from it, it forgets the socket, which
    stays open.
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
        # Not now: the connection may be busy with an event.
        asyncio.get_running_loop().call_soon(handler.close_connection, client)


def reset_when_closed(client: Client) -> None:
    """Make the connection end with a TCP reset: here a normal close would mean that the answer is
    complete."""
    handler = handler_of(client)
    if handler and (io := handler.transports.get(client)) and io.writer:
        sock = io.writer.get_extra_info("socket", None)
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
