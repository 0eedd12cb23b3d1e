"""Read the messages of an event stream one by one as they arrive."""

from __future__ import annotations

from collections import deque

from mcp_tool_filter.adapters.fetch.mcp_replies import Result, messages_in, plain
from mcp_tool_filter.adapters.sockets.client import HttpResponse
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.sse import Event, EventParser, Oversized


class EventReader:
    """The events of a response body, and the messages in them."""

    def __init__(self, response: HttpResponse, limit: int) -> None:
        self._response = response
        self._limit = limit
        self._parser = EventParser(max_pending=limit)
        self._events: deque[Event | Oversized] = deque()
        self._messages: deque[tuple[Result, bytes]] = deque()

    async def next_message(self) -> tuple[Result, bytes] | None:
        """Return the next message and its bytes; None at the end of the body."""
        while not self._messages:
            event = await self.next_event()
            if event is None:
                return None
            # Servers keep streams alive with events that have other names, no data, or just a word.
            if event.is_message and event.data and event.data.lstrip()[:1] in (b"{", b"["):
                self._messages.extend(messages_in(event.data))
        return self._messages.popleft()

    async def next_event(self) -> Event | None:
        """Return the next event; None at the end of the body. Raises HttpFailed, ProtocolError."""
        if self._response.coding:
            raise ProtocolError(f"The event stream is compressed ({plain(self._response.coding)})")
        unfinished = 0  # bytes that are not an event yet
        while not self._events:
            chunk = await self._response.next_chunk()
            if not chunk:
                return None
            self._events.extend(self._parser.feed(chunk))
            unfinished += len(chunk)
            if unfinished > self._limit and not self._events:
                raise ProtocolError(f"An event is longer than {self._limit} bytes")
        event = self._events.popleft()
        if isinstance(event, Oversized):
            raise ProtocolError(f"An event is longer than {self._limit} bytes")
        return event
