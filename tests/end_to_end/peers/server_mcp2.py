"""Our fixtures, served by the Python SDK 2.3: 2026-07-28, and the older revisions beside it."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import mcp_types as types
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
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from python_sdk_server import KeptEvents, serve_stdio, sse_app

ASK_FOR_ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}}

LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
CACHEABLE = (*LISTS, "resources/read")

type Context = ServerRequestContext[Any, Any]


class Fixtures(Server):
    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.bus = InMemorySubscriptionBus()
        super().__init__(
            "fixtures-mcp2",
            version="1.0.0",
            instructions="Read before you write.",
            cache_hints=dict.fromkeys(CACHEABLE, CacheHint(ttl_ms=60_000, scope="private")),
            on_list_tools=complete(self.on_list_tools),
            on_call_tool=complete(self.on_call_tool),
            on_list_resources=complete(self.on_list_resources),
            on_list_resource_templates=complete(self.on_list_templates),
            on_read_resource=complete(self.on_read),
            on_subscribe_resource=complete(self.on_nothing),
            on_list_prompts=complete(self.on_list_prompts),
            on_get_prompt=complete(self.on_prompt),
            on_completion=complete(self.on_complete),
            on_set_logging_level=complete(self.on_nothing),
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        return super().create_initialization_options(NotificationOptions(tools_changed=True))

    async def on_list_tools(self, _: Context, params: Any) -> dict[str, Any]:
        tools, following = self.offer.page(params.cursor if params else None)
        return {"tools": tools} | ({"nextCursor": following} if following else {})

    async def on_call_tool(self, context: Context, params: Any) -> dict[str, Any]:
        name, given = params.name, params.arguments or {}
        if name not in self.offer.tools:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name}")
        if params.input_responses:  # the second half of a call that is in the journal already
            return self.conclude(params.input_responses)
        with self.offer.recorded(name, given):
            return await plain_result(name, given) or await self.talk(context, name, given)

    async def talk(self, context: Context, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The tools that talk to the client while they run."""
        session, modern = context.session, context.protocol_version in MODERN_PROTOCOL_VERSIONS
        match name:
            case "progress":
                steps = given.get("steps", 3)
                for step in range(1, steps + 1):
                    await session.report_progress(step, steps, f"step {step}")
                    await asyncio.sleep(given.get("ms", 0) / 1000)
                return text(f"{steps} steps")
            case "sample" | "elicit" | "roots":
                request = question(name, given)
                if modern:
                    asked = {"asked": request.model_dump(mode="json", by_alias=True)}
                    kind = {"resultType": "input_required", "requestState": f"state of {name}"}
                    return kind | {"inputRequests": asked}
                return self.conclude({"asked": await self.ask(context, request)})
            case "add_tool":
                self.offer.add(given["name"], given.get("description", "New"))
                await self.bus.publish(ToolsListChanged())
                if not modern:
                    await session.send_tool_list_changed()
                return text(f"added {given['name']}")
            case "hang_up":
                if context.close_sse_stream:
                    await context.close_sse_stream()
                await asyncio.sleep(given.get("ms", 100) / 1000)
                return text("answered after the stream had ended")
            case _:  # one that add_tool brought
                return text(f"{name} was called")

    async def ask(self, context: Context, request: Any) -> Any:
        """Ask the client in the way of the revisions before 2026-07-28."""
        session, own_call = context.session, context.request_id
        match request:
            case types.CreateMessageRequest(params=params):
                return await session.create_message(
                    params.messages, max_tokens=params.max_tokens, related_request_id=own_call
                )
            case types.ElicitRequest(params=params):
                return await session.elicit_form(
                    params.message, params.requested_schema, related_request_id=own_call
                )
            case _:
                return await session.list_roots()

    def conclude(self, answers: Any) -> dict[str, Any]:
        """The result of a call once the client has answered our question."""
        match answers["asked"]:
            case types.CreateMessageResult(content=content):
                return text(f"the model said: {getattr(content, 'text', content)}")
            case types.ElicitResult(action=action, content=content):
                return text(f"the user said: {action} {json.dumps(content)}")
            case types.ListRootsResult(roots=roots):
                return text("roots: " + " ".join(str(root.uri) for root in roots))
            case other:
                return text(f"not what we asked for: {other}") | {"isError": True}

    async def on_list_resources(self, *_: Any) -> dict[str, Any]:
        return {"resources": FIXTURES["resources"]}

    async def on_list_templates(self, *_: Any) -> dict[str, Any]:
        return {"resourceTemplates": FIXTURES["templates"]}

    async def on_read(self, _: Context, params: Any) -> dict[str, Any]:
        contents = contents_of(str(params.uri))
        if contents is None:
            raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})
        return {"contents": [contents]}

    async def on_list_prompts(self, *_: Any) -> dict[str, Any]:
        return {"prompts": FIXTURES["prompts"]}

    async def on_prompt(self, _: Context, params: Any) -> dict[str, Any]:
        messages = prompt_messages(params.name, params.arguments or {})
        if messages is None:
            raise MCPError(types.INVALID_PARAMS, "Unknown prompt")
        return {"messages": messages}

    async def on_complete(self, _: Context, params: Any) -> dict[str, Any]:
        values = completions(params.argument.name, params.argument.value)
        return {"completion": {"values": values, "hasMore": False}}

    async def on_nothing(self, *_: Any) -> dict[str, Any]:
        return {}


def complete(handler: Any) -> Any:
    """Mark what a handler returns as whole, as 2026-07-28 wants it, unless it says otherwise."""

    async def whole(context: Context, params: Any) -> dict[str, Any]:
        return {"resultType": "complete"} | await handler(context, params)

    return whole


def question(name: str, given: dict[str, Any]) -> Any:
    match name:
        case "sample":
            content = {"type": "text", "text": given.get("prompt", "")}
            params = {"messages": [{"role": "user", "content": content}], "maxTokens": 100}
            return types.CreateMessageRequest.model_validate({"params": params})
        case "elicit":
            params = {"message": given.get("question", "?"), "requestedSchema": ASK_FOR_ANSWER}
            return types.ElicitRequest.model_validate({"params": params | {"mode": "form"}})
        case _:
            return types.ListRootsRequest()


def main() -> None:
    warnings.simplefilter("ignore")  # sampling, roots and logging are deprecated: we know
    args = arguments(__doc__ or "", "stdio", "sse", "streamable")
    server = Fixtures(Offer(page_size=args.page_size, journal=args.journal))
    if args.transport == "stdio":
        asyncio.run(serve_stdio(server))
        return
    if args.transport == "sse":
        app = sse_app(server)
    else:
        app = server.streamable_http_app(
            json_response=args.json,
            stateless_http=args.stateless,
            event_store=KeptEvents() if args.resumable else None,
            retry_interval=50 if args.resumable else None,
        )
    serve(app, args.port)


if __name__ == "__main__":
    main()
