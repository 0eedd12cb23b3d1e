"""OpenTelemetry: a span for each request of either side, with the semantic conventions for MCP.

(``otlp`` sends what else there is: metrics, and the entries of the audit log.)

opentelemetry is imported only if traces are wanted. Its own thread sends the spans from a bounded
queue, so no message waits for a collector. The OTEL_* variables configure it. A failure to send is
logged only once: OpenTelemetry would log each one. Attributes never contain arguments or results
(https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md).

The context of who asks (``params._meta`` first, then a client's HTTP header) is the parent. Where
it came from, we put our span for the other side; a message without a context stays unchanged:

>>> from mcp_tool_filter.core.messages.messages import parse_message
>>> call = parse_message(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a",'
...     b'"_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}}')
>>> context_in(call).trace_id
'4bf92f3577b34da6a3ce929d0e0e4736'
>>> b"4736-ffffffffffffffff-01" in replace_parents(call.place.text, [(context_in(call), "f" * 16)])
True

Only the 16 characters of the parent's id change; the message keeps its length and all other bytes
(https://www.w3.org/TR/trace-context/; MCP's SEP-414 gives the keys in ``_meta``).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    Notification,
    Request,
    Response,
    id_value,
    parse_message,
    singles,
)
from mcp_tool_filter.core.messages.scan import Value
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Via
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.statistics import is_tool_error
from mcp_tool_filter.rooms.audit.entry import Entry
from mcp_tool_filter.rooms.audit.facts import error_in, facts_about, subject_of
from mcp_tool_filter.rooms.audit.open_requests import OpenRequests, RequestKey, key_of
from mcp_tool_filter.rooms.secrets.finder import redacted_beginning
from mcp_tool_filter.rooms.telemetry.otlp import Attributes, Otlp, ServerAt, Timed

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span


# Trace contexts, and the attributes of spans

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
    match = _TRACEPARENT.fullmatch(traceparent)
    if not match or _ZEROS.fullmatch(match[1]) or _ZEROS.fullmatch(match[2]):
        return None
    if traceparent.startswith("00-") and len(traceparent) != _BEFORE_PARENT + 16 + len("-01"):
        return None
    state = tracestate or ""
    return TraceContext(match[1], traceparent, state if len(state) <= _LONGEST else "")


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
    values = [
        member.value for member in (value.members or () if value else ()) if member.key == key
    ]
    return values[0] if len(values) == 1 else None


_NOWHERE: ServerAt = {}
_NAMES = {"tool": "gen_ai.tool.name", "prompt": "gen_ai.prompt.name", "uri": "mcp.resource.uri"}
_PROTOCOL_NAMES = {Via.HTTP: "http", Via.LEGACY_SSE: "http"}


def name_of(request: Request, judged: Judged) -> str:
    """Return the span's name: the method, and the tool or prompt that it names.

    Without the tool if the call was refused: it may name anything, and backends index span names.
    """
    method, subject = shown(request.method), subject_of(request)
    is_named = subject is not None and subject[0] != "uri" and subject[1]
    is_sent = isinstance(judged.verdict, Forward | Rewrite)
    return f"{method} {subject[1]}" if subject and is_named and is_sent else method


def attributes_of(request: Request, judged: Judged) -> dict[str, str]:
    """Return the attributes known when the request arrives."""
    client, id = judged.client, id_value(request.id)
    session = client.session
    known = {
        "mcp.method.name": shown(request.method),
        "jsonrpc.request.id": None if id == "null" else shown(id.strip('"')),
        "mcp.session.id": shown(session.id) if session and session.id else None,
        "mcp.protocol.version": shown(client.revision) if client.revision else None,
        "network.transport": "pipe" if client.via is Via.STDIO else "tcp",
        "network.protocol.name": _PROTOCOL_NAMES.get(client.via),
        "gen_ai.operation.name": "execute_tool" if request.method == "tools/call" else None,
        "mcp_tool_filter.from": str(judged.direction),
    }
    if subject := subject_of(request):
        kind, name = subject
        known[_NAMES[kind]] = shown_url(name) if kind == "uri" else name
    facts = facts_about(judged.verdict, judged.snapshot)
    if judged.would is not None:
        facts = {**facts_about(judged.would, judged.snapshot), **facts, "shadow": "true"}
    known |= {f"mcp_tool_filter.{name}": fact for name, fact in facts.items()}
    return {name: value[:NAME] for name, value in known.items() if value}


def outcome_of(judged: Judged, response: Response) -> tuple[dict[str, str], str]:
    """Return the attributes known when the answer arrives, and the text of its error."""
    decided, why = judged.verdict, {}
    if judged.would is not None and isinstance(decided, Forward):
        decided, why = judged.would, {"mcp_tool_filter.shadow": "true"}
    if not isinstance(decided, Forward):
        why["mcp_tool_filter.answer_why"] = decided.reason.why.value
    if response.result is None:
        error, message = error_attributes(response.place.raw)
        return error | why, message
    return ({"error.type": "tool_error"} if is_tool_error(response) else {}) | why, ""


def error_attributes(answer: bytes) -> tuple[dict[str, str], str]:
    """Return the attributes and the text of an error answer.

    >>> error_attributes(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}')
    ({'error.type': '-32601', 'rpc.response.status_code': '-32601'}, 'no')
    """
    code, message = error_in(answer)
    if code is None:
        return {}, ""
    return {"error.type": str(code), "rpc.response.status_code": str(code)}, message


# Spans


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A request of either side without an answer yet."""

    span: Span
    timed: Timed
    client: Client
    exchange: RpcExchange | None
    """None for a request of the upstream, whose answer only the id identifies."""
    by_id: RequestKey
    in_header: bool = False
    """True if the upstream should read our span in the header."""


