"""Other addons, before or behind ours, open no way past it by what they do to a flow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.attacks.answers import ASKED, TOOLS, event, stream
from tests.attacks.requests import CALL, post
from tests.attacks.stage import DENIED, MARK, Link, raised, shows, speak
from tests.raw_upstream import RawRequest, answer


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


OTHERS = {
    "streams answers": StreamsAnswers(),
    "calls for answers": CallsForAnswers(),
    "streams requests": StreamsRequests(),
    "answers in JSON": Answers("application/json"),
    "answers in a stream": Answers("text/event-stream"),
    "answers early in JSON": AnswersEarly("application/json"),
    "answers early in a stream": AnswersEarly("text/event-stream"),
    "says 101": Says101(),
}


@pytest.mark.parametrize(
    ("what", "said"),
    [("GET", stream(event(TOOLS))), ("tools/list", answer(TOOLS))],
    ids=["stream", "JSON"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("other", OTHERS)
def test_no_definition_gets_past(
    other: str, is_first: bool, said: bytes, what: str, tmp_path: Path
) -> None:
    async def respond(_request: RawRequest, link: Link) -> None:
        await link.say(said)

    async def scene() -> None:
        addons = [ToolFilter()]
        addons.insert(0 if is_first else 1, OTHERS[other])  # type: ignore[arg-type]
        async with raised(tmp_path, *addons) as (upstream, running):
            upstream.respond = respond
            heard = await speak(running.port, ASKED[what])
            assert not shows(heard, DENIED, MARK), heard

    asyncio.run(scene())


@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize("other", OTHERS)
def test_no_call_gets_past(other: str, is_first: bool, tmp_path: Path) -> None:
    async def scene() -> None:
        addons = [ToolFilter()]
        addons.insert(0 if is_first else 1, OTHERS[other])  # type: ignore[arg-type]
        async with raised(tmp_path, *addons) as (upstream, running):
            await speak(running.port, post(CALL))
            assert not shows(upstream.raw, DENIED)

    asyncio.run(scene())


class HasTextForAHook:
    """An addon that names a value as mitmproxy names a hook."""

    request = "text"
    responseheaders = "text"
    response = "text"


@pytest.mark.parametrize("is_first", [True, False], ids=["before us", "behind us"])
def test_an_attribute_named_like_a_hook_costs_no_client_its_answer(
    is_first: bool, tmp_path: Path
) -> None:
    """mitmproxy logs it as an error and goes on."""

    async def respond(_request: RawRequest, link: Link) -> None:
        await link.say(answer(TOOLS))

    async def scene() -> None:
        addons = [ToolFilter()]
        addons.insert(0 if is_first else 1, HasTextForAHook())  # type: ignore[arg-type]
        async with raised(tmp_path, *addons) as (upstream, running):
            upstream.respond = respond
            heard = await speak(running.port, ASKED["tools/list"])
            assert b"HTTP/1.1 200" in heard
            assert not shows(heard, DENIED, MARK), heard

    asyncio.run(scene())
