"""Bytes put into responses that are under way, their end, and their abortion, for real."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.test.tflow import tflow

from mcp_tool_filter.adapters.mitmproxy.safe.orders import (
    Injected,
)
from mcp_tool_filter.adapters.mitmproxy.streams import cut, end, inject, open_flows
from tests.adapters.mitmproxy.streaming import Streaming, until
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import get, h2_client, post, raw_client, trusting
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, Script, answer, chunk, raw_upstream

FIRST = b"data: first\n\n"
OURS = b"data: ours\n\n"
H2_SSE_HEAD = [(b":status", b"200"), (b"content-type", b"text/event-stream")]


async def endless(peer: Peer) -> None:
    """Answer a GET with an event and silence, a POST with JSON."""
    while request := await peer.request():
        if request.line.startswith("POST"):
            await peer.say(answer(b"{}"))
        else:
            await peer.say(SSE_HEAD + chunk(FIRST))


async def h2_endless(stream: UpstreamStream) -> None:
    stream.head(H2_SSE_HEAD)
    stream.say(FIRST)


@dataclass
class OpenStream:
    """A client that has seen the first event of an endless stream."""

    see: Callable[[bytes], Any]  # waits until the client has it
    rest: Callable[[], Any]  # waits for the end: True when it is a clean one
    again: Callable[[], Any] = lambda: None  # asks once more, over the same connection
    left: Callable[[], Any] = lambda: None  # waits until the upstream sees that it is over


@asynccontextmanager
async def h1_stream(port: int, *, tls: bool) -> AsyncIterator[OpenStream]:
    async with raw_client(port, tls=trusting() if tls else None) as client:
        await client.say(get())
        await client.head()
        assert await client.chunk() == FIRST

        async def see(data: bytes) -> None:
            assert await client.chunk() == data

        async def clean() -> bool:
            return (await client.rest_of_chunks())[1]

        async def again() -> None:
            await client.say(get())
            await client.head()
            await see(FIRST)

        yield OpenStream(see, clean, again)


@asynccontextmanager
async def h2_stream(port: int) -> AsyncIterator[OpenStream]:
    async with h2_client(port) as client:
        number = client.ask("GET")
        await client.until(number, lambda stream: FIRST in stream.data)

        async def clean() -> bool:
            return (await client.over(number)).reset is None

        yield OpenStream(
            lambda data: client.until(number, lambda stream: data in stream.data), clean
        )


PAIRS = ["h1-h1", "h1tls-h1", "h1-h1tls", "h1tls-h1tls", "h2-h1", "h2-h1tls", "h2-h2"]


@asynccontextmanager
async def opened(
    pair: str, home: Path, addon: Streaming
) -> AsyncIterator[tuple[RunningProxy, OpenStream]]:
    """A stream open from an upstream, through the proxy, to a client, by these protocols."""
    client, upstream = pair.split("-")
    async with AsyncExitStack() as stack:
        over: Callable[[], asyncio.Event]
        if upstream == "h2":
            h2 = await stack.enter_async_context(h2_upstream(h2_endless, tls=certified(home)))
            url, over = h2.url, lambda: h2.streams[0].over
        else:
            tls = certified(home) if upstream == "h1tls" else None
            h1 = await stack.enter_async_context(raw_upstream(endless, tls=tls))
            url, over = h1.url, lambda: h1.peers[0].gone
        running = await stack.enter_async_context(proxy(addon, to=url, home=home))
        if client == "h2":
            stream = await stack.enter_async_context(h2_stream(running.port))
        else:
            tls_client = client == "h1tls"
            stream = await stack.enter_async_context(h1_stream(running.port, tls=tls_client))
        stream.left = lambda: asyncio.wait_for(over().wait(), 20)
        yield running, stream


pairs = pytest.mark.parametrize("pair", PAIRS)


@pairs
async def test_injected_bytes_reach_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        assert inject(addon.flows[0], OURS)
        await stream.see(OURS)
        injected = addon.chunks[addon.flows[0].id][-1]
        assert isinstance(injected, Injected)
        assert injected.flow_id == addon.flows[0].id


@pairs
async def test_an_ended_stream_ends_well_for_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        assert end(addon.flows[0], OURS)
        await stream.see(OURS)
        assert await stream.rest()
        await stream.left()
        assert addon.responses == addon.flows
        assert addon.errors == []
        assert open_flows() == []


@pairs
async def test_a_cut_stream_ends_badly_for_the_client(pair: str, tmp_path: Path) -> None:
    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        cut(addon.flows[0], "enough")
        assert not await stream.rest()
        await stream.left()
        assert addon.responses == []
        assert addon.errors == ["enough"]
        assert open_flows() == []


@asynccontextmanager
async def before(
    script: Script, addon: Streaming, home: Path, **options: object
) -> AsyncIterator[RunningProxy]:
    async with (
        raw_upstream(script) as upstream,
        proxy(addon, to=upstream.url, home=home, **options) as running,
    ):
        yield running


async def brief(peer: Peer) -> None:
    """Answer every GET with a stream of one event, and every POST with an endless one."""
    while request := await peer.request():
        await peer.say(SSE_HEAD + chunk(FIRST))
        if request.line.startswith("GET"):
            await peer.say(LAST_CHUNK)


async def test_what_has_ended_can_be_neither_injected_into_nor_cut(tmp_path: Path) -> None:
    """mitmproxy would put it into the next response on the same connection."""

    addon = Streaming()
    async with before(brief, addon, tmp_path) as running, raw_client(running.port) as client:
        assert (await client.ask(get())).body == FIRST
        await client.say(post(b"{}"))
        await client.head()
        assert await client.chunk() == FIRST
        ended, going_on = addon.flows
        gc.collect()
        assert not inject(ended, OURS)
        assert not end(ended)
        cut(ended)
        assert inject(going_on, OURS)
        assert await client.chunk() == OURS


async def test_nothing_is_injected_for_a_client_that_left(tmp_path: Path) -> None:
    addon = Streaming()
    async with before(endless, addon, tmp_path) as running:
        async with h1_stream(running.port, tls=False):
            pass
        await addon.failed(1)
        assert not inject(addon.flows[0], OURS)
        assert not end(addon.flows[0])
        cut(addon.flows[0])


async def test_nothing_is_injected_into_a_flow_that_is_none_of_ours(tmp_path: Path) -> None:
    async with before(endless, Streaming(), tmp_path):
        assert not inject(tflow(resp=True), OURS)
        assert not end(tflow(resp=True))
        cut(tflow(resp=True))


async def test_nothing_is_injected_into_an_answer_that_is_not_streamed(tmp_path: Path) -> None:
    """It would be put before the upstream's bytes."""
    refused: list[bool] = []

    class Impatient(Streaming):
        def responseheaders(self, flow: HTTPFlow) -> None:
            refused.append(inject(flow, OURS))

        def response(self, flow: HTTPFlow) -> None:
            refused.append(inject(flow, OURS))

    async with before(endless, Impatient(), tmp_path) as it, raw_client(it.port) as client:
        assert (await client.ask(post(b"{}"))).body == b"{}"
        assert refused == [False, False]


