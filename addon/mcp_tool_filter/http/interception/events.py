r"""Find the first MCP event in an event stream that may not be MCP.

Events before it pass unchanged. The older transport begins with an event called ``endpoint``.

>>> EventPeeker().feed(b"data: hello\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":1}\n")
(b'data: hello\n\n', None)
"""

from __future__ import annotations

from mcp_tool_filter.http.interception.recognise import TrafficKind, kind_of_body, mentions_message
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.sse import Event, EventParser, Oversized, parse_event

_LIMITS = Limits()


class EventPeeker:
    """Use one per response body, until it has found an event."""

    def __init__(self, limits: Limits = _LIMITS) -> None:
        self._parser = EventParser(max_pending=limits.pending)

    def feed(self, chunk: bytes) -> tuple[bytes, bytes | None]:
        """Return the bytes that pass; and once there is MCP, all the other bytes received."""
        events = self._parser.feed(chunk)
        for number, event in enumerate(events):
            if _is_mcp(event):
                rest = b"".join(_raw(one) for one in events[number:]) + self._parser.finish()
                return b"".join(map(_raw, events[:number])), rest
        return b"".join(map(_raw, events)), None

    def finish(self) -> tuple[bytes, bytes | None]:
        """Return the same for an unfinished last event."""
        rest = self._parser.finish()
        return (b"", rest) if rest and _is_mcp(parse_event(rest)) else (rest, None)


def _is_mcp(event: Event | Oversized) -> bool:
    if isinstance(event, Oversized):
        return True  # we cannot tell; the filter drops it
    if event.name.strip().lower() == b"endpoint":
        return True
    if event.hides_a_line() and mentions_message(event.raw):
        return True
    return bool(event.data) and kind_of_body(event.data or b"") is TrafficKind.MCP


def _raw(event: Event | Oversized) -> bytes:
    return event.beginning if isinstance(event, Oversized) else event.raw
