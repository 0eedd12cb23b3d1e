"""Other addons, before or behind ours, open no way past it by what they do to a flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy.exceptions import AddonHalt
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import TCPLayer

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from tests.attacks.answers import ASKED, TOOLS, event, stream
from tests.attacks.hostile_requests import CALL, post
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, raised, saying, speak
from tests.raw_upstream import answer

type Hook = Callable[[HTTPFlow], None]


class On:
    """An addon that does this in these hooks."""

    def __init__(self, **hooks: Callable[..., None]) -> None:
        vars(self).update(hooks)


def with_answer(**values: object) -> Hook:
    def hook(flow: HTTPFlow) -> None:
        for name, value in values.items():
            if flow.response:
                setattr(flow.response, name, value)

    return hook


def answering(kind: str, *paths: str) -> Hook:
    """Answer, on these paths or all, with the list."""

    def hook(flow: HTTPFlow) -> None:
        if not paths or flow.request.path in paths:
            body = event(TOOLS) if "event" in kind else TOOLS
            flow.response = Response.make(200, body, {"content-type": kind})

    return hook


def stream_request(flow: HTTPFlow) -> None:
    flow.request.stream = True


def say_101(flow: HTTPFlow) -> None:
    if flow.request.path == "/mcp":
        flow.response = Response.make(101, b"", {"upgrade": "x", "connection": "upgrade"})


def choose_tcp(layer: NextLayer) -> None:
    """Want the bytes of each connection as they come."""
    if layer.context.layers:
        layer.layer = TCPLayer(layer.context)


def put_tcp_inside(layer: NextLayer) -> None:
    if layer.layer:
        layer.layer = TCPLayer(layer.context)


def halt(_data: object) -> None:
    """Keep a hook from all addons behind."""
    raise AddonHalt


def halting(*hooks: str) -> On:
    return On(**dict.fromkeys(hooks, halt))


def pack_answer(flow: HTTPFlow) -> None:
    if flow.response:
        flow.response.headers["content-encoding"] = "gzip"
        flow.response.content = TOOLS


def change_head(flow: HTTPFlow) -> None:
    if flow.response:
        flow.response.headers["content-type"] = "text/event-stream"
        flow.response.headers["x-tools"] = f"{DENIED} {MARK} inputSchema"


def change_callable(flow: HTTPFlow) -> None:
    """Wait until a stream is under way."""
    change = with_answer(stream=lambda _data: event(TOOLS))
    asyncio.get_running_loop().call_soon(change, flow)


def change_call(flow: HTTPFlow) -> None:
    flow.response = None
    flow.request.content = CALL


def replace_call(flow: HTTPFlow) -> None:
    flow.response = None
    other = flow.request.copy()
    other.content = CALL
    flow.request = other


class ChangesCallsWhenConnected:
    """The last hook before a request leaves."""

    def __init__(self) -> None:
        self._flows: list[HTTPFlow] = []

    def request(self, flow: HTTPFlow) -> None:
        self._flows.append(flow)

    def server_connected(self, _data: object) -> None:
        for flow in self._flows:
            flow.request.content = CALL


def take_refusal_away(flow: HTTPFlow) -> None:
    flow.response = None


JSON, STREAM = "application/json", "text/event-stream"
SHOWN = Headers([(b"x-tools", f"{DENIED} {MARK}".encode())])
OTHERS: dict[str, object] = {
    "chooses TCP": On(next_layer=choose_tcp),
    "puts TCP inside": On(next_layer=put_tcp_inside),
    "halts next_layer": halting("next_layer"),
    "halts requestheaders": halting("requestheaders"),
    "halts request": halting("request"),
    "halts responseheaders": halting("responseheaders"),
    "halts response": halting("response"),
    "halts all": halting("requestheaders", "request", "responseheaders", "response"),
    "replaces answers by JSON": On(response=answering(JSON)),
    "replaces answers by a stream": On(response=answering(STREAM)),
    "replaces answers by text": On(response=answering("text/plain")),
    "replaces heads": On(responseheaders=answering(JSON)),
    "changes answers": On(response=with_answer(content=TOOLS)),
    "packs answers": On(response=pack_answer),
    "changes heads": On(responseheaders=change_head),
    "changes callables": On(responseheaders=change_callable),
    "adds trailers": On(response=with_answer(trailers=SHOWN)),
    "changes calls": On(request=change_call),
    "replaces calls": On(request=replace_call),
    "changes calls when connected": ChangesCallsWhenConnected(),
    "takes refusals away": On(request=take_refusal_away),
    "streams answers": On(responseheaders=with_answer(stream=True)),
    "calls for answers": On(responseheaders=with_answer(stream=lambda data: data)),
    "streams requests": On(requestheaders=stream_request),
    "answers in JSON": On(request=answering(JSON, "/mcp")),
    "answers in a stream": On(request=answering(STREAM, "/mcp")),
    "answers early in JSON": On(requestheaders=answering(JSON, "/mcp")),
    "answers early in a stream": On(requestheaders=answering(STREAM, "/mcp")),
    "says 101": On(request=say_101),
}


def in_order(other: object, is_first: bool) -> list[object]:
    """Put another addon before ours, or behind it."""
    return [other, ToolFilter()] if is_first else [ToolFilter(), other]


PLACES = pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
TEXTS = On(request="text", responseheaders="text", response="text")  # type: ignore[arg-type]  # no hooks
ASKED_LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
CALLING = {name for name in OTHERS if "calls" in name}


@pytest.mark.parametrize(
    ("what", "said"),
    [("GET", stream(event(TOOLS))), ("tools/list", answer(TOOLS))],
    ids=["stream", "JSON"],
)
@PLACES
@pytest.mark.parametrize("other", sorted(OTHERS.keys() - CALLING))
async def test_no_definition_gets_past_the_filter(
    other: str, is_first: bool, said: bytes, what: str, tmp_path: Path
) -> None:
    async with raised(tmp_path, *in_order(OTHERS[other], is_first)) as (upstream, running):
        upstream.respond = saying(said)
        heard = await speak(running.port, ASKED[what])
        assert not shows(heard, DENIED, MARK), heard


@PLACES
@pytest.mark.parametrize("other", OTHERS)
async def test_no_call_gets_past_the_filter(other: str, is_first: bool, tmp_path: Path) -> None:
    async with raised(tmp_path, *in_order(OTHERS[other], is_first)) as (upstream, running):
        await speak(running.port, post(CALL))
        assert not shows(upstream.raw, DENIED)


def fail(_flow: HTTPFlow) -> None:
    raise ValueError("as modify_body does for each event stream")


RAISES = On(requestheaders=fail, request=fail, responseheaders=fail, response=fail)


@PLACES
@pytest.mark.parametrize("other", [TEXTS, RAISES])
async def test_a_broken_addon_costs_no_client_its_answer(
    other: object, is_first: bool, tmp_path: Path
) -> None:
    """mitmproxy logs it as an error and goes on."""
    async with raised(tmp_path, *in_order(other, is_first)) as (upstream, running):
        upstream.respond = saying(answer(TOOLS))
        heard = await speak(running.port, ASKED["tools/list"])
        assert b"HTTP/1.1 200" in heard
        assert not shows(heard, DENIED, MARK), heard


LATER = ["chooses TCP", "changes answers", "replaces calls", "halts all", "takes refusals away"]


@pytest.mark.parametrize("other", LATER)
async def test_an_addon_added_later_lets_nothing_pass(other: str, tmp_path: Path) -> None:
    async with raised(tmp_path) as (upstream, running):
        running.master.addons.add(OTHERS[other])
        upstream.respond = saying(answer(TOOLS))
        heard = await speak(running.port, ASKED["tools/list"] + post(CALL), answers=2)
        assert not shows(heard, MARK), heard
        assert not shows(upstream.raw, DENIED)
