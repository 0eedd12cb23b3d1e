"""Spans: their contexts, their attributes, when they end, and how they are sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_tool_filter.adapters.watch import tracing
from mcp_tool_filter.adapters.watch.otlp import Failures, HonestExporter, Otlp, is_wanted
from mcp_tool_filter.adapters.watch.tracing import (
    Tracer,
    attributes_of,
    context_in,
    context_of,
    name_of,
    replace_parents,
)
from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import example
from mcp_tool_filter.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers import open_requests
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.exchange import Client, Direction, Session, Via
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Request, Response, parse_message

# Which spans become of which messages, with an exporter that keeps them in memory
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traced:
    """One conversation, and the spans that became of it."""

    def __init__(self, exporter: SpanExporter | None = None, via: Via = Via.HTTP) -> None:
        self.memory = InMemorySpanExporter()
        self.tracer = Tracer(Otlp(exporter or self.memory, environment={}))
        policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
        policy.observe = self.tracer.observe
        policy.propagate = self.tracer.propagate
        client = Client(via, Session(id="s-1", revision="2025-06-18"))
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


def test_the_number_of_remembered_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MOST", 10)
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


def test_a_tracer_that_raises_changes_no_message(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tracing, "name_of", fail)
    for id in range(3):
        assert traced.ask(id, traceparent=CONTEXT) == Forward()
    assert caplog.text.count("cannot trace a message") == 1


# The trace context of a message: what counts as one, and what of it changes


def test_a_later_version_may_say_more_and_a_long_state_is_left_out() -> None:
    later = context_of("01" + CONTEXT[2:] + "-more", "a=" + "b" * 600)
    assert later
    assert (later.trace_id, later.tracestate) == ("4bf92f3577b34da6a3ce929d0e0e4736", "")
    assert context_of(CONTEXT, "a=b") == context_of(CONTEXT, "a=b")


@given(space=st.text(" \t\r\n", max_size=3), name=st.text(max_size=20))
def test_only_the_parents_id_changes(space: str, name: str) -> None:
    meta = f'{{{space}"traceparent"{space}:{space}"{CONTEXT}"}}'
    params = f'{{"x":{json.dumps(name, ensure_ascii=False)},"_meta":{meta}{space}}}'
    text = f'{space}{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}{space}'
    message = parse_message(text.encode())
    assert isinstance(message, Request)
    context = context_in(message)
    assert context
    changed = replace_parents(text, [(context, "f" * 16)])
    assert changed == text.replace("00f067aa0ba902b7", "f" * 16).encode()


# What a span says of a request; arguments and results are never in it
REFUSED = Reply(b"", Reason(Why.BLOCKED, ("x",), rule="no-x"))


def asking_for(method: str, id: object = 1, **params: object) -> Request:
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    message = parse_message(json.dumps(said).encode())
    assert isinstance(message, Request)
    return message


def judged(message: Request | Response, verdict: Verdict, via: Via = Via.HTTP) -> Judged:
    client = Client(via, said_revision="2025-06-18")
    return Judged(Direction.FROM_CLIENT, message, verdict, client, take_snapshot([]))


@pytest.mark.parametrize(
    ("message", "verdict", "name"),
    [
        (asking_for("tools/call", name="read"), Forward(), "tools/call read"),
        (asking_for("prompts/get", name="greet"), Forward(), "prompts/get greet"),
        (asking_for("resources/read", uri="file:///a"), Forward(), "resources/read"),
        (asking_for("tools/call", name="anything"), REFUSED, "tools/call"),
        (asking_for("tools/call", name=""), Forward(), "tools/call"),
        (asking_for("x\x1b[2J"), Forward(), r"x\x1b[2J"),
    ],
)
def test_a_span_name_has_few_values(message: Request, verdict: Verdict, name: str) -> None:
    """A URI, or what is refused, may be anything; a backend keeps each name as a series."""
    assert name_of(message, judged(message, verdict)) == name


@pytest.mark.parametrize(
    ("via", "transport", "protocol"),
    [
        (Via.HTTP, "tcp", "http"),
        (Via.LEGACY_SSE, "tcp", "http"),
        (Via.WEBSOCKET, "tcp", "websocket"),
        (Via.STDIO, "pipe", None),
    ],
)
def test_each_transport_has_its_attributes(via: Via, transport: str, protocol: str | None) -> None:
    message = asking_for("ping")
    said = attributes_of(message, judged(message, Forward(), via))
    assert (said["network.transport"], said.get("network.protocol.name")) == (transport, protocol)


def test_a_long_text_is_cut_and_a_refusal_has_its_rule() -> None:
    message = asking_for("resources/read", id="i" * 900, uri="file:///" + "a" * 900)
    said = attributes_of(message, judged(message, REFUSED))
    assert max(map(len, said.values())) <= 256
    assert said["mcp_tool_filter.rule"] == "no-x"


# Which of the open spans an answer, a cancellation or the end of a connection takes


def roots_asked(traced: Traced) -> None:
    traced.conversation.from_upstream(b'{"jsonrpc":"2.0","id":"s","method":"roots/list"}')


@pytest.mark.parametrize(("via", "shares"), [(Via.HTTP, True), (Via.STDIO, False)])
def test_connections_of_one_session_share_their_ids(via: Via, shares: bool) -> None:
    """A client may answer with another POST of its session than the stream it was asked on; all of
    stdio is one client."""
    traced = Traced(via=via)
    session = traced.conversation.client.session if shares else None
    roots_asked(traced)
    response = parse_message(b'{"jsonrpc":"2.0","id":"s","result":{}}')
    client = Client(via, session)
    traced.tracer.observe(
        Judged(Direction.FROM_CLIENT, response, Forward(), client, take_snapshot([]))
    )
    assert "error.type" not in traced.spans[0]


def test_a_client_that_leaves_takes_its_requests_of_both_directions(traced: Traced) -> None:
    roots_asked(traced)
    traced.ask(1)
    traced.tracer.leave(Client(), "another")
    traced.tracer.leave(traced.conversation.client, "client_left")
    traced.hear(1)
    assert [one["error.type"] for one in traced.spans] == ["client_left", "client_left"]


# Sending spans to a real collector, and what is logged when that fails
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


def test_only_the_first_failure_and_the_first_success_after_it_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many kinds of signals fail."""
    failures = Failures()
    exporter = HonestExporter(Scripted(OK, FAILED, FAILED, OK, OK), failures)
    assert [exporter.export([]) for _ in range(5)] == [OK, FAILED, FAILED, OK, OK]
    for kind, has_failed in (("a", True), ("b", True), ("a", False), ("b", False)):
        failures.note(kind, has_failed=has_failed)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "Cannot send traces, logs or metrics; they are lost until it works",
        "Traces, logs and metrics are sent again",
    ] * 2


def test_an_exporter_that_raises_is_a_failure_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = HonestExporter(Scripted(RuntimeError("no collector")), Failures())
    with pytest.raises(RuntimeError):
        exporter.export([])
    assert [one.partition("until it works: ")[2] for one in caplog.messages] == ["no collector"]


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]
)
def test_another_protocol_is_refused(name: str) -> None:
    with pytest.raises(StartError, match=f"{name} cannot be grpc"):
        is_wanted("TRACES", {name: "grpc"})
    assert is_wanted("TRACES", {name: "http/protobuf"})
    assert is_wanted("TRACES", {name: ""})


def test_sessions_are_not_remembered_if_their_metrics_are_switched_off() -> None:
    """Nothing would ever take those that have ended."""
    off = {f"OTEL_{kind}_EXPORTER": "none" for kind in ("TRACES", "METRICS", "LOGS")}
    otlp = Otlp(environment=off)
    for number in range(3):
        otlp.see(Session(id=f"s-{number}", revision="2025-06-18"), {}, {})
    assert not otlp._sessions
    assert not otlp._ended
