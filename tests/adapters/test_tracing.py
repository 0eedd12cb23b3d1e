"""Which spans become of which messages, with an exporter that keeps them in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_tool_filter.adapters.watch import tracing
from mcp_tool_filter.adapters.watch.tracing import Tracer
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.exchange import Client, Session
from mcp_tool_filter.policy.verdict import Forward, Rewrite

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traced:
    """One conversation, and the spans that became of it."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self.memory = InMemorySpanExporter()
        self.tracer = Tracer(exporter or self.memory, environment={})
        policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
        policy.observe = self.tracer.observe
        policy.propagate = self.tracer.propagate
        client = Client(session=Session(id="s-1", revision="2025-06-18"))
        self.conversation = Conversation(policy, client)

    def ask(self, id: object, name: str = "read", **meta: str) -> Forward | Rewrite:
        judged = self.conversation.from_client(request(id, name, **meta))
        assert isinstance(judged, Judged)
        assert isinstance(judged.verdict, Forward | Rewrite)
        return judged.verdict

    def hear(self, id: object, **result: object) -> None:
        said = {"jsonrpc": "2.0", "id": id, "result": result}
        self.conversation.from_upstream(json.dumps(said).encode())

    @property
    def spans(self) -> list[dict[str, object]]:
        """The attributes of each span, in the order of their ends."""
        self.tracer.close()
        return [dict(one.attributes or {}) for one in self.memory.get_finished_spans()]


def request(id: object, name: str = "read", **meta: str) -> bytes:
    params = {"name": name, "_meta": meta}
    said = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    return json.dumps(said).encode()


@pytest.fixture
def traced() -> Iterator[Traced]:
    one = Traced()
    yield one
    one.tracer.close()


def test_a_tool_error_marks_the_span_as_failed(traced: Traced) -> None:
    traced.ask("a-1")
    traced.hear("a-1", content=[], isError=True)
    (span,) = traced.spans
    assert span["error.type"] == "tool_error"
    assert span["jsonrpc.request.id"] == "a-1"
    assert span["mcp.session.id"] == "s-1"
    assert "rpc.response.status_code" not in span


def test_a_good_answer_leaves_the_span_without_an_error(traced: Traced) -> None:
    traced.ask(1)
    traced.hear(1, content=[], isError=False)
    assert "error.type" not in traced.spans[0]


def test_a_cancelled_request_ends_its_span(traced: Traced) -> None:
    """Its answer never comes."""
    traced.ask(1)
    traced.ask(2)
    cancelled = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    traced.conversation.from_client(cancelled)
    traced.hear(2)
    first, second = traced.spans
    assert (first["jsonrpc.request.id"], first["error.type"]) == ("1", "cancelled")
    assert "error.type" not in second


def test_an_answer_that_cannot_be_read_ends_its_span(traced: Traced) -> None:
    traced.ask(1)
    traced.conversation.judge_from_upstream(b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}')
    assert traced.spans[0]["error.type"] == "-32603"


def test_requests_without_an_answer_end_with_the_process(traced: Traced) -> None:
    traced.ask(1)
    assert [span["error.type"] for span in traced.spans] == ["no_answer"]


def test_the_number_of_remembered_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_OPEN", 10)
    traced = Traced()
    for id in range(30):
        traced.ask(id)
    assert len(traced.tracer._open) == 10
    assert [one.get("error.type") for one in traced.spans] == ["no_answer"] * 30
    assert not traced.tracer._open._of_client


