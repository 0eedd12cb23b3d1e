"""Our fixtures, served by the Python SDK 1.30: legacy HTTP+SSE, or streamable up to 2025-11-25."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

from fixtures import (
    FIXTURES,
    Offer,
    arguments,
    completions,
    contents_of,
    plain_result,
    prompt_messages,
    serve,
    text,
)
from mcp import McpError, types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from python_sdk_server import KeptEvents, serve_stdio, sse_app
from starlette.applications import Starlette
from starlette.routing import Route


class Fixtures(Server):
    def __init__(self, offer: Offer) -> None:
        super().__init__("fixtures-mcp1", "1.0.0", instructions="Read before you write.")
        self.offer = offer
        self.request_handlers |= {
            types.ListToolsRequest: self.on_list_tools,
            types.CallToolRequest: self.on_call_tool,
            types.ListResourcesRequest: self.on_list_resources,
            types.ListResourceTemplatesRequest: self.on_list_templates,
            types.ReadResourceRequest: self.on_read,
            types.ListPromptsRequest: self.on_list_prompts,
            types.GetPromptRequest: self.on_prompt,
            types.CompleteRequest: self.on_complete,
            types.SetLevelRequest: self.on_nothing,
            types.SubscribeRequest: self.on_nothing,
        }

    def create_initialization_options(self, *_: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))

    async def on_list_tools(self, request: types.ListToolsRequest) -> types.ServerResult:
        tools, following = self.offer.page(request.params.cursor if request.params else None)
        return result(types.ListToolsResult, {"tools": tools, "nextCursor": following})

    async def on_call_tool(self, request: types.CallToolRequest) -> types.ServerResult:
        name, given = request.params.name, request.params.arguments or {}
        if name not in self.offer.tools:  # FastMCP says it this way, not with a JSON-RPC error
            return result(types.CallToolResult, text(f"Unknown tool: {name}") | {"isError": True})
        with self.offer.recorded(name, given):
            answer = await plain_result(name, given) or await self.talk(name, given)
        return result(types.CallToolResult, answer)

    async def talk(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The tools that talk to the client while they run."""
        context = self.request_context
        session, own_call = context.session, context.request_id
        match name:
            case "progress":
                steps = given.get("steps", 3)
                for step in range(1, steps + 1):
                    if context.meta and context.meta.progressToken is not None:
                        token, told = context.meta.progressToken, f"step {step}"
                        await session.send_progress_notification(
                            token, step, total=steps, message=told, related_request_id=str(own_call)
                        )
                    await asyncio.sleep(given.get("ms", 0) / 1000)
                return text(f"{steps} steps")
            case "sample":
                asked = types.SamplingMessage.model_validate(
                    {"role": "user", "content": {"type": "text", "text": given.get("prompt", "")}}
                )
                said = await session.create_message(
                    [asked], max_tokens=100, related_request_id=own_call
                )
                return text(f"the model said: {getattr(said.content, 'text', said.content)}")
            case "elicit":
                schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
                said = await session.elicit_form(
                    given.get("question", "?"), schema, related_request_id=own_call
                )
                return text(f"the user said: {said.action} {json.dumps(said.content)}")
            case "roots":
                roots = (await session.list_roots()).roots
                return text("roots: " + " ".join(str(root.uri) for root in roots))
            case "add_tool":
                self.offer.add(given["name"], given.get("description", "New"))
                await session.send_tool_list_changed()
                return text(f"added {given['name']}")
            case "hang_up":
                if context.close_sse_stream:
                    await context.close_sse_stream()
                await asyncio.sleep(given.get("ms", 100) / 1000)
                return text("answered after the stream had ended")
            case _:  # one that add_tool brought
                return text(f"{name} was called")

    async def on_list_resources(self, _: types.ListResourcesRequest) -> types.ServerResult:
        return result(types.ListResourcesResult, {"resources": FIXTURES["resources"]})

    async def on_list_templates(self, _: types.ListResourceTemplatesRequest) -> types.ServerResult:
        templates = {"resourceTemplates": FIXTURES["templates"]}
        return result(types.ListResourceTemplatesResult, templates)

    async def on_read(self, request: types.ReadResourceRequest) -> types.ServerResult:
        contents = contents_of(str(request.params.uri))
        if contents is None:
            raise McpError(types.ErrorData(code=-32002, message="Resource not found"))
        return result(types.ReadResourceResult, {"contents": [contents]})

    async def on_list_prompts(self, _: types.ListPromptsRequest) -> types.ServerResult:
        return result(types.ListPromptsResult, {"prompts": FIXTURES["prompts"]})

    async def on_prompt(self, request: types.GetPromptRequest) -> types.ServerResult:
        messages = prompt_messages(request.params.name, request.params.arguments or {})
        if messages is None:
            raise McpError(types.ErrorData(code=types.INVALID_PARAMS, message="Unknown prompt"))
        return result(types.GetPromptResult, {"messages": messages})

    async def on_complete(self, request: types.CompleteRequest) -> types.ServerResult:
        values = completions(request.params.argument.name, request.params.argument.value)
        return result(types.CompleteResult, {"completion": {"values": values, "hasMore": False}})

    async def on_nothing(self, _: types.ClientRequest) -> types.ServerResult:
        return types.ServerResult(types.EmptyResult())


def result(kind: Any, fields: dict[str, Any]) -> types.ServerResult:
    return types.ServerResult(kind.model_validate(fields))


def streamable_app(server: Fixtures, *, json: bool, stateless: bool, resumable: bool) -> Starlette:
    manager = StreamableHTTPSessionManager(
        server,
        KeptEvents() if resumable else None,
        json_response=json,
        stateless=stateless,
        retry_interval=50 if resumable else None,
    )

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)


def main() -> None:
    args = arguments(__doc__ or "", "stdio", "sse", "streamable")
    server = Fixtures(Offer(page_size=args.page_size, journal=args.journal))
    if args.transport == "stdio":
        asyncio.run(serve_stdio(server))
        return
    if args.transport == "sse":
        app = sse_app(server)
    else:
        app = streamable_app(
            server, json=args.json, stateless=args.stateless, resumable=args.resumable
        )
    serve(app, args.port)


if __name__ == "__main__":
    main()
