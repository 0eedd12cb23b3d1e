"""What a body is called.

>>> is_event_stream("Text/Event-Stream; charset=utf-8"), is_event_stream("application/json")
(True, False)
"""

from __future__ import annotations

EVENT_STREAM = "text/event-stream"


def is_event_stream(content_type: str) -> bool:
    """Tell whether a body is events."""
    return content_type.partition(";")[0].strip().lower() == EVENT_STREAM


def may_be_event_stream(content_type: str) -> bool:
    """Tell whether some client would read a body as events: they look for a part of the name."""
    return "event-stream" in content_type.lower()
