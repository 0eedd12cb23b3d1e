"""List a command's tools as a client, for our subcommands that only look.

``initialize`` comes first, which every older server needs. If the server refuses it, we use the
stateless way of 2026-07-28.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from threading import Thread
from typing import Final

from mcp_tool_filter.adapters.sockets.connect import ConnectionLost
from mcp_tool_filter.adapters.stdio.child import Child, end_child
from mcp_tool_filter.adapters.stdio.judge import show_stray_line
from mcp_tool_filter.adapters.upstream.replies import (
    INITIALIZE,
    INITIALIZED,
    Refused,
    Result,
    ResultReply,
    answer_to,
    introduction_of,
    is_nameless_error,
    is_response_to,
    messages_in,
    render_request,
    reply_in,
    stateless_meta,
)
from mcp_tool_filter.adapters.upstream.search import Found, introduction_in
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import R2026_07_28, Limits, Transport
from mcp_tool_filter.protocol.lines import LineParser

_CUT: Final = "The command printed a line that is too long"
_LAST_WORDS: Final = 0.5  # seconds from the end of its output to its exit
_TICK: Final = 0.02
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
    client.tell(INITIALIZED)
    return Found(client, introduction)


class StdioClient:
    """Sends requests to a command, one after the other."""

    transport = Transport.STDIO
    path = ""
    has_session = False

    def __init__(self, child: Child, *, limit: int, say: Callable[[str], None]) -> None:
        self._child = child
        self._limits = Limits(message=limit)
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[Sequence[object]] = asyncio.Queue()
        self._parser = LineParser(max_pending=limit)
        self._next_id = 0
        self._received: list[tuple[Result, bytes]] = []
        self.revision = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    async def request(self, method: str, params: Result) -> ResultReply:
        """Return the result of a request. Raises Refused, ProtocolError, ConnectionLost."""
        self._next_id += 1
        if self.revision == R2026_07_28:
            params = {**params, "_meta": stateless_meta(self.revision)}
        self.tell(render_request(self._next_id, method, params))
        while True:
            for message, raw in await self._messages():
                if is_response_to(self._next_id, message) or is_nameless_error(message):
                    return reply_in(message, raw)
                if answer := answer_to(message):
                    self.tell(answer)

    def tell(self, message: bytes) -> None:
        """Send a line. (A command that does not read it does not answer either.)"""
        self._child.write(message + b"\n")

    async def close(self) -> None:
        """End the command, and wait for it."""
        await asyncio.to_thread(end_child, self._child, eof=_LAST_EOF)

    async def _messages(self) -> list[tuple[Result, bytes]]:
        """Wait for the command's next messages; show other lines."""
        lines = await self._lines.get()
        if not lines:
            raise ConnectionLost(await self._how_it_ended())
        return [found for line in lines for found in self._messages_in(line)]

    async def _how_it_ended(self) -> str:
        end = self._loop.time() + _LAST_WORDS
        while not self._child.has_ended():
            if self._loop.time() > end:
                return "The command has closed its output"
            await asyncio.sleep(_TICK)
        return f"The command exited with code {self._child.wait()}"

    def _messages_in(self, line: object) -> list[tuple[Result, bytes]]:
        if not isinstance(line, bytes):
            raise ProtocolError(_CUT)
        try:
            return messages_in(line)
        except ProtocolError as error:
            if not show_stray_line(line, self._limits, self._say):
                self._say(f"Warning: The command sent an invalid message: {error}")
            return []

    def _read(self) -> None:
        while chunk := self._child.read():
            if lines := self._parser.feed(chunk):
                self._put(lines)
        if lines := self._parser.finish():
            self._put(lines)
        self._child.close_output()
        self._put(())

    def _put(self, lines: Sequence[object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, lines)
