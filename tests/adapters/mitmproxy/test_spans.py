"""Traces: what a real collector gets of calls, and how their spans end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.adapters.mitmproxy.filtered import filtered, legacy_upstream
from tests.collector import Collector, attributes
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer
from tests.websocket import accept, connect

CLIENTS = f"00-{'a' * 32}-{'1' * 16}-01"


def call(**meta: str) -> bytes:
    params = {"name": "read_file", "_meta": meta}
    said = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return json.dumps(said).encode()


CALL = call(traceparent=CLIENTS)


async def spans_of(sent_to: Collector, count: int) -> list[Span]:
    return await asyncio.to_thread(sent_to.wait_for, count)


# The spans of requests of both sides, in each transport, as a real collector gets them.

UPSTREAMS = f"00-{'b' * 32}-{'2' * 16}-01"

RESULT = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'

SAMPLED = b'{"jsonrpc":"2.0","id":"s-1","result":{"role":"assistant"}}'


def sampling(**meta: str) -> bytes:
    params = {"messages": [], "maxTokens": 9, "_meta": meta}
    said = {"jsonrpc": "2.0", "id": "s-1", "method": "sampling/createMessage", "params": params}
    return json.dumps(said).encode()


SAMPLING = sampling(traceparent=UPSTREAMS)


async def test_requests_of_both_sides_are_spans(sent_to: Collector, tmp_path: Path) -> None:
    """Each side reads our span in place of the other's; nothing else changes."""
    asked: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        """Ask the client something before the call is answered."""
        there = await accept(peer.reader, peer.writer, request.head)
        while (said := await there.hear()) is not None:
            asked.append(said)
            await there.say(RESULT if b"assistant" in said else SAMPLING)

    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        here = await connect(between.client.reader, between.client.writer)
        await here.say(CALL)
        heard = await here.hear()
        await here.say(SAMPLED)
        assert await here.hear() == RESULT
        by_method = {attributes(one)["mcp.method.name"]: one for one in await spans_of(sent_to, 2)}
    called, sampled = by_method["tools/call"], by_method["sampling/createMessage"]
    for span, context in ((called, CLIENTS), (sampled, UPSTREAMS)):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(context.split("-")[1:3])
        assert span.kind == Span.SPAN_KIND_SERVER
        assert span.status.code == Status.STATUS_CODE_UNSET
        assert attributes(span)["network.protocol.name"] == "websocket"
    assert attributes(called)["mcp_tool_filter.from"] == "client"
    said = attributes(sampled)
    assert said["mcp_tool_filter.from"] == "upstream"
    assert said["jsonrpc.request.id"] == "s-1"
    assert asked[0] == CALL.replace(b"1" * 16, called.span_id.hex().encode())
    assert heard == SAMPLING.replace(b"2" * 16, sampled.span_id.hex().encode())


# Spans that no answer ends: the client has left, or the upstream has answered with an error.


async def mute(_request: RawRequest, peer: Peer) -> None:
    await peer.left()


async def mute_socket(request: RawRequest, peer: Peer) -> None:
    socket = await accept(peer.reader, peer.writer, request.head)
    while await socket.hear() is not None:
        pass


@pytest.mark.parametrize("transport", ["HTTP", "websocket", "legacy stream"])
async def test_a_client_that_hangs_up_ends_its_spans(
    transport: str, sent_to: Collector, tmp_path: Path
) -> None:
    respond = {"HTTP": mute, "websocket": mute_socket, "legacy stream": legacy_upstream}[transport]
    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        match transport:
            case "HTTP":
                await between.client.say(post(CALL, headers=MCP_HEADERS))
            case "websocket":
                socket = await connect(between.client.reader, between.client.writer)
                await socket.say(CALL)
            case _:
                await between.client.say(get(path="/sse"))
                await between.client.head()
                await between.client.chunk()
                async with raw_client(between.port) as poster:
                    await poster.ask(post(CALL, path="/messages?session=1", headers=MCP_HEADERS))
        while not between.upstream.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not sent_to.spans
        between.client.abort()
        (span,) = await spans_of(sent_to, 1)
    assert attributes(span)["error.type"] == "client_left"
    assert span.status.code == Status.STATUS_CODE_ERROR


async def test_an_http_error_ends_the_span(sent_to: Collector, tmp_path: Path) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(answer(b"no such session", status="404 Not Found", kind="text/plain"))

    async with filtered(tmp_path, respond=respond, otel=["true"]) as between:
        await between.client.ask(post(CALL, headers=MCP_HEADERS))
        (span,) = await spans_of(sent_to, 1)
    assert attributes(span)["error.type"] == "404"
