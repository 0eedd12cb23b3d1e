"""Send spans to a collector, and log a failure only once: OpenTelemetry would log each one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from mcp_tool_filter.errors import StartError

log = logging.getLogger(__name__)

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def otlp_exporter(environment: Mapping[str, str]) -> SpanExporter:
    """Return an exporter configured by the variables. Raises StartError if they cannot be used."""
    for name in _PROTOCOLS:
        if environment.get(name, "http/protobuf") not in ("http/protobuf", ""):
            why = "Only http/protobuf is supported; collectors accept it on port 4318"
            raise StartError(f"{name} cannot be {environment[name]}", why=why)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class HonestExporter(SpanExporter):
    """Reports the first failure and the first success after it."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._has_failed = False
        self._said = _LastWords()
        theirs = logging.getLogger("opentelemetry")
        theirs.propagate = False  # some lines have tracebacks, and all are repeated each time
        theirs.addHandler(self._said)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._said.text = str(error)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._has_failed:
                self._has_failed = False
                log.warning("Traces are sent again")
        elif not self._has_failed:
            self._has_failed = True
            log.warning("Cannot send traces; spans are lost until it works: %s", self._said.text)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _LastWords(logging.Handler):
    """Keeps the last log message as one line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "no reason given"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = next(iter(record.getMessage().splitlines()), "")[:300]
