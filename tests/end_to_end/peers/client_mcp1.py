"""A client of the Python SDK 1.30: legacy HTTP+SSE, or streamable HTTP. See scenario.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import scenario
from mcp import ClientSession, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from python_sdk_client import AskedPlayer, command_in, main, plain


class Player(AskedPlayer):
    def page(self, cursor: str | None) -> dict[str, Any]:
        return {"params": types.PaginatedRequestParams(cursor=cursor) if cursor else None}

    async def cancel(self, step: scenario.Step, after: float) -> None:
        # Leaving call_tool tells the server nothing: whoever cancels has to say so.
        request_id = self.session._request_id
        task = asyncio.create_task(self.request(step, None))
        await asyncio.sleep(after)
        notice = types.CancelledNotification(
            params=types.CancelledNotificationParams(requestId=request_id, reason="no longer")
        )
        await self.session.send_notification(types.ClientNotification(notice))
        await asyncio.wait([task], timeout=0.1)  # some servers answer even now, most do not
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def on_message(self, message: Any) -> None:
        if isinstance(message, types.ServerNotification):
            await self.notice(plain(message))


@asynccontextmanager
async def streams(args: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    headers = scenario.headers_of(args)
    if args.transport == "stdio":
        async with stdio_client(command_in(args.url)) as (read, write):
            yield read, write, lambda: None
    elif args.transport == "sse":
        ids: list[str] = []
        async with sse_client(args.url, headers, on_session_created=ids.append) as (read, write):
            yield read, write, lambda: ids[-1] if ids else None
    else:
        async with (
            create_mcp_http_client(headers) as http,
            streamable_http_client(args.url, http_client=http) as (read, write, session_id),
        ):
            yield read, write, session_id


async def connect(player: Player) -> None:
    async with (
        streams(player.args) as (read, write, session_id),
        ClientSession(read, write, **player.callbacks("client-mcp1")) as session,
    ):
        player.session = session
        async with asyncio.timeout(15):
            met = await session.initialize()
        player.met = {
            "server": plain(met.serverInfo),
            "protocol": met.protocolVersion,
            "session": session_id(),
        }
        await player.play()


if __name__ == "__main__":
    main(Player, __doc__ or "", connect)
