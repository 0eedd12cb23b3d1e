"""Our fixtures, served by the Python SDK 1.30: legacy HTTP+SSE, or streamable up to 2025-11-25."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fixtures import Offer, plain_answer, plain_result, text
from mcp import McpError, types
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from python_sdk_server import KeptEvents, Talking, main
from starlette.applications import Starlette
from starlette.routing import Route

PLAIN = {
    types.ListResourcesRequest: types.ListResourcesResult,
    types.ListResourceTemplatesRequest: types.ListResourceTemplatesResult,
    types.ReadResourceRequest: types.ReadResourceResult,
    types.ListPromptsRequest: types.ListPromptsResult,
    types.GetPromptRequest: types.GetPromptResult,
    types.CompleteRequest: types.CompleteResult,
    types.SetLevelRequest: types.EmptyResult,
    types.SubscribeRequest: types.EmptyResult,
}


class Fixtures(Talking):
    def __init__(self, offer: Offer) -> None:
        super().__init__("fixtures-mcp1", "1.0.0", instructions="Read before you write.")
        self.offer = offer
        self.request_handlers |= {asked: answering(kind) for asked, kind in PLAIN.items()} | {
            types.ListToolsRequest: self.on_list_tools,
            types.CallToolRequest: self.on_call_tool,
        }

    async def on_list_tools(self, request: types.ListToolsRequest) -> types.ServerResult:
        tools, following = self.offer.page(request.params.cursor if request.params else None)
        return result(types.ListToolsResult, {"tools": tools, "nextCursor": following})

    async def on_call_tool(self, request: types.CallToolRequest) -> types.ServerResult:
        name, given = request.params.name, request.params.arguments or {}
        if name not in self.offer.tools:  # FastMCP says it this way, not with a JSON-RPC error
            return result(types.CallToolResult, text(f"Unknown tool: {name}") | {"isError": True})
        with self.offer.recorded(name, given):
            answer = await plain_result(name, given)
            answer = answer or await self.talk(self.request_context, name, given)
        return result(types.CallToolResult, answer)

    async def tell_progress(self, context: Any, step: int, steps: int) -> None:
        if context.meta and (token := context.meta.progressToken) is not None:
            how = {"total": steps, "message": f"step {step}"}
            own_call = str(context.request_id)
            await context.session.send_progress_notification(
                token, step, **how, related_request_id=own_call
            )

    async def tell_change(self, context: Any) -> None:
        await context.session.send_tool_list_changed()


def answering(kind: Any) -> Callable[[Any], Awaitable[types.ServerResult]]:
    async def answer(request: Any) -> types.ServerResult:
        if (found := plain_answer(request.method, request.params)) is None:
            raise McpError(types.ErrorData(code=-32002, message="Not found"))
        return result(kind, found)

    return answer


def result(kind: Any, fields: dict[str, Any]) -> types.ServerResult:
    return types.ServerResult(kind.model_validate(fields))


def streamable_app(server: Any, args: Namespace) -> Starlette:
    kept = (KeptEvents(), 50) if args.resumable else (None, None)
    manager = StreamableHTTPSessionManager(
        server, kept[0], args.json, args.stateless, retry_interval=kept[1]
    )

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)


if __name__ == "__main__":
    main(__doc__ or "", Fixtures, streamable_app)
