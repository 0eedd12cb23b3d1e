"""What servers made with either Python SDK share: the tools that talk, and the transports."""

from __future__ import annotations

import asyncio
import json
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fixtures import Offer, arguments, serve, text
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

try:
    import mcp_types as types  # of the SDK 2.3
except ImportError:
    from mcp import types

ASK_FOR_ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}}


class Talking(Server):
    """A server whose tools talk to the client while they run; it says in a subclass how."""

    offer: Offer

    async def tell_progress(self, context: Any, step: int, steps: int) -> None:
        raise NotImplementedError

    async def tell_change(self, context: Any) -> None:
        raise NotImplementedError

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))

    async def talk(self, context: Any, name: str, given: dict[str, Any]) -> dict[str, Any]:
        match name:
            case "progress":
                steps = given.get("steps", 3)
                for step in range(1, steps + 1):
                    await self.tell_progress(context, step, steps)
                    await asyncio.sleep(given.get("ms", 0) / 1000)
                return text(f"{steps} steps")
            case "sample" | "elicit" | "roots":
                return self.conclude(await self.ask(context, name, given))
            case "add_tool":
                self.offer.add(given["name"], given.get("description", "New"))
                await self.tell_change(context)
                return text(f"added {given['name']}")
            case "hang_up":
                if context.close_sse_stream:
                    await context.close_sse_stream()
                await asyncio.sleep(given.get("ms", 100) / 1000)
                return text("answered after the stream had ended")
            case _:  # one that add_tool brought
                return text(f"{name} was called")

    async def ask(self, context: Any, name: str, given: dict[str, Any]) -> Any:
        """Ask the client in the way of the revisions before 2026-07-28."""
        session, own_call = context.session, context.request_id
        if name == "roots":
            return await session.list_roots()
        if name == "elicit":
            asked = given.get("question", "?")
            return await session.elicit_form(asked, ASK_FOR_ANSWER, related_request_id=own_call)
        content = {"type": "text", "text": given.get("prompt", "")}
        asked = types.SamplingMessage.model_validate({"role": "user", "content": content})
        return await session.create_message([asked], max_tokens=100, related_request_id=own_call)

    def conclude(self, answer: Any) -> dict[str, Any]:
        """The result of a call once the client has answered our question."""
        match answer:
            case types.CreateMessageResult(content=content):
                return text(f"the model said: {getattr(content, 'text', content)}")
            case types.ElicitResult(action=action, content=content):
                return text(f"the user said: {action} {json.dumps(content)}")
            case types.ListRootsResult(roots=roots):
                return text("roots: " + " ".join(str(root.uri) for root in roots))
            case other:
                return text(f"not what we asked for: {other}") | {"isError": True}


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

    routes = [
        Route("/sse", connect, methods=["GET"]),
        Mount("/messages/", app=transport.handle_post_message),
    ]
    return Starlette(routes=routes)


def main(
    description: str,
    make: Callable[[Offer], Server],
    streamable_app: Callable[[Any, Namespace], Starlette],
) -> None:
    warnings.simplefilter("ignore")  # sampling, roots and logging are deprecated: we know
    args = arguments(description, "stdio", "sse", "streamable")
    server = make(Offer(page_size=args.page_size, journal=args.journal))
    if args.transport == "stdio":
        asyncio.run(serve_stdio(server))
    else:
        app = sse_app(server) if args.transport == "sse" else streamable_app(server, args)
        serve(app, args.port)
