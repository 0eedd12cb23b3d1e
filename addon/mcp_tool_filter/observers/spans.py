"""Spans: their attributes by OpenTelemetry's conventions for MCP, and the trace they belong to.

Attributes never contain arguments or results. (https://opentelemetry.io/docs/specs/semconv/gen-ai/mcp/)

We read the W3C trace context in a message's ``params._meta``, and replace its parent by our span:

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

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.observers.sentences import (
    denying_pattern,
    error_in,
    is_tool_error,
    subject_of,
    verdict_word,
)
from mcp_tool_filter.policy.exchange import Via
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Rewrite
from mcp_tool_filter.protocol.messages import Notification, Request, Response, id_value
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


_LONGEST_ERROR = 256  # characters
_NAMES = {"tool": "gen_ai.tool.name", "prompt": "gen_ai.prompt.name", "uri": "mcp.resource.uri"}
_PROTOCOLS = {Via.HTTP: "http", Via.LEGACY_SSE: "http", Via.WEBSOCKET: "websocket"}


def name_of(request: Request, judged: Judged) -> str:
    """Return the span's name: the method, and the tool or prompt that it names.

    Without the tool if the call was refused: it may name anything, and backends index span names.
    """
    method = shown(request.method)
    is_sent = isinstance(judged.verdict, Forward | Rewrite)
    match subject_of(request):
        case ("tool" | "prompt", target) if target and is_sent:
            return f"{method} {target}"
        case _:
            return method


def attributes_of(request: Request, judged: Judged) -> dict[str, str]:
    """Return the attributes known when the request arrives."""
    client, subject = judged.client, subject_of(request)
    id = id_value(request.id)
    known = {
        "mcp.method.name": shown(request.method),
        "jsonrpc.request.id": None if id == "null" else shown(id.strip('"')),
        "mcp.session.id": _session(judged),
        "mcp.protocol.version": shown(client.revision) if client.revision else None,
        "network.transport": "pipe" if client.via is Via.STDIO else "tcp",
        "network.protocol.name": _PROTOCOLS.get(client.via),
        "gen_ai.operation.name": "execute_tool" if request.method == "tools/call" else None,
        "mcp_tool_filter.verdict": verdict_word(judged.verdict),
        "mcp_tool_filter.from": str(judged.direction),
        **({_NAMES[subject[0]]: subject[1]} if subject else {}),
    }
    if not isinstance(judged.verdict, Forward):
        reason = judged.verdict.reason
        known["mcp_tool_filter.why"] = reason.why.value
        known["mcp_tool_filter.rule"] = reason.rule or None
        known["mcp_tool_filter.pattern"] = denying_pattern(reason, judged.snapshot)
    return {name: value[:_LONGEST_ERROR] for name, value in known.items() if value}


def outcome_of(judged: Judged, response: Response) -> tuple[dict[str, str], str]:
    """Return the attributes known when the answer arrives, and the text of its error."""
    if not isinstance(judged.verdict, Forward):
        why = {"mcp_tool_filter.answer_why": judged.verdict.reason.why.value}
    else:
        why = {}
    if response.result is None:
        error, said = error_attributes(response.place.raw)
        return error | why, said
    return ({"error.type": "tool_error"} if is_tool_error(response) else {}) | why, ""


def error_attributes(answer: bytes) -> tuple[dict[str, str], str]:
    """Return the attributes and the text of an error answer.

    >>> error_attributes(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}')
    ({'error.type': '-32601', 'rpc.response.status_code': '-32601'}, 'no')
    """
    code, said = error_in(answer)
    if code is None:
        return {}, ""
    return {"error.type": str(code), "rpc.response.status_code": str(code)}, said


def _session(judged: Judged) -> str | None:
    session = judged.client.session
    return shown(session.id) if session and session.id else None
