"""Unfinished messages are held within a budget, however many clients there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.attacks.hosts import between, in_each_host
from tests.mcp_upstream import RESULT, McpUpstream, Respond, tool
from tests.proxy import RunningTool
from tests.raw_client import (
    MCP_HEADERS,
    Answer,
    RawClient,
    get,
    post,
    raw_client,
)
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk

pytestmark = pytest.mark.rest

MANY = 24
LONG = b"x" * 19_800_000
FOREIGN = b"Host: evil.example\r\nOrigin: http://evil.example\r\n"
FINE = post(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file"}}')
MOST = 330
"""Megabytes: the budget, as much again for what is on its way, and some for Python."""


def megabytes(it: RunningTool) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{it.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


@asynccontextmanager
async def budgeted(
    host: str, home: Path, respond: Respond | None = None, most: int = MOST
) -> AsyncIterator[tuple[RunningTool, McpUpstream]]:
    """Run a proxy that must not take more megabytes in the block, and serve others at its end."""
    async with between(host, home, respond=respond) as (upstream, it):
        before = megabytes(it)
        yield it, upstream
        async with raw_client(it.port) as other:
            assert (await other.ask(FINE)).body == RESULT
        assert megabytes(it) - before < most


async def begin(it: RunningTool, clients: AsyncExitStack, headers: bytes) -> RawClient:
    client = await clients.enter_async_context(raw_client(it.port))
    with suppress(ConnectionError):
        await client.say(post(LONG, headers=headers)[:-100])
    return client


async def first_answer(clients: list[RawClient]) -> Answer:
    """The largest bodies are refused first, and which are the largest is up to the kernel."""
    answers = [asyncio.ensure_future(client.answer()) for client in clients]
    try:
        for answer_to_one in asyncio.as_completed(answers):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                return await answer_to_one
        raise AssertionError("nobody got an answer")
    finally:
        for waiting in answers:
            waiting.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


@in_each_host
@pytest.mark.parametrize(
    ("headers", "most", "status"), [(FOREIGN, 60, 403), (MCP_HEADERS, MOST, 503)]
)
async def test_unfinished_bodies_are_held_within_the_budget(
    host: str, headers: bytes, most: int, status: int, tmp_path: Path
) -> None:
    async with AsyncExitStack() as clients, budgeted(host, tmp_path, most=most) as (it, _):
        begun = [await begin(it, clients, headers) for _ in range(MANY)]
        refused = await first_answer(begun)
        assert refused.status == status
        assert json.loads(refused.body)["error"]["message"]


@in_each_host
async def test_unread_answers_are_held_within_the_budget(host: str, tmp_path: Path) -> None:
    whole = answer(RESULT.replace(b"[]", b'["%s"]' % (b"x" * 9_000_000)))

    async def respond(request: RawRequest, peer: Peer) -> None:
        await peer.say(whole if "/long" in request.line else answer(RESULT))

    async with AsyncExitStack() as clients, budgeted(host, tmp_path, respond) as (it, upstream):
        for number in range(2 * MANY):
            client = await clients.enter_async_context(raw_client(it.port))
            await client.say(FINE.replace(b"/mcp", b"/long"))
            await upstream.raw.asked(number + 1)


@in_each_host
async def test_unfinished_events_are_held_within_the_budget(host: str, tmp_path: Path) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(SSE_HEAD)
            with suppress(ConnectionError):
                await peer.say(chunk(b"data: " + LONG))
            await peer.left()
        else:
            await peer.say(answer(RESULT))

    async with AsyncExitStack() as clients, budgeted(host, tmp_path, respond) as (it, upstream):
        for _ in range(MANY):
            client = await clients.enter_async_context(raw_client(it.port))
            await client.say(get())
            await client.head()
        for peer in upstream.raw.peers:
            with suppress(ConnectionError):
                await peer.writer.drain()


@in_each_host
async def test_a_client_that_does_not_read_is_not_answered_without_end(
    host: str, tmp_path: Path
) -> None:
    """Each of its few bytes would make a long list wait for it; when it reads, it gets them all."""
    many = 3000
    long = tool("read_file", f', "description":"{"d" * 100_000}"')
    version = b"MCP-Protocol-Version: 2025-06-18\r\n"
    ask = post(b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}', headers=MCP_HEADERS + version)

    async with between(host, tmp_path, tools=[long]) as (_, it), raw_client(it.port) as client:
        before = megabytes(it)
        asking = asyncio.create_task(client.say(ask * many))
        for _ in range(50):
            async with raw_client(it.port) as other:
                assert (await other.ask(FINE)).body == RESULT
        for _ in range(many):
            assert (await client.answer()).body.startswith(b'{"')
        await asking
        assert (await client.ask(FINE)).body == RESULT
        assert megabytes(it) - before < 100
