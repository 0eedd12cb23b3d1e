"""One session in front of a real HTTP server; ``tests/cli/commands/test_pipe.py`` has more."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.adapters.stdio.pipe import Pipe, StreamableUpstream
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.protocol.limits import Limits
from tests.make import asking, calling
from tests.session_upstream import SessionUpstream, session_upstream

META = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientCapabilities":{}}'
)


class Client:
    """What stands at the other ends of stdin and stdout."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin = os.fdopen(stdin, "wb", buffering=0)
        self._stdout = os.fdopen(stdout, "rb")

    async def asks(self, line: bytes) -> Any:
        self.says(line)
        return await self.hears()

    def says(self, line: bytes) -> None:
        self._stdin.write(line + b"\n")

    async def hears(self) -> Any:
        return json.loads(await asyncio.to_thread(self._stdout.readline))

    def leaves(self) -> None:
        self._stdin.close()

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()


@asynccontextmanager
async def piped(
    upstream: SessionUpstream, said: list[str], **settings: Any
) -> AsyncIterator[tuple[Client, asyncio.Task[int]]]:
    (from_client, to_us), (from_us, to_client) = os.pipe(), os.pipe()
    client = Client(to_us, from_us)
    judge = LineJudge(
        parse_config(deny=["^delete_"]), observe=lambda _: None, on_listed=lambda _: None
    )
    limits = Limits()
    pipe = Pipe(
        judge, say=said.append, limits=limits, stdin=from_client, stdout=to_client, **settings
    )
    http = HttpClient(parse_origin(upstream.url.removesuffix("/mcp")), resends=False)
    pipe.upstream = StreamableUpstream(http, "/mcp", pipe, limits)
    running = asyncio.create_task(pipe.run())
    try:
        yield client, running
    finally:
        client.close()
        await running
        for thread in threading.enumerate():  # else it could read what has this number next
            if "(_read_client)" in thread.name:
                await asyncio.to_thread(thread.join)
        await http.close()
        os.close(from_client)
        os.close(to_client)


async def test_a_subscription_does_not_keep_the_session_open() -> None:
    """Else this would take an hour."""
    with session_upstream() as upstream:
        async with piped(upstream, [], last_answers=3600) as (client, running):
            opened = await client.asks(asking("subscriptions/listen", params=f"{{{META}}}"))
            assert opened["method"] == "notifications/subscriptions/ack"
            client.leaves()
            assert await running == 0


async def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    """A client whose stdin has ended still reads; a subscription has no answer to wait for."""
    with session_upstream() as upstream:
        async with piped(upstream, [], last_answers=0.1) as (client, running):
            await client.asks(asking("subscriptions/listen", id='"s"', params=f"{{{META}}}"))
            client.says(calling("slow", id="7"))
            client.leaves()
            assert await client.hears() == {
                "jsonrpc": "2.0",
                "id": 7,
                "error": {"code": -32000, "message": "Upstream connection lost"},
            }
            assert await running == 0


async def test_a_client_that_reads_nothing_does_not_keep_the_session_open() -> None:
    with session_upstream() as upstream:
        async with piped(upstream, [], last_answers=0.1, goodbye=0.1) as (client, running):
            client.says(calling("slow", id="7"))
            client.says(calling("big", id="8", arguments='{"bytes":1000000}'))
            client.leaves()
            assert await running == 0


async def test_an_internal_error_ends_the_session_and_nothing_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    with session_upstream() as upstream:
        async with piped(upstream, said) as (client, running):
            monkeypatch.setattr(
                "mcp_tool_filter.adapters.stdio.pipe.mirrored_headers", lambda *_: 1 / 0
            )
            client.says(calling("read_file"))
            assert await running == 1
        assert not upstream.calls()
    [what] = said
    assert what.startswith("Error: Internal error: ZeroDivisionError")
    assert what.endswith("\nShutting down proxy")