class TestRequestsOfTheUpstream:
    """Sampling, elicitation, roots: the client answers them."""

    def hear(self, traced: Traced, id: object = "s", method: str = "roots/list") -> None:
        said = {"jsonrpc": "2.0", "id": id, "method": method}
        traced.conversation.from_upstream(json.dumps(said).encode())

    def say(self, traced: Traced, **said: object) -> None:
        traced.conversation.from_client(json.dumps({"jsonrpc": "2.0", **said}).encode())

    def test_the_clients_answer_ends_the_span(self, traced: Traced) -> None:
        self.hear(traced)
        self.say(traced, id="s", result={"roots": []})
        (span,) = traced.spans
        assert span["mcp.method.name"] == "roots/list"
        assert span["mcp_tool_filter.from"] == "upstream"
        assert "error.type" not in span

    def test_a_clients_error_marks_the_span_as_failed(self, traced: Traced) -> None:
        self.hear(traced, method="elicitation/create")
        self.say(traced, id="s", error={"code": -1, "message": "User rejected"})
        assert traced.spans[0]["error.type"] == "-1"

    def test_ids_of_both_sides_are_not_confused(self, traced: Traced) -> None:
        """Each side numbers its own requests."""
        self.hear(traced, id=1)
        traced.ask(1)
        traced.hear(1, content=[], isError=True)
        self.say(traced, id=1, result={})
        called, listed = traced.spans
        assert (called["mcp.method.name"], called["error.type"]) == ("tools/call", "tool_error")
        assert listed["mcp.method.name"] == "roots/list"
        assert "error.type" not in listed

    def test_the_upstream_can_cancel_its_own_request(self, traced: Traced) -> None:
        traced.ask(1)
        self.hear(traced, id=1)
        traced.conversation.from_upstream(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
        )
        traced.hear(1)
        cancelled, called = traced.spans
        assert (cancelled["mcp.method.name"], cancelled["error.type"]) == (
            "roots/list",
            "cancelled",
        )
        assert "error.type" not in called

    def test_an_id_that_is_used_again_ends_the_span_before(self, traced: Traced) -> None:
        self.hear(traced)
        self.hear(traced, method="sampling/createMessage")
        self.say(traced, id="s", result={})
        first, second = traced.spans
        assert (first["mcp.method.name"], first["error.type"]) == ("roots/list", "no_answer")
        assert "error.type" not in second


def test_spans_contain_no_arguments_and_no_results(traced: Traced) -> None:
    said = request(1).replace(b'"_meta"', b'"arguments": {"path": "s3cret"}, "_meta"')
    traced.conversation.from_client(said)
    traced.hear(1, content=[{"type": "text", "text": "s3cret"}])
    assert "s3cret" not in str(traced.spans)


def test_each_request_of_a_batch_has_its_span(traced: Traced) -> None:
    one, two = request(1, traceparent=CONTEXT), request(2, traceparent=CONTEXT)
    judged = traced.conversation.from_client(b"[%s, %s,%s]" % (one, two, request(3, "rm")))
    assert isinstance(judged, Judged)
    assert isinstance(judged.verdict, Rewrite)
    parents = [each["params"]["_meta"]["traceparent"] for each in json.loads(judged.verdict.text)]
    traced.hear(1)
    traced.hear(2)
    assert len(traced.spans) == 3
    spans = traced.memory.get_finished_spans()
    ours = {f"{one.context.span_id:016x}" for one in spans if one.context and one.parent}
    assert {parent[36:52] for parent in parents} == ours
    assert len(ours) == 2


@pytest.mark.parametrize(
    "meta",
    [
        f'{{"traceparent":"{CONTEXT}","traceparent":"{CONTEXT}"}}',
        f'{{"traceparent":"\\u0030{CONTEXT[1:]}"}}',
        f'{{"traceparent":"00-{"0" * 32}-{"b" * 16}-01"}}',
        f'{{"traceparent":"ff{CONTEXT[2:]}"}}',
        f'{{"traceparent":"{CONTEXT}-more"}}',
        '{"traceparent":7}',
        '{"traceparent":""}',
        "[]",
        "null",
    ],
)
def test_a_context_that_is_invalid_or_written_oddly_stays_as_it_is(
    meta: str, traced: Traced
) -> None:
    said = request(1).replace(b"{}", meta.encode())
    judged = traced.conversation.from_client(said)
    assert isinstance(judged, Judged)
    assert judged.verdict == Forward()


class Raising(SpanExporter):
    def export(self, _spans: object) -> SpanExportResult:
        raise RuntimeError("no collector")


def test_an_exporter_that_raises_changes_no_message() -> None:
    traced = Traced(Raising())
    for id in range(3):
        assert traced.ask(id) == Forward()
        traced.hear(id)
    traced.tracer.close()


def test_a_tracer_that_raises_changes_no_message(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tracing, "name_of", fail)
    for id in range(3):
        assert traced.ask(id, traceparent=CONTEXT) == Forward()
    assert caplog.text.count("cannot trace a message") == 1


def test_spans_beyond_the_queue_are_dropped_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    sent: list[ReadableSpan] = []

    class Slow(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            assert isinstance(spans, tuple | list)
            sent.extend(spans)
            return SpanExportResult.SUCCESS

    traced = Traced(Slow())
    for id in range(1000):
        traced.ask(id)
        traced.hear(id)
    traced.tracer.close()
    assert sent
