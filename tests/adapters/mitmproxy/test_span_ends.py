"""Spans that no answer ends: the client has left, or the upstream has answered with an error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.adapters.mitmproxy.filtered import filtered, legacy_upstream
from tests.adapters.mitmproxy.traced import CALL, spans_of
from tests.collector import Collector, attributes
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer
from tests.websocket import accept, connect


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
