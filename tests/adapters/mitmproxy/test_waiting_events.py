"""An event that waits: what comes behind it, and what becomes of it when one side leaves."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from mcp_tool_filter.policy.effects import InOrder
from tests.adapters.mitmproxy.filtered import call, lost
from tests.adapters.mitmproxy.gated import Gated, event, gated, hosts, news, result
from tests.raw_client import MCP_HEADERS, RawClient, get, post
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, chunk


@hosts
async def test_a_waiting_event_holds_back_only_later_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(event(news("first"))))
        await peer.say(chunk(event(news("slow"))) + chunk(event(news("behind")) + b": ping\n\n"))
        await peer.say(chunk(event(result("last"))) + LAST_CHUNK)

    async with gated(tmp_path, monkeypatch, respond, host) as on:
        held, other = await on.client(), await on.client()
        for client in (held, other):
            await client.say(post(call("read_file"), headers=MCP_HEADERS))
            await client.head()
            assert await client.chunk() == event(news("first"))
        await on.gate.reached(2)
        on.gate.opened.set()
        for client in (held, other):
            rest, is_clean = await client.rest_of_chunks()
            assert is_clean
            assert rest == event(news("slow")) + event(news("behind")) + b": ping\n\n" + event(
                result("last")
            )
        assert on.tool_filter.proxy.effects.under_way == 0


@hosts
async def test_an_event_that_has_waited_is_sent_before_the_stream_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    peers: list[Peer] = []

    async def respond(_request: RawRequest, peer: Peer) -> None:
        peers.append(peer)
        await peer.say(SSE_HEAD + chunk(event(news("slow"))))
        await peer.left()

    async with gated(tmp_path, monkeypatch, respond, host) as on:
        client = await on.client()
        await client.say(get(path="/mcp"))
        await client.head()
        await on.gate.reached()
        on.gate.opened.set()
        assert await client.chunk() == event(news("slow"))
        await peers[0].say(chunk(event(news("later"))))
        assert await client.chunk() == event(news("later"))


async def test_an_event_that_waits_is_sent_after_the_upstream_has_hung_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upstream did answer; other requests that wait on the stream get an error."""

    async def respond(_request: RawRequest, peer: Peer) -> None:
        said = event(result("slow", id="1"))
        await peer.say(SSE_HEAD + chunk(said))
        peer.close()

    async with gated(tmp_path, monkeypatch, respond) as on:
        client = await on.client()
        batch = b"[" + call("read_file", id="1") + b"," + call("read_file", id="2") + b"]"
        await client.say(post(batch, headers=MCP_HEADERS))
        await client.head()
        await on.gate.reached()
        on.gate.opened.set()
        rest, _ = await client.rest_of_chunks()
        assert rest == event(result("slow", id="1")) + event(lost("2"))


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
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(event(news("slow")) + event(news("behind"))))
        await peer.left()

    async with gated(tmp_path, monkeypatch, respond) as on:
        client = await waiting_client(on)
        client.writer.close()
        await on.gate.reached(0)
        assert on.tool_filter.proxy.effects.under_way == 0
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, InOrder) and one.is_waiting]
    assert held == []


async def test_a_shutdown_cancels_decisions_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(event(news("slow"))))
        await peer.left()

    async with gated(tmp_path, monkeypatch, respond) as on:
        client = await waiting_client(on)
        on.tool_filter.done()
        await on.gate.reached(0)
        client.writer.close()
