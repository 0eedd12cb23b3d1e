"""An upstream in this process: it exchanges values with the engine, and no bytes.

    service.connect = InProcess(bridge.answer, budget.received).connect

It is reached by nobody else. For the engine it is a connection like any other: what it answers is
judged, it waits for clients that read slowly, and a client that leaves cancels its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from mcp_tool_filter.core.engine.service import nothing
from mcp_tool_filter.core.engine.upstream import Upstream
from mcp_tool_filter.core.engine.wire import AnswerHead
from mcp_tool_filter.core.http.head import Fields
from mcp_tool_filter.core.process.background import keep, start_later
from mcp_tool_filter.core.sockets.served import AnswerRequest, ServedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp_tool_filter.core.engine.exchange import Exchange


class InProcess:
    """Answers the exchanges of all clients."""

    def __init__(self, answer: AnswerRequest, received: Callable[[int], None]) -> None:
        """``received`` counts bytes of answers."""
        self.answer, self.received = answer, received
        self.tasks: set[asyncio.Task[None]] = set()

    def connect(self, exchange: Exchange) -> None:
        """Let an exchange ask."""
        exchange.connected(_Asked(self))


class _Asked(Upstream):
    """One request, and its answer."""

    def __init__(self, server: InProcess) -> None:
        super().__init__(write=_ignore, abort=self._cancel, hold=self._hold, idle=nothing)
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()

    def begin(self, exchange: Exchange, *, head: bytes, method: str, body: bytes) -> None:
        """Ask; ``head`` is not needed."""
        self._exchange = exchange
        headers = tuple((name.lower(), value) for name, value in exchange.out_fields)
        request = ServedRequest(method, exchange.head.target, headers, body)
        self._task = keep(self._server.tasks, start_later(self._ask(exchange, request)))

    async def _ask(self, exchange: Exchange, request: ServedRequest) -> None:
        try:
            answer = await self._server.answer(request)
            head = _head_of(answer.status, tuple(answer.headers))
            exchange.guarded(exchange.on_head, head)
            if isinstance(answer.body, bytes):
                self._pass_on(exchange, answer.body)
            else:
                await self._pass_stream(exchange, answer.body)
            if self._exchange is exchange:
                self._release()
                exchange.on_end()
        except Exception as error:
            self._fail(exchange, error)
        finally:
            exchange.down.host.wake()

    async def _pass_stream(self, exchange: Exchange, body: AsyncIterator[bytes]) -> None:
        # It is begun even if the exchange is over: only then does its ``finally`` run.
        async with aclosing(cast("AsyncGenerator[bytes]", body)) as parts:
            async for part in parts:
                if not self._pass_on(exchange, part):
                    return
                exchange.down.host.wake()
                await self._may_go_on.wait()

    def _pass_on(self, exchange: Exchange, part: bytes) -> bool:
        """Give the exchange a part of the body; return whether it wants more."""
        if part and self._exchange is exchange:
            self._server.received(len(part))
            exchange.on_data(part)
        return self._exchange is exchange

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _hold(self, on: bool) -> None:
        (self._may_go_on.clear if on else self._may_go_on.set)()


@lru_cache(maxsize=64)
def _head_of(status: int, fields: Fields) -> AnswerHead:
    """Return the same head for the same fields: what was decided on it is kept with it."""
    return AnswerHead(status, b"", fields)


def _ignore(_data: bytes) -> None:
    pass
