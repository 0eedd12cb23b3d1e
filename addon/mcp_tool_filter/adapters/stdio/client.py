"""List a command's tools as a client, for our subcommands that only look.

``initialize`` comes first, which every older server needs. If the server refuses it, we use the
stateless way of 2026-07-28.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from mcp_tool_filter.adapters.sockets.connect import ConnectionLost
from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.sessions import ChildSession
from mcp_tool_filter.adapters.upstream.replies import (
    INITIALIZE,
    INITIALIZED,
    Refused,
    Result,
    ResultReply,
    answer_to,
    introduction_of,
    is_response_to,
    messages_in,
    render_request,
    reply_in,
    stateless_meta,
)
from mcp_tool_filter.adapters.upstream.search import Found, introduction_in
from mcp_tool_filter.protocol.limits import R2026_07_28, Limits, Transport
from mcp_tool_filter.protocol.messages import UPSTREAM_LOST

_LAST_WORDS: Final = 0.5  # seconds from the end of its output to its exit
_LAST_EOF: Final = 1.0  # seconds from closed stdin to SIGTERM: it has only listed its tools


async def find(
    child: Child, opened: AsyncExitStack, *, limit: int, say: Callable[[str], None]
) -> Found:
    """Initialize a command. Raises Refused, ProtocolError, HttpFailed.

    Lines between its messages go to ``say``.
    """
    client = StdioClient(child, limit=limit, say=say)
    opened.push_async_callback(client.close)
    try:
        reply = await client.request("initialize", INITIALIZE)
    except Refused:
        client.revision = R2026_07_28
        reply = await client.request("server/discover", {})
        return Found(client, introduction_of(reply, revision=R2026_07_28))
    introduction = introduction_in(reply)
    client.revision = introduction.revision
    await client.tell(INITIALIZED)
    return Found(client, introduction)


class StdioClient:
    """Sends requests to a command, one after the other."""

    transport = Transport.STDIO
    path = ""
    has_session = False

    def __init__(self, child: Child, *, limit: int, say: Callable[[str], None]) -> None:
        limits = Limits(message=limit, pending=limit)
        self._session = ChildSession(child, limits, say=say, on_end=lambda *_: None)
        self._next_id = 0
        self.revision = ""

    async def request(self, method: str, params: Result) -> ResultReply:
        """Return the result of a request. Raises Refused, ProtocolError, ConnectionLost."""
        self._next_id += 1
        if self.revision == R2026_07_28:
            params = {**params, "_meta": stateless_meta(self.revision)}
        asked = render_request(self._next_id, method, params)
        outbox = await self._session.ask([asked], [str(self._next_id)])
        while (line := await outbox.get()) is not None:
            for message, raw in messages_in(line):
                if is_response_to(self._next_id, message):
                    return await self._reply_in(message, raw)
                if answer := answer_to(message):
                    await self.tell(answer)
        raise ConnectionLost(await self._how_it_ended())

    async def _reply_in(self, message: Result, raw: bytes) -> ResultReply:
        try:
            return reply_in(message, raw)
        except Refused as refused:
            if refused.code == UPSTREAM_LOST and self._session.is_closing:
                raise ConnectionLost(await self._how_it_ended()) from None
            raise

    async def tell(self, message: bytes) -> None:
        """Send a line. (A command that does not read it does not answer either.)"""
        await self._session.tell(message)

    async def close(self) -> None:
        """End the command, and wait for it."""
        await self._session.close(eof=_LAST_EOF)

    async def _how_it_ended(self) -> str:
        ended = self._session.ended
        if not (await asyncio.wait([ended], timeout=_LAST_WORDS))[0]:
            return "The command has closed its output"
        return f"The command exited with code {ended.result()}"