async def test_nothing_is_injected_into_a_copy_or_behind_the_end(tmp_path: Path) -> None:
    refused: list[bool] = []

    class Late(Streaming):
        def response(self, flow: HTTPFlow) -> None:
            copy = flow.copy()
            copy.id = flow.id
            refused.extend([inject(copy, OURS), inject(flow, OURS), end(flow)])

        def responseheaders(self, flow: HTTPFlow) -> None:
            super().responseheaders(flow)
            copy = flow.copy()
            copy.id = flow.id
            refused.append(inject(copy, OURS))

    async with before(brief, Late(), tmp_path) as it, raw_client(it.port) as client:
        assert (await client.ask(get())).body == FIRST
        assert refused == [False] * 4


async def test_while_the_last_hook_waits_the_upstream_is_not_heard(tmp_path: Path) -> None:
    """Its connection is closed by then; the failure would hit the client's next request."""
    may_go_on = asyncio.Event()

    class Slow(Streaming):
        async def response(self, flow: HTTPFlow) -> None:  # type: ignore[override]  # mitmproxy awaits it
            super().response(flow)
            await may_go_on.wait()

    addon = Slow()
    async with opened("h1-h1", tmp_path, addon) as (_, stream):
        assert end(addon.flows[0], OURS)
        await stream.left()
        may_go_on.set()
        await stream.see(OURS)
        assert await stream.rest()
        await stream.again()
        assert addon.errors == []


async def test_it_makes_no_difference_who_is_asked_first_for_the_layer(tmp_path: Path) -> None:
    """mitmproxy's own addon, which comes after us with ``-s``, comes before others."""

    addon = Streaming()
    async with before(endless, addon, tmp_path) as running:
        chain = running.master.addons.chain
        chain.remove(addon)
        chain.append(addon)
        async with h1_stream(running.port, tls=True) as stream:
            assert inject(addon.flows[0], OURS)
            await stream.see(OURS)


