"""Our fixtures, served by the Python SDK 2.3: 2026-07-28, and the older revisions beside it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import mcp_types as types
from fixtures import Offer, plain_answer, plain_result
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from python_sdk_server import ASK_FOR_ANSWER, KeptEvents, Talking, main
from starlette.applications import Starlette

LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
CACHEABLE = (*LISTS, "resources/read")

PLAIN = {
    "list_resources": "resources/list", "list_resource_templates": "resources/templates/list",
    "read_resource": "resources/read", "subscribe_resource": "resources/subscribe",
    "list_prompts": "prompts/list", "get_prompt": "prompts/get",
    "completion": "completion/complete", "set_logging_level": "logging/setLevel",
}  # fmt: skip

type Context = ServerRequestContext[Any, Any]


class Fixtures(Talking):
    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.bus = InMemorySubscriptionBus()
        handlers = {
            "on_list_tools": complete(self.on_list_tools),
            "on_call_tool": complete(self.on_call_tool),
            "on_subscriptions_listen": ListenHandler(self.bus),
        } | {f"on_{name}": answering(method) for name, method in PLAIN.items()}
        hints = dict.fromkeys(CACHEABLE, CacheHint(ttl_ms=60_000, scope="private"))
        about = {"version": "1.0.0", "instructions": "Read before you write."}
        super().__init__("fixtures-mcp2", **about, cache_hints=hints, **handlers)

    async def on_list_tools(self, _: Context, params: Any) -> dict[str, Any]:
        tools, following = self.offer.page(params.cursor if params else None)
        return {"tools": tools} | ({"nextCursor": following} if following else {})

    async def on_call_tool(self, context: Context, params: Any) -> dict[str, Any]:
        name, given = params.name, params.arguments or {}
        if name not in self.offer.tools:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name}")
        if params.input_responses:  # the second half of a call that is in the journal already
            return self.conclude(params.input_responses["asked"])
        with self.offer.recorded(name, given):
            if name in ("sample", "elicit", "roots") and is_modern(context):
                asked = {"asked": question(name, given).model_dump(mode="json", by_alias=True)}
                kind = {"resultType": "input_required", "requestState": f"state of {name}"}
                return kind | {"inputRequests": asked}
            return await plain_result(name, given) or await self.talk(context, name, given)

    async def tell_progress(self, context: Context, step: int, steps: int) -> None:
        await context.session.report_progress(step, steps, f"step {step}")

    async def tell_change(self, context: Context) -> None:
        await self.bus.publish(ToolsListChanged())
        if not is_modern(context):
            await context.session.send_tool_list_changed()


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def answering(method: str) -> Any:
    async def answer(_: Context, params: Any) -> dict[str, Any]:
        if (found := plain_answer(method, params)) is None:
            raise MCPError(types.INVALID_PARAMS, "Not found")
        return found

    return complete(answer)


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


def streamable_app(server: Any, args: Namespace) -> Starlette:
    return server.streamable_http_app(
        json_response=args.json,
        stateless_http=args.stateless,
        event_store=KeptEvents() if args.resumable else None,
        retry_interval=50 if args.resumable else None,
    )


if __name__ == "__main__":
    main(__doc__ or "", Fixtures, streamable_app)
