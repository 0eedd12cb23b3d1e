"""Decisions that wait until the test opens a gate, in a real mitmproxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.rules import carry_out
from mcp_tool_filter.policy.effects import Deciding, Decision, Delay
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.verdict import Forward, Verdict
from mcp_tool_filter.protocol.messages import Single
from tests.adapters.mitmproxy.filtered import ENDPOINT, call
from tests.mcp_upstream import McpUpstream, Respond, mcp_upstream, tool
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, Answer, RawClient, post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer

READ, DELETE = tool("read_file"), tool("delete_file")

TIMEOUT = 20.0

hosts = pytest.mark.parametrize("host", ["plain", "lean", "dump"])


class DelaysSlow:
    """A link that delays whatever has the word "slow" in it."""

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]:
        return self._wait() if b"slow" in message.place.raw else Forward()

    def _wait(self) -> Deciding[Verdict]:
        yield Delay(60.0)
        return Forward()


@dataclass
class Gate:
    """What the delays wait for."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 60.0
        self.waiting += 1
        try:
            await self.opened.wait()
        finally:
            self.waiting -= 1

    async def reached(self, number: int = 1) -> None:
        """Wait until so many delays wait."""
        async with asyncio.timeout(TIMEOUT):
            while self.waiting != number:
                await asyncio.sleep(0.002)


@dataclass
class Gated:
    upstream: McpUpstream
    port: int
    gate: Gate
    tool_filter: ToolFilter
    _stack: AsyncExitStack

    async def client(self) -> RawClient:
        return await self._stack.enter_async_context(raw_client(self.port))

    async def ask(self, body: bytes, path: str = "/mcp") -> Answer:
        client = await self.client()
        return await client.ask(post(body, path=path, headers=MCP_HEADERS))


@asynccontextmanager
async def gated(
    home: Path, monkeypatch: pytest.MonkeyPatch, respond: Respond, host: str = "plain"
) -> AsyncIterator[Gated]:
    gate = Gate()
    monkeypatch.setattr(carry_out, "sleep", gate.sleep)
    tool_filter = ToolFilter(links=(DelaysSlow(),), report=lambda _text: None)
    options = {"deny": ["^delete_"], "endpoint": ENDPOINT}
    async with (
        AsyncExitStack() as stack,
        mcp_upstream(tools=[READ, DELETE], respond=respond) as upstream,
        proxy(tool_filter, to=upstream.url, home=home, host=host, **options) as running,
        stack,
    ):
        yield Gated(upstream, running.port, gate, tool_filter, stack)
        gate.opened.set()


def slow(id: str) -> bytes:
    return call("read_file", '{"speed":"slow"}', id)


def result(text: str, id: str = "1") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{text}"}}}}'.encode()


def news(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","method":"notifications/{text}"}}'.encode()


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def echo(request: RawRequest, peer: Peer) -> None:
    """Answer with a slow result what asks for one."""
    speed = "slow result" if b"slowly" in request.body else "result"
    await peer.say(answer(result(speed)))
