"""What servers made with either Python SDK share: kept events, stdio and the older transport."""

from __future__ import annotations

from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route


class KeptEvents(EventStore):
    """All events of all streams, in order."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        position = int(last_event_id)
        stream_id = self._events[position - 1][0]
        for number, (stream, message) in enumerate(self._events[position:], position + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


async def serve_stdio(server: Server) -> None:
    async with stdio_server() as streams:
        await server.run(*streams, server.create_initialization_options())


def sse_app(server: Server) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(*streams, server.create_initialization_options())
        return Response()

    return Starlette(
        routes=[
            Route("/sse", connect, methods=["GET"]),
            Mount("/messages/", app=transport.handle_post_message),
        ]
    )
