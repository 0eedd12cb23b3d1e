"""A command that runs for one session, and the outboxes that wait for its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread

from mcp_tool_filter.adapters.stdio.child import Child, end_child
from mcp_tool_filter.adapters.stdio.judge import show_stray_line
from mcp_tool_filter.adapters.stdio.outbox import Outbox
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine, LineParser, ids_in_cut, refuse_hidden_line
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    UPSTREAM_LOST,
    Response,
    id_value,
    ids_guessed_in,
    parse_message,
    render_error,
    singles,
)

_MOST_KEPT = 1000  # messages kept while no stream is open
_INVALID = "The server sent an invalid response"
_LOST = "Upstream connection lost"


class ChildSession:
    """Create it in a running event loop. ``on_end`` is called once, when the command has ended."""

    def __init__(
        self,
        child: Child,
        limits: Limits,
        *,
        say: Callable[[str], None],
        on_end: Callable[[ChildSession, int], None],
    ) -> None:
        self._child = child
        self._limits = limits
        self._say = say
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._waiting: dict[str, tuple[str, Outbox]] = {}
        self._stream: Outbox | None = None
        self._kept: deque[bytes] = deque(maxlen=_MOST_KEPT)
        self._closing: asyncio.Task[None] | None = None
        self._patience = 5.0  # seconds from closed stdin to SIGTERM
        self.restore: Callable[[bytes], bytes] | None = None
        """Restores the ids in a message before it is delivered."""
        self.on_other: Callable[[bytes], Awaitable[None]] | None = None
        """Gets the messages that answer no request."""
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.last_used = self._loop.time()
        Thread(target=self._read, daemon=True).start()

    @property
    def is_closing(self) -> bool:
        return self._closing is not None or self.ended.done()

    @property
    def is_in_use(self) -> bool:
        """Whether a request waits for it, or a stream is open."""
        return bool(self._waiting) or self._stream is not None

    def expect(self, ids: Sequence[str], outbox: Outbox) -> bool:
        """Deliver the answers to these ids to the outbox; return False if one of the ids is in use
        already."""
        values = [id_value(id) for id in ids]
        if any(value in self._waiting for value in values) or len(set(values)) != len(values):
            return False
        for id, value in zip(ids, values, strict=True):
            self._waiting[value] = (id, outbox)
        if self.ended.done():
            self._fail_all()
        return True

    def expect_on_stream(self, ids: Sequence[str]) -> bool:
        """Deliver the answers to these ids to the stream, as in HTTP+SSE."""
        return self._stream is not None and self.expect(ids, self._stream)

    def forget(self, ids: Sequence[str]) -> bool:
        """Stop waiting for these ids; return whether any of them had no answer yet."""
        forgotten = [self._waiting.pop(id_value(id), None) for id in ids]
        return any(one is not None for one in forgotten)

    def cancel(self, id: str) -> None:
        """End a request without an answer, because its client has cancelled it."""
        if (outbox := self._answered(id)) is not None:
            self._end_if_answered(outbox)

    async def tell(self, line: bytes) -> None:
        """Write a line; returns when the command has taken it."""
        self.last_used = self._loop.time()
        with suppress(RuntimeError):  # the command has ended
            await self._loop.run_in_executor(self._writer, self._child.write, line + b"\n")

    def listen(self) -> Outbox:
        """Return a new stream for messages that answer no request; it replaces an older one."""
        if self._stream:
            self._stream.end()
        stream = Outbox()
        self._stream = stream
        if self.ended.done():
            stream.end()
        return stream

    def take_kept(self) -> list[bytes]:
        """Return the messages that were kept while no stream was open."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def stop_listening(self, stream: Outbox) -> None:
        stream.end()
        if self._stream is stream:
            self._stream = None
            self._kept.extend(stream.drain())

    async def close(self, *, eof: float = 5.0) -> None:
        """End the command with increasing force; return when it is gone."""
        if self._closing is None or eof < self._patience:
            self._patience = eof
            self._closing = asyncio.create_task(asyncio.to_thread(end_child, self._child, eof=eof))
        await asyncio.shield(self._closing)

    # Messages of the command

    def _read(self) -> None:
        """Read in a thread, no faster than the lines can be delivered."""
        parser = LineParser(max_pending=self._limits.pending)
        with suppress(OSError, RuntimeError):  # the event loop has ended before the command
            while chunk := self._child.read():
                self._in_loop(parser.feed(chunk))
            self._in_loop(parser.finish())
        self._child.close_output()
        code = self._child.wait()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, code)

    def _in_loop(self, lines: list[bytes | CutLine]) -> None:
        if lines:
            asyncio.run_coroutine_threadsafe(self._receive_all(lines), self._loop).result()

    async def _receive_all(self, lines: list[bytes | CutLine]) -> None:
        for line in lines:
            if isinstance(line, CutLine):
                await self._replace(ids_in_cut(line), f"a line of {line.size} bytes")
                continue
            try:
                refuse_hidden_line(line)
                message = parse_message(line, self._limits)
            except ProtocolError as error:
                if not show_stray_line(line, self._limits, self._say):
                    await self._replace(ids_guessed_in(line), str(error))
                continue
            await self._receive(
                line, [one for one in singles(message) if isinstance(one, Response)]
            )

    async def _receive(self, line: bytes, responses: Sequence[Response]) -> None:
        outboxes = [self._answered(one.id) for one in responses if one.id is not None]
        found = next((outbox for outbox in outboxes if outbox is not None), None)
        if found is not None:
            await found.put(self._restored(line))
            self._end_if_answered(found)
        elif not responses:
            await self._receive_other(line)

    async def _receive_other(self, line: bytes) -> None:
        """Deliver a message that answers no request."""
        if self.on_other is not None:
            await self.on_other(line)
            return
        if self._stream is not None and await self._stream.put(line):
            return
        # No stream is open, so any waiting request may carry it.
        waiting = [outbox for _, outbox in self._waiting.values()]
        if waiting:
            await waiting[-1].put(line)
        else:
            self._kept.append(line)

    def _restored(self, line: bytes) -> bytes:
        return self.restore(line) if self.restore else line

    def _answered(self, id: str) -> Outbox | None:
        waiting = self._waiting.pop(id_value(id), None)
        return waiting[1] if waiting else None

    def _end_if_answered(self, outbox: Outbox) -> None:
        if outbox is not self._stream and not any(
            other is outbox for _, other in self._waiting.values()
        ):
            outbox.end()

    async def _replace(self, ids: Sequence[str], detail: str) -> None:
        """Answer requests with an error, because the command's message cannot be delivered."""
        self._say(f"Warning: The command sent an invalid message: {detail}")
        for id in ids:
            written, outbox = self._waiting.pop(id_value(id), (id, None))
            if outbox is not None:
                await outbox.put(self._restored(render_error(written, INTERNAL_ERROR, _INVALID)))
                self._end_if_answered(outbox)

    # The end

    def _end(self, code: int) -> None:
        if self.ended.done():
            return
        self.ended.set_result(code)
        self._writer.shutdown(wait=False)
        self._fail_all()
        if self._stream:
            self._stream.end()
        if self._closing is None:  # its children may still run
            self._closing = asyncio.create_task(asyncio.to_thread(end_child, self._child))
        self._on_end(self, code)

    def _fail_all(self) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        for id, outbox in waiting if self._closing is None else ():  # otherwise the client has left
            outbox.put_last(self._restored(render_error(id, UPSTREAM_LOST, _LOST)))
        for _, outbox in waiting:
            outbox.end()
