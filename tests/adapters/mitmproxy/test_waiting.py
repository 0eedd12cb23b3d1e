"""Decisions that wait: until the test opens a gate, in a real mitmproxy."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mitmproxy import ctx

from mcp_tool_filter.adapters import background
from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.flows import flow_of
from mcp_tool_filter.policy.effects import Deciding, Decision, Delay, InOrder
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.verdict import Forward, Verdict
from mcp_tool_filter.protocol.messages import Single
from tests.adapters.mitmproxy.filtered import call, filtered, not_found
from tests.mcp_upstream import McpUpstream, Respond
from tests.raw_client import MCP_HEADERS, Answer, RawClient, get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk, until
from tests.websocket import accept, connect

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
        await until(lambda: self.waiting == number)


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
    monkeypatch.setattr(background, "sleep", gate.sleep)
    addon = ToolFilter(links=(DelaysSlow(),), report=lambda _text: None)
    async with (
        filtered(home, addon=addon, host=host, respond=respond) as it,
        AsyncExitStack() as stack,
    ):
        yield Gated(it.upstream, it.port, gate, addon, stack)
        gate.opened.set()


def slow(id: str) -> bytes:
    return call("read_file", '{"speed":"slow"}', id)


def result(text: str, id: str = "1") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{text}"}}}}'.encode()


def news(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","method":"notifications/{text}"}}'.encode()


async def echo(request: RawRequest, peer: Peer) -> None:
    """Answer with a slow result what asks for one."""
    speed = "slow result" if b"slowly" in request.body else "result"
    await peer.say(answer(result(speed)))


# Decisions that wait: only the message that waits is held, in each transport.


@hosts
async def test_only_the_waiting_request_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with gated(tmp_path, monkeypatch, echo, host) as on:
        waiting = asyncio.create_task(on.ask(slow("1")))
        await on.gate.reached()
        assert (await on.ask(call("read_file"))).body == result("result")
        assert (await on.ask(call("delete_file"))).body == not_found("delete_file")
        assert len(on.upstream.asked) == 1
        on.gate.opened.set()
        assert (await waiting).body == result("result")
        assert [one.body for one in on.upstream.asked] == [call("read_file"), slow("1")]


@hosts
async def test_a_message_that_waits_on_a_socket_holds_only_its_own_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    reached: list[bytes] = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        socket = await accept(peer.reader, peer.writer, request.head)
        await socket.say(news("hello"))
        while (heard := await socket.hear()) is not None:
            reached.append(heard)
            await socket.say(result(f"{len(reached)}"))

    async with gated(tmp_path, monkeypatch, respond, host) as on:
        client = await on.client()
        socket = await connect(client.reader, client.writer)
        await socket.say(slow("1"))
        await socket.say(call("read_file", id="2"))
        await socket.say(call("delete_file", id="3"))
        assert await socket.hear() == news("hello")
        await on.gate.reached()
        assert reached == []
        on.gate.opened.set()
        heard = {await socket.hear() for _ in range(3)}
        assert heard == {not_found("delete_file", "3"), result("1"), result("2")}
        assert reached == [slow("1"), call("read_file", id="2")]


async def test_a_call_that_waits_is_judged_by_the_patterns_in_force_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch, echo) as on:
        waiting = asyncio.create_task(on.ask(slow("1")))
        await on.gate.reached()
        ctx.options.update(deny=["^read_"])
        on.gate.opened.set()
        assert (await waiting).body == not_found("read_file")
        assert on.upstream.asked == []


async def test_a_request_is_sent_as_it_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever another script does to its flow while it waits."""
    async with gated(tmp_path, monkeypatch, echo) as on:
        waiting = asyncio.create_task(on.ask(slow("1")))
        await on.gate.reached()
        [site] = on.tool_filter.proxy.sites.values()
        [exchange] = site.exchanges
        flow = flow_of(exchange)
        assert flow
        flow.request.content = call("delete_file")
        on.gate.opened.set()
        assert (await waiting).body == result("result")
        assert [one.body for one in on.upstream.asked] == [slow("1")]


# An event that waits: what comes behind it, and what becomes of it when one side leaves.


async def slow_stream(_request: RawRequest, peer: Peer) -> None:
    events = (b"data: %b\n\n" % news(text) for text in ("slow", "behind"))
    await peer.say(SSE_HEAD + chunk(b"".join(events)))
    await peer.left()


async def waiting_client(on: Gated) -> RawClient:
    """Open a stream; wait until its event waits."""
    client = await on.client()
    await client.say(get(path="/mcp"))
    await client.head()
    await on.gate.reached()
    return client


async def test_a_client_that_leaves_while_its_event_waits_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch, slow_stream) as on:
        client = await waiting_client(on)
        client.writer.close()
        await on.gate.reached(0)
        assert len(on.tool_filter.proxy.effects.background) == 0
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, InOrder) and one.is_waiting]
    assert held == []


async def test_a_shutdown_cancels_decisions_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch, slow_stream) as on:
        client = await waiting_client(on)
        on.tool_filter.done()
        await on.gate.reached(0)
        client.writer.close()
