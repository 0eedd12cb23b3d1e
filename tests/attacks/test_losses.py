"""One client, or one bad moment of the upstream, does not end the process.

Only a fresh connection that cannot be made means that the upstream is lost.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from tests.attacks.hosts import between, in_each_host
from tests.mcp_upstream import RESULT, McpUpstream
from tests.proxy import RunningTool
from tests.raw_client import Answer, RawClient, get, post, raw_client
from tests.raw_upstream import SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk

CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s"}}'
FINE = CALL % (1, b"read_file")
LOST = {"code": -32000, "message": "Upstream connection lost"}


async def resets(_request: RawRequest, peer: Peer) -> None:
    peer.reset()
    await peer.left()


async def hangs_up(_request: RawRequest, peer: Peer) -> None:
    peer.close()
    await peer.left()


async def stops_in_the_head(_request: RawRequest, peer: Peer) -> None:
    await peer.say(answer(RESULT)[:20])
    peer.close()


async def stops_in_the_body(_request: RawRequest, peer: Peer) -> None:
    await peer.say(answer(RESULT)[:-5])
    peer.reset()


async def stops_in_an_event(_request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(b"data: " + RESULT[:-5]))
    peer.reset()


BAD_MOMENTS = [resets, hangs_up, stops_in_the_head, stops_in_the_body, stops_in_an_event]


async def still_serves(it: RunningTool) -> None:
    """Ask as another client does, twice: the first answer may have been on its way."""
    for _ in range(2):
        async with raw_client(it.port) as client:
            assert (await client.ask(post(FINE))).body == RESULT
        await asyncio.sleep(0.1)
    assert it.process.returncode is None


def error_in(answered: Answer) -> tuple[object, object]:
    """The id and the error of an answer, JSON or an event."""
    message = json.loads(answered.body.removeprefix(b"data: "))
    return message["id"], message["error"]


@in_each_host
async def test_a_request_that_the_upstream_breaks_off_fails_alone(
    host: str, tmp_path: Path
) -> None:
    async def respond(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("POST /mcp"):
            await peer.say(answer(RESULT))
        else:
            await BAD_MOMENTS[int(request.line[len("POST /")])](request, peer)

    async with between(host, tmp_path, respond=respond) as (_, it):
        for number, moment in enumerate(BAD_MOMENTS):
            async with raw_client(it.port) as client:
                body = CALL % (40 + number, b"read_file")
                await client.say(post(body, path=f"/{number}"))
                got = await client.answer()
                got = Answer(got.head, got.body.partition(b"\n\n")[2] or got.body)
                assert error_in(got) == (40 + number, LOST), moment
                assert (await client.ask(post(FINE))).body == RESULT, moment
        await still_serves(it)


@in_each_host
@pytest.mark.parametrize("who", ["upstream", "client"])
async def test_a_long_post_that_is_broken_off_fails_alone(
    host: str, who: str, tmp_path: Path
) -> None:
    padding = b" " * 9_000_000
    body = (CALL % (7, b"read_file"))[:-1] + padding + b"}"

    async with between(host, tmp_path) as (upstream, it):
        async with raw_client(it.port) as client:
            if who == "client":
                await client.say(post(body)[:5_000_000])
                client.abort()
            else:
                await _break_off(upstream, client, post(body))
        await still_serves(it)


async def _break_off(upstream: McpUpstream, client: RawClient, request: bytes) -> None:
    """Let the upstream hang up in the middle of a request."""
    before = len(upstream.raw.peers)
    asking = asyncio.create_task(client.say(request))
    while len(upstream.raw.peers) == before:
        await asyncio.sleep(0)
    upstream.raw.peers[-1].reset()
    await asking
    with suppress(ConnectionError):
        assert error_in(await client.answer()) == (7, LOST)


@in_each_host
async def test_idle_clients_leave_descriptors_for_the_others(host: str, tmp_path: Path) -> None:
    """A crowd that only connects keeps nobody out for long, and no client that was served."""

    async with between(host, tmp_path, descriptors=256) as (_, it):
        async with AsyncExitStack() as idle, raw_client(it.port) as early:
            assert (await early.ask(post(FINE))).body == RESULT
            for _ in range(256):
                await idle.enter_async_context(raw_client(it.port))
            async with asyncio.timeout(TIMEOUT):
                while not await _is_served(it.port):
                    await asyncio.sleep(0.1)
            assert (await early.ask(post(FINE))).body == RESULT
        await still_serves(it)
        assert "Traceback" not in it.stdout + it.stderr


async def _is_served(port: int) -> bool:
    async with raw_client(port) as late:
        got = await late.ask(post(FINE))
        if got.status == 200:
            return got.body == RESULT
        assert (got.status, got.all("connection")) == (503, ["close"])
        assert json.loads(got.body)["error"]["code"] == -32000
        assert await late.rest() == b""
        return False


@in_each_host
async def test_a_cap_on_clients_can_be_chosen(host: str, tmp_path: Path) -> None:
    async with between(host, tmp_path, "max_clients=1") as (_, it), raw_client(it.port) as one:
        assert (await one.ask(post(FINE))).body == RESULT
        async with raw_client(it.port) as other:
            long = post(b"x" * 20_000_000)
            assert (await other.ask(long)).status == 503
        one.close()
        status = 503
        while status == 503:  # until the proxy has noticed
            async with raw_client(it.port) as other:
                status = (await other.ask(post(FINE))).status


@in_each_host
async def test_a_lost_upstream_ends_the_process_even_without_descriptors(
    host: str, tmp_path: Path
) -> None:
    async def silent(_request: RawRequest, peer: Peer) -> None:
        await peer.left()

    async with (
        between(host, tmp_path, descriptors=256, respond=silent) as (upstream, it),
        AsyncExitStack() as idle,
        raw_client(it.port) as waiting,
    ):
        await waiting.say(post(FINE))
        await upstream.raw.asked(len(upstream.raw.requests) + 1)
        for _ in range(100):
            await idle.enter_async_context(raw_client(it.port))
        await upstream.raw.stop()
        assert error_in(await waiting.answer()) == (1, LOST)
        assert await it.exit_code() == 1
        assert "Error: Lost connection to upstream MCP\nShutting down proxy" in it.stderr


@in_each_host
async def test_an_upstream_that_still_accepts_a_connection_while_it_dies_is_lost(
    host: str, tmp_path: Path
) -> None:
    """A process that is killed may break off a call before its port is closed."""
    async with (
        between(host, tmp_path, respond=resets) as (upstream, it),
        raw_client(it.port) as client,
    ):
        await client.say(post(FINE))
        await upstream.raw.asked(len(upstream.raw.requests) + 1)
        before = len(upstream.raw.peers)
        async with asyncio.timeout(TIMEOUT):
            while len(upstream.raw.peers) == before:  # the first probe finds the port open
                await asyncio.sleep(0.002)
        await upstream.raw.stop()
        assert error_in(await client.answer()) == (1, LOST)
        assert await it.exit_code() == 1


def asks_after_silence(local: int, remote: int) -> bool:
    """Tell whether the system will ask the peer of a connection if it is still there."""
    ends = f":{local:04X}", f":{remote:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, one, other, _, _, timer, *_ = line.split()
        if one.endswith(ends[0]) and other.endswith(ends[1]):
            return timer.startswith("02:")  # the timer of keepalive
    raise AssertionError("no such connection")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells")
@in_each_host
async def test_a_peer_that_vanishes_without_a_word_is_noticed(host: str, tmp_path: Path) -> None:
    """On both sides: a stream may be quiet for hours, and then nobody is there any more."""
    links: list[tuple[int, int]] = []

    async def respond(_request: RawRequest, peer: Peer) -> None:
        ends = [peer.writer.get_extra_info(name)[1] for name in ("peername", "sockname")]
        links.append((ends[0], ends[1]))
        await peer.say(SSE_HEAD + chunk(b": hello\n\n"))
        await peer.left()

    async with (
        between(host, tmp_path, respond=respond) as (_, it),
        raw_client(it.port) as client,
    ):
        await client.say(get())
        await client.until(b"hello")
        ours = client.writer.get_extra_info("sockname")[1]
        assert asks_after_silence(it.port, ours)
        assert asks_after_silence(*links[-1])
