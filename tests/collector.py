"""An OTLP collector: a small HTTP server that reads what it is sent, as protobuf."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.http_server import Handler, serving
from tests.waiting import eventually


@dataclass
class Collector:
    port: int
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    logs_said: list[ExportLogsServiceRequest] = field(default_factory=list)
    metrics_said: list[ExportMetricsServiceRequest] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What a filter needs to send here, and soon."""
        soon = ("BSP_SCHEDULE_DELAY", "BLRP_SCHEDULE_DELAY", "METRIC_EXPORT_INTERVAL")
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}
        return where | {f"OTEL_{name}": "100" for name in soon}

    @property
    def _resource_spans(self) -> list[ResourceSpans]:
        return [of_one for request in self.requests for of_one in request.resource_spans]

    @property
    def spans(self) -> list[Span]:
        scopes = (scope for of_one in self._resource_spans for scope in of_one.scope_spans)
        return [span for scope in scopes for span in scope.spans]

    @property
    def logs(self) -> list[LogRecord]:
        resources = (of_one for request in self.logs_said for of_one in request.resource_logs)
        scopes = (scope for of_one in resources for scope in of_one.scope_logs)
        return [record for scope in scopes for record in scope.log_records]

    @property
    def durations(self) -> dict[str, list[HistogramDataPoint]]:
        """The histograms of the last export, by their names."""
        return {
            metric.name: list(metric.histogram.data_points)
            for of_one in (self.metrics_said[-1].resource_metrics if self.metrics_said else ())
            for scope in of_one.scope_metrics
            for metric in scope.metrics
        }

    def until(self, is_enough: Callable[[Collector], bool]) -> None:
        eventually(lambda: is_enough(self))

    @property
    def services(self) -> set[str]:
        named = (one for each in self._resource_spans for one in each.resource.attributes)
        return {one.value.string_value for one in named if one.key == "service.name"}

    def wait_for(self, count: int) -> list[Span]:
        """Return the spans, oldest first, once so many are here."""
        self.until(lambda one: len(one.spans) >= count)
        return sorted(self.spans, key=lambda span: span.start_time_unix_nano)


def attributes(said: Span | LogRecord | HistogramDataPoint) -> dict[str, str]:
    return {one.key: one.value.string_value for one in said.attributes}


@contextmanager
def collector(status: int = 200, takes: str = "/v1/") -> Iterator[Collector]:
    """Run one that answers with this status, and with 404 on paths that do not begin so."""

    running = Collector(0)
    kinds: dict[str, tuple[list[Any], Any]] = {
        "/v1/logs": (running.logs_said, ExportLogsServiceRequest),
        "/v1/metrics": (running.metrics_said, ExportMetricsServiceRequest),
    }

    class Taking(Handler):
        protocol_version = "HTTP/1.0"  # nobody keeps a connection to it

        def do_POST(self) -> None:
            body = self.read_body()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            is_taken = status == 200 and self.path.startswith(takes)
            if is_taken:
                kept, kind = kinds.get(self.path, (running.requests, ExportTraceServiceRequest))
                kept.append(kind.FromString(body))
            self.say(status if is_taken or status != 200 else 404)

    with serving(Taking) as running.port:
        yield running
