"""OpenTelemetry: a span for each request of a client, with the semantic conventions for MCP.

opentelemetry is imported only where traces are wanted. Its own thread sends the spans, from a
queue with a limit, so no message waits for a collector. The OTEL_* variables say where to and how.

The client's context (``params._meta`` first, then the HTTP header) is the parent. Where it came
from, the upstream finds our span in its place; a message without a context stays as it is.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock, Thread
from typing import TYPE_CHECKING

import orjson

from mcp_tool_filter import __version__
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.observers.span_attributes import (
    attributes_of,
    error_in,
    name_of,
    outcome_of,
)
from mcp_tool_filter.observers.trace_context import (
    TraceContext,
    context_in,
    context_of,
    replace_parents,
)
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Via
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    Message,
    Notification,
    Request,
    Response,
    id_value,
    parse_message,
    singles,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span

log = logging.getLogger(__name__)

_MOST_OPEN = 10_000
_LONGEST_END = 3.0  # seconds to send the last spans
_CANCELLED = "notifications/cancelled"

type Headers = Mapping[str, str]


class _Open:
    """A request that has no answer yet."""

    __slots__ = ("client", "exchange", "in_header", "span")

    def __init__(self, exchange: Exchange, client: Client, span: Span, *, in_header: bool) -> None:
        self.exchange = exchange
        self.client = client
        self.span = span
        self.in_header = in_header
        """The upstream is to read our span in the header."""


class Tracer:
    """One for each process. Raises StartError without opentelemetry."""

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            from mcp_tool_filter.adapters.span_exporter import HonestExporter, otlp_exporter
        except ImportError:
            why = "Install it: pip install 'mcp-tool-filter[otel]'"
            raise StartError("Traces need OpenTelemetry", why=why) from None
        self._kind, self._status, self._code = SpanKind.SERVER, Status, StatusCode
        self._propagator = TraceContextTextMapPropagator()
        try:
            resource = Resource.create(_resource(environment))
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            sent_by = HonestExporter(exporter or otlp_exporter(environment))
            self._provider.add_span_processor(BatchSpanProcessor(sent_by))
        except (ValueError, TypeError) as error:  # an OTEL_* variable that cannot be read
            raise StartError("Cannot send traces", why=str(error)) from None
        self._tracer = self._provider.get_tracer("mcp_tool_filter", __version__)
        self._clock = clock
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._lock = RLock()  # over stdio each direction has a thread
        self._has_failed = False

    def observe(self, judged: Judged, headers: Headers | None = None) -> None:
        """Begin a span for each request of a client, and end the span that was answered."""
        try:
            with self._lock:
                self._note_invalid(judged)
                for one in judged.each:
                    if judged.direction is Direction.FROM_CLIENT:
                        self._note_asked(one, headers or {})
                    elif isinstance(one.message, Response) and one.exchange:
                        self._end(one.exchange, outcome_of(one, one.message))
        except Exception:
            self._fail_once()

    def propagate(
        self, message: Message | None, exchanges: Sequence[Exchange | None], verdict: Verdict
    ) -> Verdict:
        """Return the verdict with our spans in the place of the parents in ``_meta``."""
        try:
            with self._lock:
                return self._propagate(message, exchanges, verdict)
        except Exception:
            self._fail_once()
            return verdict

    def headers_for(self, judged: Judged) -> dict[str, str]:
        """Return the headers that tell the upstream of our span, where they have to be ours."""
        try:
            with self._lock:
                return self._headers_for(judged)
        except Exception:
            self._fail_once()
            return {}

    def close(self) -> None:
        """End all spans, and send them if that can be done soon."""
        with self._lock:
            while self._open:
                _, left = self._open.popitem(last=False)
                self._finish(left.span, {"error.type": "no_answer"}, "")
        last = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(_LONGEST_END)

    def _note_asked(self, judged: Judged, headers: Headers) -> None:
        message, exchange = judged.message, judged.exchange
        if isinstance(message, Notification) and message.method == _CANCELLED:
            self._cancel(message, judged.client)
        if not isinstance(message, Request) or exchange is None:
            return
        said = context_in(message)
        carrier = context_of(headers.get("traceparent"), headers.get("tracestate"))
        parent = said or carrier
        waited = max(0.0, self._clock() - exchange.asked_at)
        span = self._tracer.start_span(
            name_of(message, judged),
            context=self._context(parent),
            kind=self._kind,
            attributes=attributes_of(message, judged),
            links=self._links(carrier if said else None),
            start_time=time.time_ns() - int(waited * 1e9),
        )
        if isinstance(judged.verdict, Reply | Drop):
            text = judged.verdict.text if isinstance(judged.verdict, Reply) else b""
            self._finish(span, *error_in(text))
            return
        self._open[id(exchange)] = _Open(exchange, judged.client, span, in_header=said is None)
        if len(self._open) > _MOST_OPEN:
            _, oldest = self._open.popitem(last=False)
            self._finish(oldest.span, {"error.type": "no_answer"}, "")

    def _context(self, parent: TraceContext | None) -> Context:
        from opentelemetry.context import Context

        if parent is None:
            return Context()
        carrier = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
        return self._propagator.extract(carrier, Context())

    def _links(self, other: TraceContext | None) -> list[Link]:
        """Link the HTTP request's own context, where the message brings another one."""
        if other is None:
            return []
        from opentelemetry.trace import Link, get_current_span

        return [Link(get_current_span(self._context(other)).get_span_context())]

    def _propagate(
        self, message: Message | None, exchanges: Sequence[Exchange | None], verdict: Verdict
    ) -> Verdict:
        if message is None or not isinstance(verdict, Forward | Rewrite):
            return verdict
        spans = {id_value(one.exchange.id or ""): one.span for one in self._opened(exchanges)}
        if not spans:
            return verdict
        if isinstance(verdict, Rewrite):
            try:
                message = parse_message(verdict.text, Limits(message=len(verdict.text)))
            except ProtocolError:
                return verdict
        found: list[tuple[TraceContext, str]] = []
        text = ""
        for one in singles(message):
            span = spans.get(id_value(one.id)) if isinstance(one, Request) else None
            said = context_in(one) if span and isinstance(one, Request) else None
            if span and said and said.parent_at is not None and span.is_recording():
                context = span.get_span_context()
                if said.trace_id == f"{context.trace_id:032x}":
                    text = one.place.text
                    found.append((said, f"{context.span_id:016x}"))
        if not found:
            return verdict
        changed = replace_parents(text, found)
        if isinstance(verdict, Rewrite):
            return Rewrite(changed, verdict.reason, verdict.owed)
        return Rewrite(changed, Reason(Why.CHANGED, detail="the trace's parent"))

    def _headers_for(self, judged: Judged) -> dict[str, str]:
        is_http = judged.client.via in (Via.HTTP, Via.LEGACY_SSE)
        if judged.direction is not Direction.FROM_CLIENT or judged.members or not is_http:
            return {}
        if not isinstance(judged.verdict, Forward | Rewrite):
            return {}
        headers: dict[str, str] = {}
        for one in self._opened([judged.exchange]):
            if one.in_header and one.span.is_recording():
                from opentelemetry.trace import set_span_in_context

                self._propagator.inject(headers, set_span_in_context(one.span))
        return headers

    def _opened(self, exchanges: Sequence[Exchange | None]) -> list[_Open]:
        found = [self._open.get(id(one)) for one in exchanges if one and one.id is not None]
        return [one for one in found if one]

    def _end(self, exchange: Exchange, outcome: tuple[dict[str, str], str]) -> None:
        if opened := self._open.pop(id(exchange), None):
            self._finish(opened.span, *outcome)

    def _finish(self, span: Span, attributes: Mapping[str, str], said: str) -> None:
        for name, value in attributes.items():
            span.set_attribute(name, value)
        if "error.type" in attributes:
            span.set_status(self._status(self._code.ERROR, said or None))
        span.end()

    def _cancel(self, message: Notification, client: Client) -> None:
        wanted = message.params.get("requestId") if message.params else None
        if wanted is not None:
            self._end_by_id(client, message.place.cut(wanted), {"error.type": "cancelled"}, "")

    def _note_invalid(self, judged: Judged) -> None:
        """End what was answered with an error because nobody could read the answer."""
        if judged.message is not None or not isinstance(judged.verdict, Rewrite):
            return
        for text in (judged.verdict.text, *judged.verdict.owed):
            id = orjson.dumps(orjson.loads(text).get("id")).decode()
            attributes, said = error_in(text)
            self._end_by_id(judged.client, id, attributes, said)

    def _end_by_id(self, client: Client, id: str, attributes: Mapping[str, str], said: str) -> None:
        for key, one in self._open.items():
            if (
                _are_one(client, one.client)
                and one.exchange.id
                and id_value(one.exchange.id) == id_value(id)
            ):
                del self._open[key]
                self._finish(one.span, attributes, said)
                return

    def _fail_once(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.exception("cannot trace a message")


def _are_one(one: Client, other: Client) -> bool:
    """Tell whether ids of both are of one numbering."""
    if one is other or one.via is other.via is Via.STDIO:
        return True
    return one.session is not None and one.session is other.session


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    """Name ourselves, unless the user does."""
    named = environment.get("OTEL_SERVICE_NAME") or (
        "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    )
    names = {} if named else {"service.name": "mcp-tool-filter"}
    return {**names, "service.version": __version__}
