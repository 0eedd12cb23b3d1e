"""What a client gets when the upstream fails: an answer of ours, never mitmproxy's HTML."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.safe.failures import (
    ErrorAnswer,
    Failure,
    install_error_answers,
)
from mcp_tool_filter.adapters.mitmproxy.safe.stream import (
    stream_of,
)
from mcp_tool_filter.adapters.mitmproxy.streams import lose
from tests.adapters.mitmproxy.streaming import Streaming
from tests.h2_upstream import UpstreamStream, h2_upstream
from tests.proxy import RunningProxy, certified, proxy
from tests.raw_client import get, h2_client, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, Script, answer, chunk, free_port, raw_upstream

type Ask = Callable[[int], Awaitable[tuple[int, bytes]]]

FIRST = b"data: first\n\n"
LAST = b"data: lost\n\n"
BODY = b'{"jsonrpc": "2.0"}'


def answers(_: HTTPFlow, failure: Failure) -> ErrorAnswer:
    headers = {"content-type": "application/json", "x-failure": failure}
    return ErrorAnswer(Response.make(200, b"ours: " + failure.encode(), headers), LAST)


@asynccontextmanager
async def before(
    script: Script, addon: Streaming, home: Path, **options: object
) -> AsyncIterator[RunningProxy]:
    async with (
        raw_upstream(script) as upstream,
        proxy(addon, to=upstream.url, home=home, **options) as running,
    ):
        yield running


@pytest.fixture(autouse=True)
def our_answers() -> Iterator[None]:
    install_error_answers(answers)
    yield
    install_error_answers(lambda _flow, _failure: None)


async def h1_ask(port: int) -> tuple[int, bytes]:
    """Ask, and once more over the same connection, for it must still be in order."""
    async with raw_client(port) as client:
        first = await client.ask(post(BODY))
        second = await client.ask(post(BODY))
        assert (second.status, second.body) == (first.status, first.body)
        return first.status, first.body


async def h2_ask(port: int) -> tuple[int, bytes]:
    async with h2_client(port) as client:
        first = await client.over(client.ask(body=BODY))
        second = await client.over(client.ask(body=BODY))
        assert (second.headers, second.data, second.ended) == (first.headers, first.data, True)
        return int(first.headers[b":status"]), first.data


async def hang_up(peer: Peer) -> None:
    await peer.request()
    peer.close()


async def reset(peer: Peer) -> None:
    await peer.request()
    peer.reset()


async def half_a_head(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nConte")
    peer.close()


async def half_a_body(peer: Peer) -> None:
    await peer.request()
    await peer.say(answer(BODY)[:-3])
    peer.close()


async def no_http(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await peer.left()


async def bad_chunk(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")
    await peer.left()


async def two_lengths(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")
    await peer.left()


async def trailers(peer: Peer) -> None:
    """mitmproxy raises NotImplementedError, says that it has crashed, and leaves the client."""
    await peer.request()
    await peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n")
    await peer.left()


async def early_hints(peer: Peer) -> None:
    """It is no answer, though mitmproxy takes it for one; the answer never comes."""
    await peer.request()
    await peer.say(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
    peer.close()


async def too_much(peer: Peer) -> None:
    await peer.request()
    await peer.say(answer(b"x" * 2000))
    await peer.left()


FAILING = [
    (hang_up, Failure.LOST),
    (reset, Failure.LOST),
    (half_a_head, Failure.LOST),
    (half_a_body, Failure.LOST),
    (no_http, Failure.MALFORMED),
    (bad_chunk, Failure.MALFORMED),
    (two_lengths, Failure.MALFORMED),
    (trailers, Failure.MALFORMED),
    (early_hints, Failure.LOST),
    (too_much, Failure.RESPONSE_TOO_LARGE),
]

clients = pytest.mark.parametrize("ask", [h1_ask, h2_ask])
strategies = pytest.mark.parametrize("strategy", ["lazy", "eager"])


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
async def test_when_the_upstream_refuses_the_client_gets_our_answer(
    ask: Ask, tmp_path: Path
) -> None:
    addon = Streaming()
    async with proxy(addon, to=f"http://127.0.0.1:{free_port()}", home=tmp_path) as running:
        assert await ask(running.port) == (200, b"ours: connect-failed")
        assert addon.blamed == [True] * 2
        assert all(addon.blamed_connects)


async def ok(peer: Peer) -> None:
    while await peer.request():
        await peer.say(answer(b"fine"))


async def one_event(peer: Peer) -> None:
    """Die in the midst of an event stream."""
    await peer.request()
    await peer.say(SSE_HEAD + chunk(FIRST))
    await peer.request()  # the test says when
    peer.reset()


async def mute(peer: Peer) -> None:
    await peer.request()
    await peer.left()


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


@pytest.mark.parametrize("declared", ["length", "chunked"])
async def test_a_request_that_is_too_large_is_read_to_its_end_and_answered(
    declared: str, tmp_path: Path
) -> None:
    """A client that is still sending would not see an answer on a connection that is closed."""
    large = b"x" * 3_000_000
    request = post(large)
    if declared == "chunked":
        head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        request = head + chunk(large) + b"0\r\n\r\n"

    addon = Streaming()
    async with (
        before(ok, addon, tmp_path, body_size_limit="1k") as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(request)).body == b"ours: request-too-large"
        assert (await client.ask(post(BODY))).body == b"fine"
        assert addon.blamed == [False]
        gc.collect()
        assert stream_of(addon.failures[0]) is None, "it is forgotten"


async def test_a_request_that_is_too_large_is_answered_in_http_2(tmp_path: Path) -> None:
    async with (
        before(ok, Streaming(), tmp_path, body_size_limit="1k") as running,
        h2_client(running.port) as client,
    ):
        first = await client.over(client.ask(body=b"x" * 16_000))
        assert (first.data, first.reset) == (b"ours: request-too-large", None)
        assert (await client.over(client.ask(body=BODY))).data == b"fine"


async def test_who_waits_for_permission_to_send_too_much_is_answered_and_left(
    tmp_path: Path,
) -> None:
    """After a refusal it may send the body or not: what follows could be no request."""
    request = post(b"x" * 2000, headers=b"Host: localhost\r\nExpect: 100-continue\r\n")

    async with (
        before(ok, Streaming(), tmp_path, body_size_limit="1k") as running,
        raw_client(running.port) as client,
    ):
        await client.say(request[: request.index(b"\r\n\r\n") + 4])
        assert (await client.answer()).body == b"ours: request-too-large"
        assert await client.rest() == b""


async def test_what_follows_an_ambiguous_request_is_no_request(tmp_path: Path) -> None:
    request = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )

    addon = Streaming()
    async with (
        raw_upstream(ok) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.say(request + get(path="/smuggled"))
        assert (await client.answer()).body == b"ours: request-malformed"
        assert await client.rest() == b""
        assert upstream.requests == []
        assert addon.blamed == [False]


async def test_trailers_of_a_request_end_its_connection(tmp_path: Path) -> None:
    """mitmproxy would say that it has crashed, and leave the client waiting."""
    head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")

    async with (
        before(ok, Streaming(), tmp_path) as running,
        raw_client(running.port) as client,
    ):
        await client.say(head + b"0\r\nA: b\r\n\r\n")
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "answer_with", [lambda _flow, _failure: None, lambda: None], ids=["none", "raises"]
)
async def test_without_an_answer_of_ours_mitmproxys_stands(
    answer_with: Callable[..., None], tmp_path: Path
) -> None:
    install_error_answers(answer_with)

    async with (
        before(hang_up, Streaming(), tmp_path) as running,
        raw_client(running.port) as client,
    ):
        assert (await client.ask(get())).status == 502


async def test_a_flow_can_be_made_to_fail(tmp_path: Path) -> None:
    """When the upstream is found to be lost, those who wait on other connections are told."""

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


@pytest.mark.parametrize("script", [mute, one_event])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_leaves_is_not_the_upstreams_fault(
    script: Script, how: str, tmp_path: Path
) -> None:
    addon = Streaming()
    async with before(script, addon, tmp_path) as running, raw_client(running.port) as client:
        await client.say(get())
        await addon.asked(1)
        getattr(client, how)()
        await addon.failed(1)
        assert addon.blamed == [False]


async def test_a_client_that_resets_its_stream_is_not_the_upstreams_fault(tmp_path: Path) -> None:
    """Its connection stays up, and mitmproxy's words are the same as for an upstream's reset."""

    addon = Streaming()
    async with before(mute, addon, tmp_path) as running, h2_client(running.port) as client:
        number = client.ask("GET")
        await addon.asked(1)
        client.reset(number)
        await addon.failed(1)
        assert addon.blamed == [False]


async def test_a_client_that_leaves_while_we_connect_is_not_the_upstreams_fault(
    tmp_path: Path,
) -> None:
    addon = Streaming()
    with unreachable() as port:
        to = f"http://127.0.0.1:{port}"
        async with proxy(addon, to=to, home=tmp_path) as running:
            async with raw_client(running.port) as client:
                await client.say(get())
                await addon.connecting(1)
            await addon.failed(1)
            assert (addon.blamed, addon.blamed_connects) == ([False], [False])


async def test_who_speaks_http_3_is_hung_up_on(tmp_path: Path) -> None:
    """mitmproxy would ask the upstream by QUIC, and we would take it for lost."""
    quic = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, idle_timeout=0.5
    )

    addon = Streaming()
    async with (
        raw_upstream(ok, tls=certified(tmp_path)) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path) as running,
    ):
        with pytest.raises(ConnectionError):
            async with connect("127.0.0.1", running.port, configuration=quic):
                pass
        assert (addon.requests, addon.connects) == ([], 0)
        async with raw_client(running.port) as client:
            assert (await client.ask(get())).body == b"fine"


@contextmanager
def unreachable() -> Iterator[int]:
    """A port that neither accepts nor refuses: nobody takes connections from its full queue."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with closing(socket.create_connection(listener.getsockname())):
            yield listener.getsockname()[1]