class OpenSpans(OpenRequests[OpenSpan]):
    """The open spans, which also finds all of one client."""

    __slots__ = ("_of_client",)

    def __init__(self) -> None:
        super().__init__()
        self._of_client: dict[int, dict[int, OpenSpan]] = {}

    def add(self, request: OpenSpan) -> Sequence[OpenSpan]:
        self._of_client.setdefault(id(request.client), {})[id(request)] = request
        return super().add(request)

    def take_all_with(self, client: Client) -> Iterator[OpenSpan]:
        """Yield and forget all requests from and to this client."""
        for opened in list(self._of_client.get(id(client), {}).values()):
            self._take(id(opened.exchange) if opened.exchange else opened.by_id)
            yield opened

    def _take(self, key: int | RequestKey) -> OpenSpan | None:
        taken = super()._take(key)
        if taken is not None:
            others = self._of_client[id(taken.client)]
            del others[id(taken)]
            if not others:
                del self._of_client[id(taken.client)]
        return taken


log = logging.getLogger(__name__)

_NO_ANSWER = "no_answer"

type TraceHeaders = Mapping[str, str]


class Tracer:
    """The tracer of the process. Raises StartError without opentelemetry."""

    def __init__(self, otlp: Otlp | None = None) -> None:
        self._otlp = otlp or Otlp()
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._kind, self._status, self._code = SpanKind.SERVER, Status, StatusCode
        self._propagator = TraceContextTextMapPropagator()
        self._open = OpenSpans()
        self._lock = RLock()  # over stdio each direction has a thread
        self._has_failed = False

    def observe(
        self,
        judged: Judged,
        headers: TraceHeaders | None = None,
        peer: tuple[str, int] | None = None,
        server: ServerAt = _NOWHERE,
    ) -> None:
        """Begin a span for each request, and end the span that was answered.

        ``peer`` is the address and the port of the client, where it has some; ``server`` those of
        the upstream.
        """
        with self._safely():
            for opened, text in self._open.take_unreadable(judged, judged.verdict):
                self._finish(opened, *error_attributes(text))
            for member in judged.each:
                if isinstance(member.message, Response):
                    if answered := self._open.take_answered(member, member.message):
                        self._finish(answered, *outcome_of(member, member.message))
                else:
                    self._note_asked(member, headers or {}, peer, server)

    def propagate(self, judged: Judged) -> Verdict:
        """Return the verdict with our spans as the parents in ``_meta``."""
        with self._safely():
            return self._propagate(judged)
        return judged.verdict  # type: ignore[unreachable]  # mypy does not see that it catches

    def leave(self, client: Client, why: str | None) -> None:
        """End the spans of all requests from and to a client, because no answer will come.

        ``why`` is the error type, or None.
        """
        with self._safely():
            for opened in self._open.take_all_with(client):
                self._give_up(opened, why)

    def headers_for(self, judged: Judged) -> dict[str, str]:
        """Return the trace headers with our span for the upstream, if they must be replaced."""
        headers: dict[str, str] = {}
        is_http = judged.client.via in (Via.HTTP, Via.LEGACY_SSE)
        if judged.direction is not Direction.FROM_CLIENT or judged.members or not is_http:
            return headers
        with self._safely():
            for opened in self._opened(judged):
                if opened.in_header and opened.span.is_recording():
                    from opentelemetry.trace import set_span_in_context

                    self._propagator.inject(headers, set_span_in_context(opened.span))
        return headers

    def close(self) -> None:
        """End all spans, and try to send them quickly."""
        with self._lock:
            while oldest := self._open.take_oldest():
                self._give_up(oldest, _NO_ANSWER)
        self._otlp.close()

    def show(self, entry: Entry) -> None:
        """Send an entry of the audit log."""
        with self._safely():
            self._otlp.show(entry)

    def _note_asked(
        self,
        judged: Judged,
        headers: TraceHeaders,
        peer: tuple[str, int] | None,
        server: ServerAt,
    ) -> None:
        message, exchange, client = judged.message, judged.exchange, judged.client
        if isinstance(message, Notification) and (
            opened := self._open.take_cancelled(judged, message)
        ):
            self._give_up(opened, "cancelled")
        is_known = exchange is not None or judged.direction is Direction.FROM_UPSTREAM
        if not isinstance(message, Request) or not is_known:
            return
        context = context_in(message)
        carrier = context_of(headers.get("traceparent"), headers.get("tracestate"))
        is_sent = isinstance(judged.verdict, Forward | Rewrite)
        attributes = attributes_of(message, judged)
        timed = self._otlp.begin(
            attributes, exchange.asked_at if exchange else None, is_sent=is_sent, server=server
        )
        if client.session is not None:
            self._otlp.see(client.session, attributes, server)
        span = self._otlp.tracer.start_span(
            name_of(message, judged),
            context=self._context(context or carrier),
            kind=self._kind,
            attributes=attributes,
            links=self._links(carrier if context else None),
            start_time=time.time_ns() - int(timed.waited * 1e9),
        )
        if peer:
            span.set_attributes({"client.address": peer[0], "client.port": peer[1]})
        by_id = key_of(client, message.id)
        asked = OpenSpan(span, timed, client, exchange, by_id, in_header=context is None)
        if is_sent:
            for forgotten in self._open.add(asked):
                self._give_up(forgotten, _NO_ANSWER)
        else:
            text = judged.verdict.text if isinstance(judged.verdict, Reply) else b""
            self._finish(asked, *error_attributes(text))

    def _context(self, parent: TraceContext | None) -> Context:
        from opentelemetry.context import Context

        if parent is None:
            return Context()
        carrier = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
        return self._propagator.extract(carrier, Context())

    def _links(self, other: TraceContext | None) -> list[Link]:
        """Return a link to the HTTP request's context, if the message has a different one."""
        if other is None:
            return []
        from opentelemetry.trace import Link, get_current_span

        return [Link(get_current_span(self._context(other)).get_span_context())]

    def _propagate(self, judged: Judged) -> Verdict:
        message, verdict = judged.message, judged.verdict
        spans = {opened.by_id[1]: opened.span for opened in self._opened(judged)}
        if message is None or not spans:
            return verdict
        if isinstance(verdict, Rewrite):
            try:
                message = parse_message(verdict.text, Limits(message=len(verdict.text)))
            except ProtocolError:
                return verdict
        parents: list[tuple[TraceContext, str]] = []
        text = ""
        for single in singles(message):
            span = spans.get(id_value(single.id)) if isinstance(single, Request) else None
            parent = context_in(single) if span and isinstance(single, Request) else None
            if span and parent and parent.parent_at is not None and span.is_recording():
                context = span.get_span_context()
                if parent.trace_id == f"{context.trace_id:032x}":
                    text = single.place.text  # of the whole batch
                    parents.append((parent, f"{context.span_id:016x}"))
        if not parents:
            return verdict
        changed = replace_parents(text, parents)
        if isinstance(verdict, Rewrite):
            return Rewrite(changed, verdict.reason, verdict.owed)
        return Rewrite(changed, Reason(Why.CHANGED, detail="the trace's parent"))

    def _opened(self, judged: Judged) -> list[OpenSpan]:
        """Return the open spans of the requests in a message that is passed on."""
        spans = []
        if isinstance(judged.verdict, Forward | Rewrite):
            for member in judged.each:
                if not isinstance(member.message, Request):
                    continue
                if judged.direction is Direction.FROM_UPSTREAM:
                    spans.append(self._open.of_upstream(member.client, member.message.id))
                elif member.exchange:
                    spans.append(self._open.of(member.exchange))
        return [span for span in spans if span]

    def _give_up(self, opened: OpenSpan, why: str | None) -> None:
        """End the span of a request that will not be answered."""
        self._finish(opened, {"error.type": why} if why else {}, "")

    def _finish(self, opened: OpenSpan, attributes: Attributes, message: str) -> None:
        self._otlp.end(opened.timed, attributes)
        span = opened.span
        span.set_attributes(dict(attributes))
        if "error.type" in attributes:
            message = redacted_beginning(message, NAME)
            span.set_status(self._status(self._code.ERROR, message or None))
        span.end()

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Hold the lock; log the first error, which disturbs no message."""
        try:
            with self._lock:
                yield
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("cannot trace a message")