async def test_what_is_injected_from_inside_the_stream_follows_the_chunk(tmp_path: Path) -> None:
    def both(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if not isinstance(data, Injected):
            assert inject(flow, OURS)
        return [data]

    addon = Streaming(on_chunk=both)
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.head()
        assert await client.chunk() == FIRST
        assert await client.chunk() == OURS


async def test_what_is_injected_while_a_hook_waits_is_not_lost(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    class Slow(Streaming):
        async def responseheaders(self, flow: HTTPFlow) -> None:  # type: ignore[override]  # mitmproxy awaits it
            super().responseheaders(flow)
            await may_go_on.wait()

    addon = Slow()
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await until(lambda: bool(addon.flows))
        assert inject(addon.flows[0], OURS)
        may_go_on.set()
        await client.head()
        assert {await client.chunk(), await client.chunk()} == {FIRST, OURS}


@pytest.mark.parametrize("same_connection", [True, False])
async def test_another_requests_hook_can_inject(same_connection: bool, tmp_path: Path) -> None:
    """The reply to a POST belongs on the GET stream of the session, in legacy SSE."""

    class Legacy(Streaming):
        def request(self, flow: HTTPFlow) -> None:
            super().request(flow)
            if flow.request.method == "POST":
                assert inject(self.flows[0], OURS)
                flow.response = Response.make(202)

    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(before(endless, Legacy(), tmp_path))
        client = await stack.enter_async_context(h2_client(running.port))
        listening = client.ask("GET")
        await client.until(listening, lambda it: FIRST in it.data)
        other = client
        if not same_connection:
            other = await stack.enter_async_context(h2_client(running.port))
        posted = await other.over(other.ask(body=b"{}"))
        assert posted.headers[b":status"] == b"202"
        await client.until(listening, lambda it: OURS in it.data)


async def test_only_one_of_several_streams_is_cut(tmp_path: Path) -> None:
    addon = Streaming()
    async with before(endless, addon, tmp_path) as running, h2_client(running.port) as client:
        numbers = [client.ask("GET") for _ in range(3)]
        for number in numbers:
            await client.until(number, lambda it: FIRST in it.data)
        cut(addon.flows[1])
        resets = [number for number in numbers if client.streams[number].reset is not None]
        while not resets:
            await client.read()
            resets = [n for n in numbers if client.streams[n].reset is not None]
        assert len(resets) == 1
        for flow in (addon.flows[0], addon.flows[2]):
            assert inject(flow, OURS)
        for number in set(numbers) - set(resets):
            await client.until(number, lambda it: OURS in it.data)


@pytest.mark.parametrize("body", [b"", b"data: theirs\n\n"])
@pytest.mark.parametrize("client", ["h1", "h2"])
async def test_a_response_can_be_ended_before_it_begins(
    client: str, body: bytes, tmp_path: Path
) -> None:
    """In the ``responseheaders`` hook: what body the upstream sends is then of no account."""

    class Refusing(Streaming):
        def responseheaders(self, flow: HTTPFlow) -> None:
            super().responseheaders(flow)
            assert flow.response
            flow.response.headers.pop("content-length")
            if client == "h1":
                flow.response.headers["transfer-encoding"] = "chunked"
            assert end(flow, OURS)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(body, kind="text/event-stream"))
        await peer.left()

    addon = Refusing(on_chunk=lambda _flow, _data: [])
    async with before(script, addon, tmp_path) as running:
        if client == "h1":
            async with raw_client(running.port) as h1:
                assert (await h1.ask(get())).body == OURS
        else:
            async with h2_client(running.port) as h2:
                assert (await h2.over(h2.ask("GET"))).data == OURS
        assert addon.responses == addon.flows


@pytest.mark.parametrize("when", ["chunk", "end"])
async def test_a_stream_can_be_ended_from_inside(when: str, tmp_path: Path) -> None:
    def judge(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if bool(data) is (when == "chunk"):
            end(flow, OURS)
        return []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(FIRST) + LAST_CHUNK)
        await peer.left()

    addon = Streaming(on_chunk=judge)
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        assert (await client.ask(get())).body == OURS


@pytest.mark.parametrize("when", ["chunk", "end"])
async def test_a_stream_can_be_cut_from_inside(when: str, tmp_path: Path) -> None:
    """The upstream's last bytes may come with the ones that we cannot judge."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(FIRST) + LAST_CHUNK)
        await peer.left()

    def judge(flow: HTTPFlow, data: bytes) -> list[bytes]:
        if bool(data) is (when == "chunk"):
            cut(flow)
        return []

    addon = Streaming(on_chunk=judge)
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.head()
        assert await client.rest() == b""
        assert addon.responses == []


async def test_where_closing_means_all_was_said_a_cut_resets(tmp_path: Path) -> None:
    addon = Streaming()
    request = get().replace(b"HTTP/1.1", b"HTTP/1.0")
    async with before(endless, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(request)
        await client.until(FIRST)
        cut(addon.flows[0])
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_a_response_whose_length_was_announced_cannot_be_ended(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"data: whole\n\n", kind="text/event-stream")[:-3])
        await peer.left()

    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.until(b"data: whol")
        assert not end(addon.flows[0], OURS)
        cut(addon.flows[0])
        assert await client.rest() == b""


def stumble(_flow: HTTPFlow, _data: bytes) -> list[bytes]:
    raise RuntimeError


@pytest.mark.parametrize("on_chunk", [stumble, lambda _flow, _data: None], ids=["raises", "none"])
@pytest.mark.parametrize("pair", ["h1-h1", "h2-h2"])
async def test_a_stream_callable_that_fails_cuts_the_stream(
    on_chunk: Callable[[HTTPFlow, bytes], Any], pair: str, tmp_path: Path
) -> None:
    """mitmproxy would say that it has crashed, send nothing, and leave the client waiting."""

    addon = Streaming()
    async with opened(pair, tmp_path, addon) as (_, stream):
        addon.on_chunk = on_chunk
        inject(addon.flows[0], OURS)
        assert not await stream.rest()
        assert addon.errors == ["internal error"]


@pytest.mark.parametrize(
    "on_chunk", [lambda _f, _d: b"", lambda _f, d: [b"", d, b""]], ids=["bytes", "list"]
)
async def test_an_empty_chunk_is_not_the_end(
    on_chunk: Callable[[HTTPFlow, bytes], Any], tmp_path: Path
) -> None:
    """mitmproxy would write the chunk that ends an HTTP/1 body."""

    addon = Streaming()
    async with opened("h1-h1", tmp_path, addon) as (_, stream):
        flow = addon.flows[0]
        usual, addon.on_chunk = addon.on_chunk, on_chunk
        inject(flow, b"")
        addon.on_chunk = usual
        assert inject(flow, OURS)
        await stream.see(OURS)


async def test_a_websocket_goes_on_as_ever(tmp_path: Path) -> None:
    """mitmproxy's own injection reaches it; ours does not; a cut hangs up."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        )
        await peer.say(b"\x81\x06theirs")
        await peer.left()

    upgrade = (
        b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )

    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get(headers=upgrade))
        await client.until(b"\x81\x06theirs")
        flow = addon.flows[0]
        assert not inject(flow, OURS)
        assert not end(flow)
        running.master.commands.call("inject.websocket", flow, True, b"ours", True)
        await client.until(b"\x81\x04ours")
        cut(flow)
        assert b"ours" not in await client.rest()


