"""What goes to a collector besides the spans: metrics of requests and sessions, and audit entries.

The metrics are the four histograms of OpenTelemetry's conventions for MCP: as the receiver of
requests (``server``) we count from their arrival, as their sender (``client``) from when we sent
them on (https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md).

Each kind of signal has a bounded queue and a thread of OpenTelemetry's: no message waits for a
collector. A collector that does not answer costs one warning, however many kinds it does not take.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from mcp_tool_filter import __version__, how_to_install
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.rooms.audit.entry import Entry, is_refused, method_of, render
from mcp_tool_filter.rooms.telemetry.metrics import SeriesNames

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from mcp_tool_filter.core.policy.situation import Session

log = logging.getLogger(__name__)

SCOPE: Final = "mcp_tool_filter"
_CANNOT_SEND = "Cannot send traces, logs or metrics; they are lost until it works: %s"
_LONGEST_END = 3.0  # seconds to send the last of all
_BOUNDARIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)  # as the conventions
_MEASURED = frozenset({
    "mcp.method.name", "mcp.protocol.version", "gen_ai.operation.name", "gen_ai.tool.name",
    "gen_ai.prompt.name", "network.transport", "network.protocol.name", "error.type",
    "rpc.response.status_code",
})  # fmt: skip
_OF_SESSIONS = frozenset({"mcp.protocol.version", "network.transport", "network.protocol.name"})
_NOT_SENT = frozenset({"arguments", "result"})

_TEXTS = {
    "mcp.client.operation.duration": "The duration of the MCP request or notification as observed"
    " on the sender from the time it was sent until the response or ack is received.",
    "mcp.server.operation.duration": "MCP request or notification duration as observed on the"
    " receiver from the time it was received until the result or ack is sent.",
    "mcp.client.session.duration": "The duration of the MCP session as observed on the MCP client.",
    "mcp.server.session.duration": "The duration of the MCP session as observed on the MCP server.",
}

type Attributes = Mapping[str, str]
type ServerAt = Mapping[str, str | int]
"""The attributes ``server.address`` and ``server.port``; none over stdio."""


# Exporters


def is_wanted(kind: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a kind of signal (TRACES, METRICS or LOGS) is not switched off. Raises
    StartError if the variables ask for a protocol that we do not speak."""
    if environment.get(f"OTEL_{kind}_EXPORTER", "").strip().lower() == "none":
        return False
    for name in (f"OTEL_EXPORTER_OTLP_{kind}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environment.get(name, "http/protobuf") not in ("http/protobuf", ""):
            why = "Only http/protobuf is supported; collectors accept it on port 4318"
            raise StartError(f"{name} cannot be {environment[name]}", why=why)
    return True


def resource_of(environment: Mapping[str, str]) -> Resource:
    """Return what names us, unless the user does. Raises ValueError for an invalid variable."""
    from opentelemetry.sdk.resources import Resource

    named = environment.get("OTEL_SERVICE_NAME") or (
        "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    )
    names = {} if named else {"service.name": "mcp-tool-filter"}
    return Resource.create({**names, "service.version": __version__})


class Failures(logging.Handler):
    """Knows the kinds of signals that cannot be sent now, and what OpenTelemetry said last.

    It logs the first failure of all, and when everything works again.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = "no reason given"
        self._kinds: set[str] = set()
        theirs = logging.getLogger("opentelemetry")
        theirs.propagate = False  # some lines have tracebacks, and all are repeated each time
        theirs.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said = next(iter(record.getMessage().splitlines()), "")[:300]

    def note(self, kind: str, *, has_failed: bool, why: str = "") -> None:
        """Note the outcome of an attempt to send."""
        assert self.lock
        with self.lock:
            before = bool(self._kinds)
            (self._kinds.add if has_failed else self._kinds.discard)(kind)
            after = bool(self._kinds)
        if after and not before:
            log.warning(_CANNOT_SEND, why or self.said)
        elif before and not after:
            log.warning("Traces, logs and metrics are sent again")


class HonestExporter:
    """An exporter whose failures are reported, each only once."""

    def __init__(
        self,
        exporter: Any,
        failures: Failures,
        kind: str = "TRACES",
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """``then`` is called after each attempt."""
        self._exporter, self._failures, self._kind, self._then = exporter, failures, kind, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, batch: Any, *args: Any, **more: Any) -> Any:
        try:
            result = self._exporter.export(batch, *args, **more)
        except Exception as error:
            self._failures.note(self._kind, has_failed=True, why=str(error))
            raise  # OpenTelemetry's thread logs it and goes on
        else:
            self._failures.note(self._kind, has_failed=result.name != "SUCCESS")
            return result
        finally:
            self._then()


# Signals


@dataclass(frozen=True, slots=True)
class Timed:
    """A request that has no answer yet."""

    attributes: Attributes
    noted: float
    waited: float
    """Seconds from its arrival until it was noted."""
    is_sent: bool
    """False if the other side does not get it."""
    server: ServerAt


@dataclass(slots=True)
class _Seen:
    """A session, from its first to its last message."""

    attributes: Attributes
    server: ServerAt
    first: float
    last: float


class Otlp:
    """The providers of the process. Raises StartError if OpenTelemetry is not installed, or cannot
    be used as its variables say."""

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """An ``exporter`` gets the spans; then there are neither metrics nor logs."""
        self._clock = clock
        self._failures = Failures()
        self._names: dict[str, SeriesNames] = defaultdict(SeriesNames)
        self._sessions: dict[int, _Seen] = {}
        self._ended: deque[int] = deque()
        self._providers: list[Any] = []
        self._records: dict[str, Callable[..., None]] = {}
        self._emit: Callable[..., None] | None = None
        try:
            resource = resource_of(environment)
            self.tracer = self._open_traces(resource, exporter, environment)
            if exporter is None and is_wanted("METRICS", environment):
                self._measure(resource)
            if exporter is None and is_wanted("LOGS", environment):
                self._emit = self._open_logs(resource)
        except ImportError:
            why = f"Install it: {how_to_install('otel')}"
            raise StartError("Traces need OpenTelemetry", why=why) from None
        except (ValueError, TypeError) as error:  # an invalid OTEL_* variable
            raise StartError("Cannot send traces", why=str(error)) from None

    def _open_traces(
        self, resource: Resource, exporter: SpanExporter | None, environment: Mapping[str, str]
    ) -> Tracer:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._providers.append(provider)
        if exporter is None and is_wanted("TRACES", environment):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        if exporter is not None:
            honest: Any = HonestExporter(exporter, self._failures)
            provider.add_span_processor(BatchSpanProcessor(honest))
        return provider.get_tracer(SCOPE, __version__)

    def _measure(self, resource: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter: Any = HonestExporter(
            OTLPMetricExporter(), self._failures, "METRICS", self._record_ended
        )
        provider = MeterProvider(
            [PeriodicExportingMetricReader(exporter)], resource=resource, shutdown_on_exit=False
        )
        self._providers.append(provider)
        meter = provider.get_meter(SCOPE, __version__)
        for name, text in _TEXTS.items():
            histogram = meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=list(_BOUNDARIES)
            )
            self._records[name] = histogram.record

    def _open_logs(self, resource: Resource) -> Callable[..., None]:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk import _logs
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

        provider = _logs.LoggerProvider(resource=resource, shutdown_on_exit=False)
        exporter: Any = HonestExporter(OTLPLogExporter(), self._failures, "LOGS")
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._providers.append(provider)
        logger: Any = provider.get_logger(SCOPE, __version__)
        old = getattr(_logs, "LogRecord", None)  # until 1.38
        if old is not None:
            make: Any = partial(old, resource=resource, trace_id=0, span_id=0, trace_flags=0)
        else:
            from opentelemetry._logs import LogRecord as make
        return lambda **said: logger.emit(make(**said))

    def close(self) -> None:
        """End all sessions; send what is left, all at once, and wait for that only a short time."""
        for serial in list(self._sessions):
            self._record_session(serial)
        ends = [
            Thread(target=provider.shutdown, name="last signals", daemon=True)
            for provider in self._providers
        ]
        for end in ends:
            end.start()
        until = time.monotonic() + _LONGEST_END
        for end in ends:
            end.join(max(0.0, until - time.monotonic()))
        if any(end.is_alive() for end in ends):
            why = "the collector does not answer"
            self._failures.note("END", has_failed=True, why=why)

    # Requests and sessions

    def begin(
        self, attributes: Attributes, asked: float | None, *, is_sent: bool, server: ServerAt
    ) -> Timed:
        """Note that a request has come; None if it was ``asked`` just now."""
        kept = {name: value for name, value in attributes.items() if name in _MEASURED}
        if not is_sent:  # clients make up names
            kept.pop("gen_ai.tool.name", None)
            kept.pop("gen_ai.prompt.name", None)
        now = self._clock()
        waited = 0.0 if asked is None else max(0.0, now - asked)
        return Timed(kept, now, waited, is_sent, server)

    def end(self, timed: Timed, outcome: Attributes) -> None:
        """Note that a request was answered, or that it never will be."""
        took = self._clock() - timed.noted
        measured = {name: value for name, value in outcome.items() if name in _MEASURED}
        attributes = self._bounded({**timed.attributes, **measured})
        self._record("mcp.server.operation.duration", timed.waited + took, attributes)
        if timed.is_sent:
            self._record("mcp.client.operation.duration", took, {**attributes, **timed.server})

    def see(self, session: Session, attributes: Attributes, server: ServerAt) -> None:
        """Note a message of a session. It ends when nothing refers to it any more."""
        if not self._records:  # nothing would take the sessions that have ended
            return
        now = self._clock()
        if (seen := self._sessions.get(session.serial)) is not None:
            seen.last = now
            return
        kept = {name: value for name, value in attributes.items() if name in _OF_SESSIONS}
        self._sessions[session.serial] = _Seen(kept, server, now, now)
        # Not recorded there: the garbage collector may call it while OpenTelemetry holds a lock.
        weakref.finalize(session, self._ended.append, session.serial).atexit = False

    def _record_ended(self) -> None:
        while self._ended:
            self._record_session(self._ended.popleft())

    def _record_session(self, serial: int) -> None:
        if (seen := self._sessions.pop(serial, None)) is not None:
            attributes, lasted = self._bounded(seen.attributes), seen.last - seen.first
            self._record("mcp.server.session.duration", lasted, attributes)
            self._record("mcp.client.session.duration", lasted, {**attributes, **seen.server})

    def _bounded(self, attributes: Attributes) -> Attributes:
        """Return attributes that make a bounded number of series."""
        return {name: self._names[name].bounded(value) for name, value in attributes.items()}

    def _record(self, name: str, seconds: float, attributes: ServerAt) -> None:
        if record := self._records.get(name):
            record(max(0.0, seconds), attributes)

    # Audit entries

    def show(self, entry: Entry) -> None:
        """Send an entry of the audit log, without arguments, results and secrets in URIs."""
        if self._emit is None:
            return
        from opentelemetry._logs import SeverityNumber

        kept = {name: value for name, value in entry.items() if name not in _NOT_SENT}
        if isinstance(uri := kept.get("uri"), str):
            kept["uri"] = shown_url(uri)
        known = {
            "event.name": f"{SCOPE}.audit",
            "mcp.method.name": None if "event" in entry else method_of(entry),
            "gen_ai.tool.name": entry.get("tool"),
            **{f"{SCOPE}.{name}": entry.get(name) for name in ("event", "verdict", "why", "rule")},
        }
        now = time.time_ns()
        self._emit(
            timestamp=now,
            observed_timestamp=now,
            severity_number=SeverityNumber.WARN if is_refused(entry) else SeverityNumber.INFO,
            severity_text="WARN" if is_refused(entry) else "INFO",
            body=render(kept).decode("utf-8", "replace"),
            attributes={name: str(value) for name, value in known.items() if value is not None},
        )
