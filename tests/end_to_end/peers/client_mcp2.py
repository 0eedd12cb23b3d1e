"""A client of the Python SDK 2.3: 2026-07-28, or an older revision. See scenario.py."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as types
import scenario
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import BaseModel
from python_sdk_client import AskedPlayer, plain


class Player(AskedPlayer):
    client: Client
    until_the_end: AsyncExitStack

    async def perform(self, step: scenario.Step, progress: Any) -> dict[str, Any]:
        return plain(await self._request(step, progress))

    async def _request(self, step: scenario.Step, progress: Any) -> BaseModel:
        client = self.client
        match step:
            case {"list": what}:
                lists = {
                    "tools": client.list_tools,
                    "resources": client.list_resources,
                    "templates": client.list_resource_templates,
                    "prompts": client.list_prompts,
                }
                return await lists[what](cursor=step.get("cursor"))
            case {"call": name}:
                return await client.call_tool(
                    name, step.get("arguments"), progress_callback=progress
                )
            case {"read": uri}:
                return await client.read_resource(uri)
            case {"prompt": name}:
                return await client.get_prompt(name, step.get("arguments"))
            case {"complete": prompt, "argument": argument, "value": value}:
                reference = types.PromptReference(name=prompt)
                return await client.complete(reference, {"name": argument, "value": value})
            case {"ping": _}:
                return await client.send_ping()
            case {"level": level}:
                return await client.set_logging_level(level)
            case {"listen": kinds}:
                wanted = {f"{kind}_list_changed": True for kind in kinds}
                subscription = await self.until_the_end.enter_async_context(client.listen(**wanted))
                return subscription.honored
            case _:
                raise NotImplementedError(f"this SDK cannot {step}")

    async def cancel(self, step: scenario.Step, after: float) -> None:
        task = asyncio.create_task(self._request(step, None))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def on_message(self, message: Any) -> None:
        if isinstance(message, types.Notification):
            await self.notice(plain(message))


async def connect(player: Player) -> None:
    args = player.args
    headers = scenario.headers_of(args)
    async with AsyncExitStack() as stack:
        if args.transport == "stdio":
            command, *words = json.loads(args.url)
            server = StdioServerParameters(command=command, args=words, env=dict(os.environ))
            transport = stdio_client(server)
        elif args.transport == "sse":
            transport = sse_client(args.url, headers)
        else:
            http = await stack.enter_async_context(create_mcp_http_client(headers))
            transport = streamable_http_client(args.url, http_client=http)
        client = Client(
            transport,
            mode=args.mode,
            cache=None,  # a list that is asked for shall be asked for
            log_level="debug",
            sampling_callback=player.on_sampling,
            elicitation_callback=player.on_elicitation,
            list_roots_callback=player.on_roots,
            message_handler=player.on_message,
            client_info=types.Implementation(name="client-mcp2", version="1.0.0"),
        )
        async with asyncio.timeout(15):
            await stack.enter_async_context(client)
        player.client = client
        player.until_the_end = await stack.enter_async_context(AsyncExitStack())
        player.met = {
            "server": plain(client.server_info) if client.server_info else {},
            "protocol": client.protocol_version,
            "session": None,  # this SDK keeps it to itself
        }
        await player.play()


def main() -> None:
    warnings.simplefilter("ignore")  # sampling, roots, logging and ping are deprecated: we know
    parser = scenario.arguments(__doc__ or "")
    parser.add_argument("--transport", choices=["stdio", "sse", "streamable"], default="streamable")
    parser.add_argument("--mode", default="auto", help="auto, legacy, or a modern revision")
    scenario.run(Player(parser.parse_args()), connect)


if __name__ == "__main__":
    main()
