"""Traces: what a real collector gets of calls, how their spans begin, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.collector import Collector, attributes, collector
from tests.filtered import call, filtered, legacy_upstream
from tests.raw_client import post, raw_client
from tests.raw_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    TIMEOUT,
    Peer,
    RawRequest,
    answer,
    chunk,
    sending,
)
from tests.shapes import talking

CLIENTS = f"00-{'a' * 32}-{'1' * 16}-01"


def asking(method: str, id: object, traceparent: str, **params: object) -> bytes:
    params["_meta"] = {"traceparent": traceparent}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


CALL = asking("tools/call", 7, CLIENTS, name="read_file")


@pytest.fixture
def sent_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector that the filter sends its spans to."""
    with collector() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


async def spans_of(sent_to: Collector, count: int) -> list[Span]:
    return await asyncio.to_thread(sent_to.wait_for, count)


# The spans of requests of both sides, in each transport, as a real collector gets them.

UPSTREAMS = f"00-{'b' * 32}-{'2' * 16}-01"

RESULT = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'

SAMPLED = b'{"jsonrpc":"2.0","id":"s-1","result":{"role":"assistant"}}'


SAMPLING = asking("sampling/createMessage", "s-1", UPSTREAMS, messages=[], maxTokens=9)


async def test_requests_of_both_sides_are_spans(sent_to: Collector, tmp_path: Path) -> None:
    """Each side reads our span in place of the other's; nothing else changes."""
    asked: list[bytes] = []
    is_sampled = asyncio.Event()

    async def respond(request: RawRequest, peer: Peer) -> None:
        """Ask the client something before the call is answered."""
        asked.append(request.body)
        if b"assistant" in request.body:
            is_sampled.set()
            await peer.say(answer(b"", status="202 Accepted"))
            return
        await peer.say(SSE_HEAD + chunk(b"data: " + SAMPLING + b"\n\n"))
        await is_sampled.wait()
        await peer.say(chunk(b"data: " + RESULT + b"\n\n") + LAST_CHUNK)

    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        await between.client.say(post(CALL))
        await between.client.head()
        heard = (await between.client.chunk()).removeprefix(b"data: ").strip()
        async with raw_client(between.port) as other:
            assert (await other.ask(post(SAMPLED))).status == 202
        assert RESULT in await between.client.chunk()
        by_method = {attributes(one)["mcp.method.name"]: one for one in await spans_of(sent_to, 2)}
    called, sampled = by_method["tools/call"], by_method["sampling/createMessage"]
    for span, context, side, id in (
        (called, CLIENTS, "client", "7"), (sampled, UPSTREAMS, "upstream", "s-1"),
    ):  # fmt: skip
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(context.split("-")[1:3])
        assert span.kind == Span.SPAN_KIND_SERVER
        assert span.status.code == Status.STATUS_CODE_UNSET
        said = attributes(span)
        assert said["network.protocol.name"] == "http"
        assert (said["mcp_tool_filter.from"], said["jsonrpc.request.id"]) == (side, id)
    assert asked[0] == CALL.replace(b"1" * 16, called.span_id.hex().encode())
    assert heard == SAMPLING.replace(b"2" * 16, sampled.span_id.hex().encode())


# Spans that no answer ends: the client has left, or the upstream has answered with an error.


@pytest.mark.parametrize("transport", ["HTTP", "legacy stream"])
async def test_a_client_that_hangs_up_ends_its_spans(
    transport: str, sent_to: Collector, tmp_path: Path
) -> None:
    heard = asyncio.Event()

    async def respond(request: RawRequest, peer: Peer) -> None:
        """Hear the call, and answer nothing."""
        if b"tools/call" in request.body:
            heard.set()
        await (legacy_upstream(request, peer) if transport == "legacy stream" else peer.left())

    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        async with talking(transport, between.port) as talk:
            saying = asyncio.ensure_future(talk.say(CALL))
            await asyncio.wait_for(heard.wait(), TIMEOUT)
            assert not sent_to.spans
            saying.cancel()
        (span,) = await spans_of(sent_to, 1)
    assert attributes(span)["error.type"] == "client_left"
    assert span.status.code == Status.STATUS_CODE_ERROR


async def test_an_http_error_ends_the_span(sent_to: Collector, tmp_path: Path) -> None:
    respond = sending(answer(b"no such session", status="404 Not Found", kind="text/plain"))
    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        await between.ask(CALL)
        (span,) = await spans_of(sent_to, 1)
    assert attributes(span)["error.type"] == "404"


# Which trace a span continues, and that nothing is traced unless the user wants it.

OTHERS = f"00-{'c' * 32}-{'3' * 16}-01"


@pytest.mark.parametrize(("parents", "trace"), [
    ([CLIENTS], "a" * 32), ([OTHERS], "c" * 32), ([CLIENTS, OTHERS], None), ([], None),
], ids=["one", "another", "two", "none"])  # fmt: skip
async def test_a_span_continues_the_trace_of_the_header_if_it_names_one(
    parents: list[str], trace: str | None, sent_to: Collector, tmp_path: Path
) -> None:
    """Two parents are ambiguous, so a new trace begins."""
    headers = "".join(f"traceparent: {one}\r\n" for one in parents).encode()
    async with filtered(tmp_path, otel=["true"]) as between:
        await between.ask(call("read_file"), headers)
        (span,) = await spans_of(sent_to, 1)
        (seen,) = between.upstream.asked
    if trace:
        assert span.trace_id.hex() == trace
        assert span.parent_span_id
    else:
        assert span.trace_id.hex() not in ("a" * 32, "c" * 32)
        assert not span.parent_span_id
    (ours,) = seen.all("traceparent")
    assert ours.split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]


async def test_nothing_is_traced_unless_it_is_on(sent_to: Collector, tmp_path: Path) -> None:
    async with filtered(tmp_path) as between:
        await between.ask(CALL, f"traceparent: {CLIENTS}\r\n".encode())
        (seen,) = between.upstream.asked
    assert (seen.body, seen.all("traceparent"), sent_to.spans) == (CALL, [CLIENTS], [])
