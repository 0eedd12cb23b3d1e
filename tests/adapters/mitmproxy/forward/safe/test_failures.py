"""What a client gets when the upstream fails: our own answer, never mitmproxy's HTML."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import Failure, install_error_answers
from mcp_tool_filter.adapters.mitmproxy.forward.streams import lose
from tests.adapters.mitmproxy.forward.streaming import FIRST, Streaming, before
from tests.adapters.mitmproxy.forward.upstream_failures import (
    FAILING,
    LAST,
    Ask,
    clients,
    hang_up,
    mute,
    ok,
    strategies,
)
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import certified, proxy
from tests.raw_client import get, h2_client, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, Script, answer, chunk, free_port

pytestmark = pytest.mark.usefixtures("our_error_answers")


@clients
@strategies
@pytest.mark.parametrize(("script", "failure"), FAILING, ids=lambda x: getattr(x, "__name__", x))
async def test_a_waiting_client_gets_our_answer(
    ask: Ask, strategy: str, script: Script, failure: Failure, tmp_path: Path
) -> None:
    addon = Streaming()
    options = {"connection_strategy": strategy, "body_size_limit": "1k"}
    async with before(script, addon, tmp_path, **options) as running:
        assert await ask(running.port) == (200, b"ours: " + failure.encode())
        assert addon.blamed == [failure is Failure.LOST] * 2


@clients
async def test_the_client_gets_our_answer_if_the_upstream_refuses_the_connection(
    ask: Ask, tmp_path: Path
) -> None:
    addon = Streaming()
    async with proxy(addon, to=f"http://127.0.0.1:{free_port()}", home=tmp_path) as running:
        assert await ask(running.port) == (200, b"ours: connect-failed")
        assert addon.blamed == [True] * 2
        assert all(addon.blamed_connects)


@pytest.mark.parametrize("die", ["reset", "close"])
async def test_a_broken_event_stream_ends_well_with_our_event(die: str, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(SSE_HEAD + chunk(FIRST))
        await broken.wait()
        getattr(peer, die)()

    broken = asyncio.Event()

    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await client.head()
        assert await client.chunk() == FIRST
        broken.set()
        assert await client.rest_of_chunks() == (LAST, True)
        assert addon.blamed == [True]
        assert (await client.ask(get())).status == 200, "the connection is still in order"


async def test_a_broken_event_stream_ends_well_in_http_2(tmp_path: Path) -> None:
    async def script(stream: UpstreamStream) -> None:
        stream.head([(b":status", b"200"), (b"content-type", b"text/event-stream")])
        stream.say(FIRST)
        stream.reset()

    addon = Streaming()
    async with (
        h2_upstream(script, tls=certified(tmp_path)) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        h2_client(running.port) as client,
    ):
        stream = await client.over(client.ask("GET"))
        assert (stream.data, stream.ended, stream.reset) == (FIRST + LAST, True, None)
        assert addon.blamed == [True]


async def test_a_body_whose_length_was_announced_is_cut_rather_than_completed(
    tmp_path: Path,
) -> None:
    """Our bytes would be taken for the rest of the upstream's."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer(b"data: whole\n\n", kind="text/event-stream")[:-3])
        peer.close()

    async with (
        before(script, Streaming(), tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.say(get())
        await client.head()
        assert await client.rest() == b"data: whol"


async def test_an_answer_to_head_has_no_body(tmp_path: Path) -> None:
    async with (
        before(hang_up, Streaming(), tmp_path) as running,
        raw_client(running.port) as client,
    ):
        head = await client.ask(get().replace(b"GET", b"HEAD"))
        assert (head.status, head.all("x-failure")) == (200, ["lost"])
        following = await client.ask(get())
        assert (following.status, following.body) == (200, b"ours: lost")


@pytest.mark.parametrize(
    "answer_with", [lambda _flow, _failure: None, lambda: None], ids=["none", "raises"]
)
async def test_mitmproxys_answer_is_kept_where_we_have_none(
    answer_with: Callable[..., None], tmp_path: Path
) -> None:
    install_error_answers(answer_with)

    async with (
        before(hang_up, Streaming(), tmp_path) as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(get())).status == 502


async def test_a_flow_can_be_made_to_fail(tmp_path: Path) -> None:
    """When the upstream is lost, requests on other connections are answered too."""

    addon = Streaming()
    async with before(mute, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await addon.asked(1)
        assert lose(addon.requests[0])
        assert (await client.answer()).body == b"ours: lost"
        assert not lose(addon.requests[0])


@pytest.mark.parametrize("hook", ["response", "error"])
async def test_a_flow_that_is_ending_cannot_be_made_to_fail(hook: str, tmp_path: Path) -> None:
    """It would be the next answer on the connection that fails."""

    class Losing(Streaming):
        def response(self, flow: HTTPFlow) -> None:
            lose(flow)

        def error(self, flow: HTTPFlow) -> None:
            lose(flow)

    script = ok if hook == "response" else hang_up
    body = b"fine" if hook == "response" else b"ours: lost"
    async with before(script, Losing(), tmp_path) as it, raw_client(it.port) as client:
        for _ in range(2):
            assert (await client.ask(get())).body == body