@pytest.mark.parametrize("websocket", [True, False])
async def test_no_connection_becomes_a_raw_tunnel(websocket: bool, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %s\r\n\r\n"
            % (b"websocket" if websocket else b"mcp")
        )
        await peer.say(b"unfiltered")
        await peer.left()

    addon = Streaming()
    async with (
        before(script, addon, tmp_path, websocket=False) as running,
        raw_client(running.port) as client,
    ):
        upgrade = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        await client.say(get(headers=upgrade) + b"raw")
        assert b"unfiltered" not in await client.rest()


async def test_a_client_that_leaves_several_streams_leaves_none_open(tmp_path: Path) -> None:
    """mitmproxy cancels the task of each twice, and so the closing of its socket."""

    async def scenario() -> None:
        addon = Streaming()
        async with (
            raw_upstream(endless) as upstream,
            proxy(addon, to=upstream.url, home=tmp_path) as running,
        ):
            async with h2_client(running.port) as client:
                for number in [client.ask("GET") for _ in range(3)]:
                    await client.until(number, lambda it: FIRST in it.data)
            async with asyncio.timeout(20):
                for peer in upstream.peers:
                    await peer.gone.wait()

    with uncollected():
        await scenario()


@contextmanager
def uncollected() -> Iterator[None]:
    """The garbage collector would close the sockets in the end."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
