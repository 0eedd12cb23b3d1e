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

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.messages.messages import Request, Response
from mcp_tool_filter.core.policy.situation import Client, Direction, Session, Via
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.rooms.audit import open_requests
from mcp_tool_filter.rooms.telemetry import tracing
from mcp_tool_filter.rooms.telemetry.otlp import Failures, HonestExporter, Otlp, is_wanted
from mcp_tool_filter.rooms.telemetry.tracing import Tracer, attributes_of, context_in, context_of
from tests.make import answering, asking, calling, judge_from_upstream, message, request
from tests.rows import each_row

# Which spans become of which messages, with an exporter that keeps them in memory
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traced:
    """One conversation, and the spans that became of it."""

    def __init__(self, via: Via = Via.HTTP) -> None:
        self.memory = InMemorySpanExporter()
        self.tracer = Tracer(Otlp(self.memory, environment={}))
        policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("read", "rm"))
        policy.observe = self.tracer.observe
        policy.propagate = self.tracer.propagate
        client = Client(via, Session(id="s-1", revision="2025-06-18"))
        self.conversation = Conversation(policy, client)

    def ask(self, id: object, name: str = "read", **meta: str) -> Verdict:
        judged = self.conversation.from_client(call(id, name, **meta))
        assert isinstance(judged, Judged)
        return judged.verdict

    def hear(self, raw: bytes) -> None:
        judge_from_upstream(self.conversation, raw)

    @property
    def spans(self) -> list[dict[str, object]]:
        """The attributes of each span, in the order of their ends."""
        self.tracer.close()
        return [dict(one.attributes or {}) for one in self.memory.get_finished_spans()]


def call(id: object, name: str = "read", **meta: str) -> bytes:
    params = {"name": name, "_meta": meta}
    return asking("tools/call", id=json.dumps(id), params=json.dumps(params))


CALL, ROOTS, FINE = calling("read"), asking("roots/list"), answering("{}")
TOOL_ERROR = answering('{"content":[],"isError":true}')
CANCELLED = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
TWICE = b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}'
REJECTED = b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"User rejected"}}'


@pytest.fixture
def traced() -> Iterator[Traced]:
    one = Traced()
    yield one
    one.tracer.close()


def test_a_span_has_the_ids_of_its_request_and_session(traced: Traced) -> None:
    traced.ask("a-1")
    traced.hear(answering('{"content":[],"isError":true}', id='"a-1"'))
    (span,) = traced.spans
    ids = [span[name] for name in ("error.type", "jsonrpc.request.id", "mcp.session.id")]
    assert ids == ["tool_error", "a-1", "s-1"]
    assert "rpc.response.status_code" not in span


C, U = "client", "upstream"


@pytest.mark.parametrize(
    ("talk", "spans"),
    [
        # the answer to a cancelled request never comes
        ([(C, CALL), (C, calling("read", id="2")), (C, CANCELLED), (U, answering("{}", id="2"))],
         [("tools/call", "cancelled"), ("tools/call", None)]),
        # an answer that cannot be read
        ([(C, CALL), (U, TWICE)], [("tools/call", "-32603")]),
        # the client answers requests of the upstream: sampling, elicitation, roots
        ([(U, asking("elicitation/create")), (C, REJECTED)], [("elicitation/create", "-1")]),
        # each side numbers its own requests
        ([(U, ROOTS), (C, CALL), (U, TOOL_ERROR), (C, FINE)],
         [("tools/call", "tool_error"), ("roots/list", None)]),
        # the upstream cancels its own request
        ([(C, CALL), (U, ROOTS), (U, CANCELLED), (U, FINE)],
         [("roots/list", "cancelled"), ("tools/call", None)]),
        # an id that is used again ends the span before
        ([(U, ROOTS), (U, asking("x")), (C, FINE)], [("roots/list", "no_answer"), ("x", None)]),
    ],
)  # fmt: skip
def test_a_span_ends_with_its_request(
    talk: list[tuple[str, bytes]], spans: list[tuple[str, str | None]], traced: Traced
) -> None:
    for side, raw in talk:
        (traced.hear if side == U else traced.conversation.from_client)(raw)
    ended = [(one["mcp.method.name"], one.get("error.type")) for one in traced.spans]
    assert ended == spans


