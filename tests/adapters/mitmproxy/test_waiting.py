"""Decisions that wait: only the message that waits is held, in each transport."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mitmproxy import ctx

from mcp_tool_filter.adapters.mitmproxy.flows import flow_of
from mcp_tool_filter.adapters.rules import carry_out
from mcp_tool_filter.policy.effects import Decision
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.verdict import Forward, Verdict
from mcp_tool_filter.protocol.messages import Single
from tests.adapters.mitmproxy.filtered import call, not_found
from tests.adapters.mitmproxy.gated import (
    DELETE,
    READ,
    DelaysSlow,
    echo,
    event,
    gated,
    hosts,
    news,
    result,
    slow,
)
from tests.mcp_upstream import tool_list
from tests.raw_client import get
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect


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
async def test_only_the_waiting_answer_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with gated(tmp_path, monkeypatch, echo, host) as on:
        monkeypatch.setattr(DelaysSlow, "decide", _only_results)
        waiting = asyncio.create_task(on.ask(call("read_file", '{"x":"slowly"}')))
        await on.gate.reached()
        assert (await on.ask(call("read_file"))).body == result("result")
        assert not waiting.done()
        on.gate.opened.set()
        assert (await waiting).body == result("slow result")


def _only_results(self: DelaysSlow, message: Single, situation: Situation) -> Decision[Verdict]:
    return self._wait() if b"slow result" in message.place.raw else Forward()


@hosts
async def test_a_batch_waits_for_all_its_members_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    batch = b"[%s,%s,%s]" % (slow("1"), call("delete_file", id="2"), slow("3"))

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(answer(b"[" + result("a", "1") + b"," + result("slow", "3") + b"]"))

    async with gated(tmp_path, monkeypatch, respond, host) as on:
        waiting = asyncio.create_task(on.ask(batch))
        await on.gate.reached(2)
        assert on.upstream.asked == []
        on.gate.opened.set()
        answered = (await waiting).body
        assert [one.body for one in on.upstream.asked] == [
            b"[" + slow("1") + b"," + slow("3") + b"]"
        ]
        assert answered == b"[%s,%s,%s]" % (
            result("a", "1"),
            result("slow", "3"),
            not_found("delete_file", "2"),
        )


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


async def test_a_list_that_waits_is_judged_by_the_patterns_in_force_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = tool_list([READ, DELETE], id="5").replace(b"{", b'{"slow":1,', 1)

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(event(slowly)) + LAST_CHUNK)

    async with gated(tmp_path, monkeypatch, respond) as on:
        client = await on.client()
        await client.say(get(path="/mcp"))
        await client.head()
        await on.gate.reached()
        ctx.options.update(deny=["^read_"])
        on.gate.opened.set()
        rest, _ = await client.rest_of_chunks()
        assert b'"tools"' in rest
        assert b'"read_file"' not in rest


async def test_a_delay_sleeps_for_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await asyncio.sleep(0)

    async with gated(tmp_path, monkeypatch, echo) as on:
        monkeypatch.setattr(carry_out, "sleep", nap)
        assert (await on.ask(slow("1"))).body == result("result")
        assert naps == [60.0]
