"""Serve a merged endpoint over stdin and stdout: one JSON-RPC message a line, one client.

    lines = Lines(endpoint, connect, on_end)
    lines.start()    # a thread reads stdin, and waits while a line is taken

At the end of stdin, open requests get a few seconds for their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from mcp_tool_filter.core.conversation.policy_in_force import oversized
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.head import revision_in
from mcp_tool_filter.core.messages.limits import NEWEST_STATELESS, STATELESS_REVISIONS, OverLimit
from mcp_tool_filter.core.messages.messages import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Request,
    Single,
    parse_message,
    render_error,
    singles,
)
from mcp_tool_filter.core.policy.chain import refusal
from mcp_tool_filter.core.policy.verdict import Why
from mcp_tool_filter.rooms.merged.endpoint import MergedEndpoint
from mcp_tool_filter.rooms.merged.messages import render_result
from mcp_tool_filter.rooms.merged.server_session import Outlet
from mcp_tool_filter.rooms.merged.service import open_stateless, open_talk
from mcp_tool_filter.rooms.merged.session import Talk
from mcp_tool_filter.rooms.merged.visits import Connect, Visitor
from mcp_tool_filter.rooms.stdio.child import read_some, write_all
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser, on_one_line

if TYPE_CHECKING:
    from concurrent.futures import Future

_LAST_ANSWERS: Final = 5.0  # seconds for open requests after the end of stdin
_TICK: Final = 0.01


class Lines(Outlet):
    """One client; it is also the outlet of all that the client gets: each message is a line."""

    def __init__(
        self, endpoint: MergedEndpoint, connect: Connect, on_end: Callable[[], None]
    ) -> None:
        """``on_end`` is called once, when the client has left."""
        self._endpoint, self._visitor, self._on_end = endpoint, Visitor(connect), on_end
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._unsent = 0
        self._talk: Talk | None = None

    def start(self) -> None:
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        parser = LineParser(max_pending=self._endpoint.limits.pending)
        with suppress(RuntimeError):  # the loop has ended
            with suppress(OSError):  # the terminal is gone
                while chunk := read_some(0):
                    if lines := parser.feed(chunk):
                        self._in_loop(self._take_all(lines)).result()
            if lines := parser.finish():
                self._in_loop(self._take_all(lines)).result()
            self._in_loop(self._see_out()).result()

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    async def _take_all(self, lines: Sequence[bytes | CutLine]) -> None:
        limits = self._endpoint.limits
        for line in lines:
            raw = line.beginning if isinstance(line, CutLine) else line
            try:
                if isinstance(line, CutLine):
                    raise OverLimit(f"a line of {line.size} bytes")
                for one in singles(parse_message(line, limits)):
                    await self._take(one)
            except OverLimit as error:
                self.answer(oversized(raw, str(error)).text)
            except ProtocolError as error:
                self.answer(refusal(raw, Why.MALFORMED, limits=limits, detail=str(error)).text)

    async def _take(self, message: Single) -> None:
        if isinstance(message, Request):
            if revision_in(message) in STATELESS_REVISIONS:
                return self._take_stateless(message)
            if self._talk is None:
                return await self._begin(message)
        return self._talk.take(message, self) if self._talk is not None else None

    async def _begin(self, message: Request) -> None:
        """Take the client's first request."""
        if message.method == "server/discover":
            return self.answer(render_error(message.id, METHOD_NOT_FOUND, "Method not found"))
        if message.method == "ping":
            return self.answer(render_result(message.id, b"{}"))
        if message.method != "initialize":
            return self.answer(render_error(message.id, INVALID_REQUEST, "Initialize first"))
        await self._endpoint.settle()
        talk = self._talk = open_talk(self._endpoint, self._visitor, message)
        talk.stream, talk.is_listening = self, True
        return self.answer(render_result(message.id, self._endpoint.introduction(talk.revision)))

    def _take_stateless(self, message: Request) -> None:
        if not self._endpoint.is_stateless:
            error = render_error(message.id, METHOD_NOT_FOUND, "Method not found")
            return self.answer(error)
        if message.method == "server/discover":
            said = self._endpoint.introduction(NEWEST_STATELESS)
            return self.answer(render_result(message.id, said))
        talk, message = open_stateless(self._endpoint, self._visitor, message)
        talk.take(message, _Alone(self, talk))
        return None

    # What the client gets

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        self._unsent += len(raw)
        data = on_one_line(raw) + b"\n"
        with suppress(RuntimeError):  # the process ends
            self._writer.submit(self._write, data)

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        if raw and self._unsent < self._endpoint.limits.unfinished:
            self.answer(raw)
        return True

    def _write(self, data: bytes) -> None:
        try:
            write_all(1, data)
        except OSError:  # the client does not read any more
            self._loop.call_soon_threadsafe(self._on_end)
        self._unsent -= len(data) - 1

    async def _see_out(self) -> None:
        end = self._loop.time() + _LAST_ANSWERS
        while self._loop.time() < end and self._talk is not None and self._talk.waiting:
            await asyncio.sleep(_TICK)
        await self._loop.run_in_executor(self._writer, _nothing)  # what was said is written
        self._on_end()


class _Alone(Outlet):
    """The outlet of a request of 2026-07-28, whose talk ends with its answer."""

    def __init__(self, lines: Lines, talk: Talk) -> None:
        self._lines, self._talk = lines, talk

    def tell(self, raw: bytes, others: bytes = b"") -> bool:
        return self._lines.tell(raw)

    def pause(self) -> None:
        self._talk.end()

    def answer(self, raw: bytes, others: bytes = b"") -> None:
        self._lines.answer(raw)
        self._talk.end()


def _nothing() -> None:
    """Only wait for one's turn."""