def test_the_number_of_remembered_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MOST", 10)
    traced = Traced()
    for id in range(30):
        traced.ask(id)
    assert len(traced.tracer._open) == 10
    assert [one.get("error.type") for one in traced.spans] == ["no_answer"] * 30
    assert not traced.tracer._open._of_client


def test_spans_contain_no_arguments_and_no_results(traced: Traced) -> None:
    traced.conversation.from_client(calling("read", arguments='{"path":"s3cret"}'))
    traced.hear(answering('{"content":[{"type":"text","text":"s3cret"}]}'))
    assert "s3cret" not in str(traced.spans)


def test_each_request_of_a_batch_has_its_span(traced: Traced) -> None:
    one, two = call(1, traceparent=CONTEXT), call(2, traceparent=CONTEXT)
    judged = traced.conversation.from_client(b"[%s, %s,%s]" % (one, two, call(3, "rm")))
    assert isinstance(judged, Judged)
    assert isinstance(judged.verdict, Rewrite)
    parents = [each["params"]["_meta"]["traceparent"] for each in json.loads(judged.verdict.text)]
    traced.hear(FINE)
    traced.hear(answering("{}", id="2"))
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
        '{"traceparent":7}', '{"traceparent":""}', "[]", "null",
    ],
)  # fmt: skip
def test_a_context_that_is_invalid_or_written_oddly_stays(meta: str, traced: Traced) -> None:
    judged = traced.conversation.from_client(call(1).replace(b"{}", meta.encode()))
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
    context = context_in(request(text.encode()))
    assert context
    changed = tracing.replace_parents(text, [(context, "f" * 16)])
    assert changed == text.replace("00f067aa0ba902b7", "f" * 16).encode()


# What a span says of a request; arguments and results are never in it
REFUSED = Reply(b"", Reason(Why.BLOCKED, ("x",), rule="no-x"))


def asking_for(method: str, id: object = 1, **params: object) -> Request:
    return request(asking(method, id=json.dumps(id), params=json.dumps(params)))


def judged(message: Request | Response, verdict: Verdict, via: Via = Via.HTTP) -> Judged:
    client = Client(via, said_revision="2025-06-18")
    return Judged(Direction.FROM_CLIENT, message, verdict, client, take_snapshot([]))


@each_row(
    ("message", "verdict", "name"),
    [
        (asking_for("tools/call", name="read"), Forward(), "tools/call read"),
        (asking_for("prompts/get", name="greet"), Forward(), "prompts/get greet"),
        (asking_for("resources/read", uri="file:///a"), Forward(), "resources/read"),
        (asking_for("tools/call", name="anything"), REFUSED, "tools/call"),
        (asking_for("tools/call", name=""), Forward(), "tools/call"),
        (asking_for("x\\u001b[2J"), Forward(), r"x\x1b[2J"),
    ],
)
def test_a_span_name_has_few_values(message: Request, verdict: Verdict, name: str) -> None:
    """A URI, or what is refused, may be anything; a backend keeps each name as a series."""
    assert tracing.name_of(message, judged(message, verdict)) == name


@pytest.mark.parametrize(
    ("via", "transport", "protocol"),
    [
        (Via.HTTP, "tcp", "http"), (Via.LEGACY_SSE, "tcp", "http"), (Via.STDIO, "pipe", None),
    ],
)  # fmt: skip
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
@pytest.mark.parametrize(("via", "shares"), [(Via.HTTP, True), (Via.STDIO, False)])
def test_connections_of_one_session_share_their_ids(via: Via, shares: bool) -> None:
    """A client may answer with another POST of its session than the stream it was asked on; all of
    stdio is one client."""
    traced = Traced(via=via)
    session = traced.conversation.client.session if shares else None
    traced.hear(ROOTS)
    client, response = Client(via, session), message(FINE)
    traced.tracer.observe(
        Judged(Direction.FROM_CLIENT, response, Forward(), client, take_snapshot([]))
    )
    assert "error.type" not in traced.spans[0]


def test_a_client_that_leaves_takes_its_requests_of_both_directions(traced: Traced) -> None:
    traced.hear(ROOTS)
    traced.ask(1)
    traced.tracer.leave(Client(), "another")
    traced.tracer.leave(traced.conversation.client, "client_left")
    traced.hear(FINE)
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


def test_only_the_first_failure_and_success_are_logged(
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


def test_an_exporter_that_raises_fails_with_its_reason(
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
