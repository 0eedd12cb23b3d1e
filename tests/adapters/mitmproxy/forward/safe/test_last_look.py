"""Nothing leaves that was changed after it had been judged, unless it is judged again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.websocket import WebSocketMessage

from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import install_last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.reverse_proxy import choose_layer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream, stream_of
from tests.proxy import RunningProxy, proxy
from tests.raw_client import Answer, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawUpstream, answer, chunk, raw_upstream

EVENT = b"data: 1\n\n"

pytestmark = pytest.mark.usefixtures("our_error_answers")


def found(flow: HTTPFlow) -> SafeStream:
    stream = stream_of(flow)
    assert stream
    return stream


class Judging:
    """Settles everything when it first comes; ``change`` may then touch it, as a script would."""

    def __init__(self, change: str = "") -> None:
        self._change = change

    def next_layer(self, layer: NextLayer) -> None:
        choose_layer(layer)

    def request(self, flow: HTTPFlow) -> None:
        found(flow).settle_request()
        if self._change == "request":
            flow.request.path = "/changed"
        if self._change == "same text":
            flow.request.data.content = bytes(bytearray(flow.request.data.content or b""))

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        if flow.response.headers["content-type"] == "text/event-stream":
            flow.response.stream = True
            found(flow).settle_head()
            if self._change == "head":
                flow.response.headers["x-tools"] = "changed"

    def response(self, flow: HTTPFlow) -> None:
        found(flow).settle_answer()
        assert flow.response
        if self._change == "answer":
            flow.response.content = b"changed"
        if self._change == "another answer":
            flow.response = Response.make(200, b"changed")


class Look:
    """Refuses what it is asked about, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def judge_request_again(self, flow: HTTPFlow) -> None:
        self.asked.append("request")
        flow.response = Response.make(403, b"refused")
        found(flow).settle_answer()

    def judge_head_again(self, _flow: HTTPFlow) -> bool:
        self.asked.append("head")
        return False

    def judge_answer_again(self, flow: HTTPFlow) -> None:
        self.asked.append("answer")
        flow.response = Response.make(500, b"refused")
        found(flow).settle_answer()

    def may_say(self, _flow: HTTPFlow, _message: WebSocketMessage) -> bool:
        return False


@pytest.fixture(autouse=True)
def _no_look_afterwards() -> Iterator[None]:
    yield
    install_last_look(None)


async def asked(home: Path, change: str, said: bytes) -> tuple[Answer, Look, RawUpstream]:
    """Let a client ask an upstream that says this, with an addon that makes this change."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)

    look = Look()
    running: RunningProxy
    async with (
        raw_upstream(script) as upstream,
        proxy(Judging(change), to=upstream.url, home=home) as running,
        raw_client(running.port) as client,
    ):
        install_last_look(look)
        return await client.ask(post(b"{}")), look, upstream


@pytest.mark.parametrize(
    "said", [answer(b"said"), SSE_HEAD + chunk(EVENT) + LAST_CHUNK], ids=["JSON", "stream"]
)
async def test_unchanged_messages_are_not_judged_again(said: bytes, tmp_path: Path) -> None:
    got, look, _ = await asked(tmp_path, "", said)
    assert (got.status, look.asked) == (200, [])


async def test_a_changed_request_does_not_leave_as_it_is(tmp_path: Path) -> None:
    got, look, upstream = await asked(tmp_path, "request", answer(b"said"))
    assert (got.status, got.body) == (403, b"refused")
    assert look.asked == ["request"]
    assert upstream.requests == []


@pytest.mark.parametrize("change", ["answer", "another answer"])
async def test_a_changed_answer_does_not_leave_as_it_is(change: str, tmp_path: Path) -> None:
    got, look, _ = await asked(tmp_path, change, answer(b"said"))
    assert (got.status, got.body) == (500, b"refused")
    assert look.asked == ["answer"]


async def test_the_changed_head_of_a_stream_does_not_leave(tmp_path: Path) -> None:
    said = SSE_HEAD + chunk(EVENT) + LAST_CHUNK
    got, look, _ = await asked(tmp_path, "head", said)
    assert look.asked == ["head"]
    assert got.all("x-tools") == []
    assert got.body.startswith(b"ours: ")
