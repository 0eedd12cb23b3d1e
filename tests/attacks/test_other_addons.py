"""Other addons, before or behind ours, open no way past it by what they do to a flow."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from mitmproxy.exceptions import AddonHalt
from mitmproxy.http import Headers, HTTPFlow, Response
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import TCPLayer
from wsproto.utilities import LocalProtocolError

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.attacks.answers import ASKED, TOOLS, event, stream
from tests.attacks.hostile_requests import CALL, post
from tests.attacks.readings import shows
from tests.attacks.stage import DENIED, MARK, Link, raised, speak
from tests.raw_client import raw_client
from tests.raw_upstream import RawRequest, answer
from tests.websocket import accept, connect


class StreamsAnswers:
    """The first thing one reads about event streams and mitmproxy."""

    def responseheaders(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.stream = True


class CallsForAnswers:
    def responseheaders(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.stream = lambda data: data


class StreamsRequests:
    def requestheaders(self, flow: HTTPFlow) -> None:
        flow.request.stream = True


class Answers:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def request(self, flow: HTTPFlow) -> None:
        if flow.request.path == "/mcp":
            body = event(TOOLS) if "event" in self._kind else TOOLS
            flow.response = Response.make(200, body, {"content-type": self._kind})


class AnswersEarly(Answers):
    def requestheaders(self, flow: HTTPFlow) -> None:
        super().request(flow)

    def request(self, flow: HTTPFlow) -> None:
        """It has answered already."""


class Says101:
    def request(self, flow: HTTPFlow) -> None:
        if flow.request.path == "/mcp":
            flow.response = Response.make(101, b"", {"upgrade": "x", "connection": "upgrade"})


class ChoosesTcp:
    """Wants the bytes of each connection as they come."""

    def next_layer(self, layer: NextLayer) -> None:
        if layer.context.layers:
            layer.layer = TCPLayer(layer.context)


class PutsTcpInside:
    def next_layer(self, layer: NextLayer) -> None:
        if layer.layer:
            layer.layer = TCPLayer(layer.context)


class Halts:
    """Keeps a hook from all addons behind it."""

    def __init__(self, *hooks: str) -> None:
        for hook in hooks:
            setattr(self, hook, self._halt)

    def _halt(self, _data: object) -> None:
        raise AddonHalt


def _lists(flow: HTTPFlow, kind: str = "application/json") -> Response:
    return Response.make(200, event(TOOLS) if "event" in kind else TOOLS, {"content-type": kind})


class ReplacesAnswers:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def response(self, flow: HTTPFlow) -> None:
        flow.response = _lists(flow, self._kind)


class ReplacesHeads:
    def responseheaders(self, flow: HTTPFlow) -> None:
        flow.response = _lists(flow)


class ChangesAnswers:
    def response(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.content = TOOLS


class PacksAnswers:
    def response(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.headers["content-encoding"] = "gzip"
            flow.response.content = TOOLS


class ChangesHeads:
    def responseheaders(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.headers["content-type"] = "text/event-stream"
            flow.response.headers["x-tools"] = f"{DENIED} {MARK} inputSchema"


class ChangesCallables:
    """Waits until a stream is under way."""

    def responseheaders(self, flow: HTTPFlow) -> None:
        asyncio.get_running_loop().call_soon(self._change, flow)

    def _change(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.stream = lambda _data: event(TOOLS)


class AddsTrailers:
    def response(self, flow: HTTPFlow) -> None:
        if flow.response:
            flow.response.trailers = Headers([(b"x-tools", f"{DENIED} {MARK}".encode())])


class ChangesCalls:
    def request(self, flow: HTTPFlow) -> None:
        flow.response = None
        flow.request.content = CALL


class ReplacesCalls:
    def request(self, flow: HTTPFlow) -> None:
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


class TakesRefusalsAway:
    def request(self, flow: HTTPFlow) -> None:
        flow.response = None


OTHERS = {
    "chooses TCP": ChoosesTcp(),
    "puts TCP inside": PutsTcpInside(),
    "halts next_layer": Halts("next_layer"),
    "halts requestheaders": Halts("requestheaders"),
    "halts request": Halts("request"),
    "halts responseheaders": Halts("responseheaders"),
    "halts response": Halts("response"),
    "halts all": Halts("requestheaders", "request", "responseheaders", "response"),
    "replaces answers by JSON": ReplacesAnswers("application/json"),
    "replaces answers by a stream": ReplacesAnswers("text/event-stream"),
    "replaces answers by text": ReplacesAnswers("text/plain"),
    "replaces heads": ReplacesHeads(),
    "changes answers": ChangesAnswers(),
    "packs answers": PacksAnswers(),
    "changes heads": ChangesHeads(),
    "changes callables": ChangesCallables(),
    "adds trailers": AddsTrailers(),
    "changes calls": ChangesCalls(),
    "replaces calls": ReplacesCalls(),
    "changes calls when connected": ChangesCallsWhenConnected(),
    "takes refusals away": TakesRefusalsAway(),
    "streams answers": StreamsAnswers(),
    "calls for answers": CallsForAnswers(),
    "streams requests": StreamsRequests(),
    "answers in JSON": Answers("application/json"),
    "answers in a stream": Answers("text/event-stream"),
    "answers early in JSON": AnswersEarly("application/json"),
    "answers early in a stream": AnswersEarly("text/event-stream"),
    "says 101": Says101(),
}


ASKED_LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
CALLING = {name for name in OTHERS if "calls" in name}


@pytest.mark.parametrize(
    ("what", "said"),
    [("GET", stream(event(TOOLS))), ("tools/list", answer(TOOLS))],
    ids=["stream", "JSON"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("other", sorted(OTHERS.keys() - CALLING))
async def test_no_definition_gets_past_the_filter(
    other: str, is_first: bool, said: bytes, what: str, tmp_path: Path
) -> None:
    async def respond(_request: RawRequest, link: Link) -> None:
        await link.say(said)

    addons = [ToolFilter()]
    addons.insert(0 if is_first else 1, OTHERS[other])  # type: ignore[arg-type]  # any addon
    async with raised(tmp_path, *addons) as (upstream, running):
        upstream.respond = respond
        heard = await speak(running.port, ASKED[what])
        assert not shows(heard, DENIED, MARK), heard


@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("other", OTHERS)
async def test_no_call_gets_past_the_filter(other: str, is_first: bool, tmp_path: Path) -> None:
    addons = [ToolFilter()]
    addons.insert(0 if is_first else 1, OTHERS[other])  # type: ignore[arg-type]  # any addon
    async with raised(tmp_path, *addons) as (upstream, running):
        await speak(running.port, post(CALL))
        assert not shows(upstream.raw, DENIED)


class HasTextForAHook:
    """An addon that names a value as mitmproxy names a hook."""

    request = "text"
    responseheaders = "text"
    response = "text"


class Raises:
    def _raise(self, _flow: HTTPFlow) -> None:
        raise ValueError("as modify_body does for each event stream")

    requestheaders = request = responseheaders = response = _raise


@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("other", [HasTextForAHook(), Raises()])
async def test_a_broken_addon_costs_no_client_its_answer(
    other: object, is_first: bool, tmp_path: Path
) -> None:
    """mitmproxy logs it as an error and goes on."""

    async def respond(_request: RawRequest, link: Link) -> None:
        await link.say(answer(TOOLS))

    addons: list[object] = [ToolFilter()]
    addons.insert(0 if is_first else 1, other)
    async with raised(tmp_path, *addons) as (upstream, running):
        upstream.respond = respond
        heard = await speak(running.port, ASKED["tools/list"])
        assert b"HTTP/1.1 200" in heard
        assert not shows(heard, DENIED, MARK), heard


LATER = ["chooses TCP", "changes answers", "replaces calls", "halts all", "takes refusals away"]


@pytest.mark.parametrize("other", LATER)
async def test_an_addon_added_later_lets_nothing_pass(other: str, tmp_path: Path) -> None:
    async def respond(_request: RawRequest, link: Link) -> None:
        await link.say(answer(TOOLS))

    async with raised(tmp_path) as (upstream, running):
        running.master.addons.add(OTHERS[other])
        upstream.respond = respond
        heard = await speak(running.port, ASKED["tools/list"] + post(CALL), answers=2)
        assert not shows(heard, MARK), heard
        assert not shows(upstream.raw, DENIED)


class Speaks:
    """Changes what a WebSocket says, after it was judged."""

    def __init__(self, says: bytes) -> None:
        self._says = says

    def websocket_message(self, flow: HTTPFlow) -> None:
        assert flow.websocket
        flow.websocket.messages[-1].content = self._says


class TakesDropsBack:
    def websocket_message(self, flow: HTTPFlow) -> None:
        assert flow.websocket
        flow.websocket.messages[-1].dropped = False


@pytest.mark.parametrize(
    "other", [Speaks(CALL), Speaks(TOOLS), TakesDropsBack(), Halts("websocket_message")]
)
@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("said", [CALL, ASKED_LIST], ids=["call", "list"])
async def test_unjudged_websocket_messages_do_not_pass(
    other: object, is_first: bool, said: bytes, tmp_path: Path
) -> None:
    heard: list[bytes] = []

    async def respond(request: RawRequest, link: Link) -> None:
        end = await accept(link.reader, link.writer, request.head)
        with suppress(ConnectionError, LocalProtocolError):
            heard.append(await end.hear() or b"")
            await end.say(TOOLS)

    addons: list[object] = [ToolFilter()]
    addons.insert(0 if is_first else 1, other)
    async with raised(tmp_path, *addons) as (upstream, running):
        upstream.respond = respond
        async with raw_client(running.port) as client:
            end = await connect(client.reader, client.writer)
            got = b""
            with suppress(ConnectionError, AssertionError, TimeoutError):
                async with asyncio.timeout(1):
                    await end.say(said)
                    got = await end.hear() or b""
            assert not shows(got, MARK), got
        assert not shows(b"".join(heard), "tools/call"), heard
