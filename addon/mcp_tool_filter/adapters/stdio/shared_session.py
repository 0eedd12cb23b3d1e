"""One command for all clients of a stateless revision; each request gets a number as its id."""

from __future__ import annotations

import asyncio

from mcp_tool_filter.adapters.stdio.child_session import ChildSession
from mcp_tool_filter.adapters.stdio.outbox import Outbox
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.renumber import Numbers


class SharedSession:
    """A shared command. Messages for one client never reach another."""

    def __init__(self, session: ChildSession) -> None:
        self.session = session
        self._numbers = Numbers()
        self._outboxes: dict[int, Outbox] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        session.restore = self._restore
        session.on_other = self._receive_other

    async def ask(self, line: bytes, outbox: Outbox) -> int:
        """Send a request and return its number; its messages go to the outbox."""
        number, renumbered = self._numbers.renumber(line)
        self._outboxes[number] = outbox
        self.session.expect([str(number)], outbox)
        await self.session.tell(renumbered)
        return number

    def leave(self, number: int) -> None:
        """Forget a request; if it has no answer yet, cancel it."""
        self._outboxes.pop(number, None)
        if self.session.forget([str(number)]):
            notice = (
                b'{"jsonrpc":"2.0","method":"notifications/cancelled",'
                b'"params":{"requestId":%d}}' % number
            )
            task = asyncio.ensure_future(self.session.tell(notice))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _restore(self, line: bytes) -> bytes:
        number, restored = self._numbers.restore(line)
        if number is not None:
            self._numbers.forget(number)
            self._outboxes.pop(number, None)
        return restored

    async def _receive_other(self, line: bytes) -> None:
        """Deliver a message about one request; drop a broadcast, which could leak from one client
        to another."""
        try:
            number, restored = self._numbers.restore(line)
        except ProtocolError:
            return
        if number is None and len(self._outboxes) == 1:
            number = next(iter(self._outboxes))
        if number is not None and (outbox := self._outboxes.get(number)):
            await outbox.put(restored)
