"""A client of the Python SDK 2.3: 2026-07-28, or an older revision. See scenario.py."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as types
import scenario
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import BaseModel
from python_sdk_client import AskedPlayer, command_in, main, plain


class Player(AskedPlayer):
    until_the_end: AsyncExitStack

    async def request(self, step: scenario.Step, progress: Any) -> BaseModel:
        if "listen" not in step:
            return await super().request(step, progress)
        wanted = {f"{kind}_list_changed": True for kind in step["listen"]}
        listening = self.session.listen(**wanted)
        return (await self.until_the_end.enter_async_context(listening)).honored

    async def cancel(self, step: scenario.Step, after: float) -> None:
        task = asyncio.create_task(self.request(step, None))
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
            transport = stdio_client(command_in(args.url))
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
            **player.callbacks("client-mcp2"),
        )
        async with asyncio.timeout(15):
            await stack.enter_async_context(client)
        player.session = client
        player.until_the_end = await stack.enter_async_context(AsyncExitStack())
        player.met = {
            "server": plain(client.server_info) if client.server_info else {},
            "protocol": client.protocol_version,
            "session": None,  # this SDK keeps it to itself
        }
        await player.play()


if __name__ == "__main__":
    main(Player, __doc__ or "", connect)
