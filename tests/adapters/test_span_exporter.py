"""Sending spans to a real collector, and what is logged when that fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from mcp_tool_filter.adapters.watch.tracing import HonestExporter, otlp_exporter
from mcp_tool_filter.errors import StartError
from tests.collector import collector

OK, FAILED = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


class Scripted(SpanExporter):
    """Answers with these results, one after the other; raises those that are exceptions."""

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self._results = list(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._results.pop(0)
        if isinstance(result, Exception):
            logging.getLogger("opentelemetry.exporter").error("Failed to export\nTraceback")
            raise result
        return result


def sent(exporter: HonestExporter, times: int) -> list[SpanExportResult]:
    return [exporter.export([]) for _ in range(times)]


def test_only_the_first_failure_and_the_first_success_after_it_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = HonestExporter(Scripted(OK, FAILED, FAILED, OK, OK, FAILED))
    assert sent(exporter, 6) == [OK, FAILED, FAILED, OK, OK, FAILED]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "Cannot send traces; spans are lost until it works",
        "Traces are sent again",
        "Cannot send traces; spans are lost until it works",
    ]


def test_an_exporter_that_raises_is_a_failure_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = HonestExporter(Scripted(RuntimeError("no collector"), RuntimeError("again")))
    assert sent(exporter, 2) == [FAILED, FAILED]
    (message,) = caplog.messages
    assert message.endswith("until it works: no collector")


def test_a_collector_that_refuses_is_reported_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry gives the reason only in its own log."""
    provider = TracerProvider()
    with collector(status=403) as refusing:
        for name, value in refusing.environment.items():
            monkeypatch.setenv(name, value)
        exporter = HonestExporter(otlp_exporter({}))
        with provider.get_tracer("t").start_as_current_span("s") as span:
            pass
        assert isinstance(span, ReadableSpan)
        assert exporter.export([span]) is FAILED
        exporter.shutdown()
    (record,) = caplog.records
    assert "403" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]
)
def test_another_protocol_is_refused(name: str) -> None:
    with pytest.raises(StartError, match=f"{name} cannot be grpc"):
        otlp_exporter({name: "grpc"})
    otlp_exporter({name: "http/protobuf"}).shutdown()
    otlp_exporter({name: ""}).shutdown()
