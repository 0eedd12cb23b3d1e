"""Read the W3C trace context in a message's ``params._meta``, and replace its parent by our span.

>>> from mcp_tool_filter.protocol.messages import parse_message
>>> call = parse_message(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a",'
...     b'"_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}}')
>>> context_in(call).trace_id
'4bf92f3577b34da6a3ce929d0e0e4736'
>>> b"4736-ffffffffffffffff-01" in replace_parents(call.place.text, [(context_in(call), "f" * 16)])
True

Only the 16 characters of the parent's id change; the message keeps its length and all other bytes.
(https://www.w3.org/TR/trace-context/; MCP's SEP-414 gives the keys in ``_meta``.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_tool_filter.protocol.messages import Notification, Request
from mcp_tool_filter.protocol.scan import Value

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_ZEROS = re.compile("0+")
_BEFORE_PARENT = len("00-") + 32 + len("-")
_LONGEST = 512  # characters, as the standard asks of tracestate


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace context that a client sends."""

    trace_id: str
    traceparent: str
    tracestate: str = ""
    parent_at: int | None = None
    """The offset of the parent's id in the text; None if it cannot be replaced."""


def context_of(traceparent: str | None, tracestate: str | None = "") -> TraceContext | None:
    """Parse a context; None if the standard does not allow it.

    >>> context_of("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is None
    True
    """
    if traceparent is None or len(traceparent) > _LONGEST:
        return None
    found = _TRACEPARENT.fullmatch(traceparent)
    if not found or _ZEROS.fullmatch(found[1]) or _ZEROS.fullmatch(found[2]):
        return None
    if traceparent.startswith("00-") and len(traceparent) != _BEFORE_PARENT + 16 + len("-01"):
        return None
    state = tracestate or ""
    return TraceContext(found[1], traceparent, state if len(state) <= _LONGEST else "")


def context_in(message: Request | Notification) -> TraceContext | None:
    """Return the context in a message's ``_meta``; None if it is ambiguous."""
    meta = _only(message.params, "_meta")
    parent, state = _only(meta, "traceparent"), _only(meta, "tracestate")
    if parent is None:
        return None
    context = context_of(parent.text, state.text if state else "")
    written = message.place.cut(parent)
    if context is None or written != f'"{context.traceparent}"':  # escaped: we cannot replace it
        return context
    at = parent.start + len('"') + _BEFORE_PARENT
    return TraceContext(context.trace_id, context.traceparent, context.tracestate, at)


def replace_parents(text: str, spans: Iterable[tuple[TraceContext, str]]) -> bytes:
    """Return the text with each context's parent replaced by a span's id of 16 characters."""
    for context, span_id in spans:
        if (at := context.parent_at) is not None and len(span_id) == 16:
            text = text[:at] + span_id + text[at + 16 :]
    return text.encode()


def _only(value: Value | None, key: str) -> Value | None:
    """Return a member's value if the key occurs exactly once."""
    found = [one.value for one in (value.members or () if value else ()) if one.key == key]
    return found[0] if len(found) == 1 else None
