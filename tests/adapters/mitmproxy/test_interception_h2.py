"""Forward proxies and HTTP/2: clients get HTTP/1.1 if they can; what speaks only HTTP/2 passes."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.intercepting import call, not_found, tunnel
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import certified, proxy
from tests.raw_client import H2Client, raw_client, trusting

GRPC = b"\0\0\0\0\5hello"


async def script(stream: UpstreamStream) -> None:
    stream.head([(b":status", b"200"), (b"content-type", b"application/grpc")])
    stream.say(GRPC)
    stream.connection.h2.send_headers(stream.number, [(b"grpc-status", b"0")], end_stream=True)
    stream.connection.flush()


def offering(*protocols: str) -> ssl.SSLContext:
    tls = trusting()
    tls.set_alpn_protocols([*protocols])
    return tls


@asynccontextmanager
async def speaking_h2_alone(
    home: Path, *scripts: object, **options: Any
) -> AsyncIterator[tuple[H2Client, list[UpstreamStream]]]:
    seen: list[UpstreamStream] = []

    async def noting(stream: UpstreamStream) -> None:
        seen.append(stream)
        await script(stream)

    async with (
        h2_upstream(noting, tls=certified(home)) as upstream,
        proxy(
            ToolFilter(),
            *scripts,
            to=["regular"],
            home=home,
            deny=["^delete_"],
            host="dump",
            **options,
        ) as running,
        raw_client(running.port) as raw,
    ):
        await tunnel(raw, upstream.url.partition("//")[2], offering("h2"))
        client = H2Client(raw.reader, raw.writer)
        client.start()
        yield client, seen


async def test_grpc_passes_with_its_trailers(tmp_path: Path) -> None:
    async with speaking_h2_alone(tmp_path) as (client, _):
        kind = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        heard = await client.over(client.ask(body=GRPC, headers=kind, content_length=False))
        assert (heard.data, heard.trailers) == (GRPC, {b"grpc-status": b"0"})


class _Streams:
    """A script that streams all that it can."""

    def requestheaders(self, flow: HTTPFlow) -> None:
        flow.request.stream = True


@pytest.mark.parametrize(
    ("options", "scripts"),
    [({}, []), ({"stream_large_bodies": "1"}, []), ({}, [_Streams()])],
    ids=["", "streamed", "streamed by a script"],
)
@pytest.mark.parametrize("kind", [b"application/json", b"application/grpc"])
async def test_mcp_over_http2_alone_is_judged(
    kind: bytes, options: dict[str, str], scripts: list[object], tmp_path: Path
) -> None:
    async with speaking_h2_alone(tmp_path, *scripts, **options) as (client, seen):
        is_grpc = kind == b"application/grpc"
        headers = [(b"content-type", kind)]
        number = client.ask(body=call("delete_file"), headers=headers, content_length=not is_grpc)
        stream = client.streams[number]
        while not (stream.ended or stream.reset is not None or client.closed):
            await client.read()
        if not is_grpc:
            assert json.loads(bytes(stream.data)) == not_found("delete_file")
            assert not seen


async def test_a_client_that_knows_both_gets_http_1(tmp_path: Path) -> None:
    async with (
        proxy(ToolFilter(), to=["regular"], home=tmp_path, deny=["^x"]) as running,
        raw_client(running.port) as raw,
    ):
        await tunnel(raw, "localhost:1", offering("h2", "http/1.1"))
        assert raw.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
