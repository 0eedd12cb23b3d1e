"""Whichever line of our code raises, nothing hidden passes and no request hangs."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from wsproto.utilities import LocalProtocolError

from tests.attacks.faults import Place, noting_lines, raising_at
from tests.filtered import DELETE, INITIALIZE, LIST, READ, Filtered, call, filtered
from tests.mcp_upstream import tool_list
from tests.raw_client import MCP_HEADERS, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk

pytestmark = pytest.mark.filterwarnings(
    # What the line that raises was about to await, or to close.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore:unclosed:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(autouse=True)
def _nothing_left_for_others() -> Iterator[None]:
    """Collect the sockets that nobody closed here: Python warns when it does so."""
    yield
    gc.collect()


_LAST_GUARDS = (
    "Exchange.connected",
    "Effects._carry_out",
    "Pool._open_for",
    "Server.address",  # the test asks for the port
    "_LargePieces.read",  # only hands on what mitmproxy asks for
)
"""They close the connection when anything within them raises; nothing guards them."""

type Go = Callable[[int], Awaitable[bytes]]


@dataclass(frozen=True)
class Scenario:
    """What a client does, and gets of it."""

    go: Go
    options: dict[str, Any] = field(default_factory=dict)
    beyond: Go | None = None
    """Another scenario tries the lines that this one has."""


def asking(*requests: bytes) -> Go:
    async def go(port: int) -> bytes:
        async with raw_client(port) as client:
            await client.say(b"".join(requests))
            answers = [await client.answer() for _ in requests]
        return b"".join(got.head + got.body for got in answers)

    return go


async def as_a_new_asker(port: int) -> bytes:
    """This user's list is not known yet, so a call waits until it has been fetched."""
    user = b"Authorization: Bearer %s\r\n" % token_hex(4).encode()
    said = (INITIALIZE, call("unknown"), call("delete_file"), LIST)
    requests = [post(one, headers=MCP_HEADERS + user) for one in said]
    return await asking(*requests)(port)


SCENARIOS = {
    "denied call": Scenario(asking(post(call("delete_file")))),
    "batch": Scenario(asking(post(b"[%s,%s]" % (call("read_file", id="2"), call("delete_file"))))),
    "list in an answer": Scenario(asking(post(LIST)), {"new_tools": ["judge"]}),
    "list in events": Scenario(asking(post(call("read_file", '{"as":"events"}')))),
    "list on a stream": Scenario(asking(get())),
    "new asker": Scenario(as_a_new_asker, beyond=asking(post(call("delete_file")))),
}


async def respond(request: RawRequest, peer: Peer) -> None:
    """Show the denied tool in whatever is answered."""
    shown = tool_list([READ, DELETE], id="1")
    if request.line.startswith("GET") or b'"events"' in request.body:
        await peer.say(SSE_HEAD + chunk(b"id: 1\ndata: %s\n\n" % shown))
        await peer.say(chunk(b"data: %s\n\n" % shown) + LAST_CHUNK)
    else:
        await peer.say(answer(shown))


def list_tools(_request: RawRequest, id: str) -> bytes:
    return answer(tool_list([READ, DELETE], id=id))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of tracebacks are of no use, and writing them takes time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@asynccontextmanager
async def standing(home: Path, host: str, scenario: Scenario) -> AsyncIterator[Filtered]:
    if host == "sockets":
        options = {**scenario.options, "on_sockets": True}
    else:
        options = {**scenario.options, "host": host}
    async with filtered(home, respond=respond, lists=list_tools, **options) as between:
        yield between


def leaked(between: Filtered, got: bytes) -> list[str]:
    """Tell what has got past us."""
    asked = between.upstream.raw.requests
    called = any(b"delete_file" in request.body for request in asked)
    return ["a definition"] * (b"gone" in got) + ["a call"] * called


async def outcome_of(go: Go, between: Filtered) -> list[str]:
    """Do it once; tell what went wrong, if anything did."""
    between.upstream.raw.requests.clear()
    got = b""
    try:
        async with asyncio.timeout(TIMEOUT):
            got = await go(between.port)
    except TimeoutError:
        return ["a wait"]
    except asyncio.IncompleteReadError as cut:
        got = cut.partial
    except (ConnectionError, AssertionError, LocalProtocolError):  # cut, closed, or refused
        pass
    return leaked(between, got)


async def lines_of(scenario: Scenario, between: Filtered) -> list[Place]:
    await scenario.go(between.port)
    tried = await lines_run_by(scenario.beyond, between) if scenario.beyond else []
    places = await lines_run_by(scenario.go, between)
    return [
        place
        for place in places
        if place.code.co_qualname not in _LAST_GUARDS and place not in tried
    ]


async def lines_run_by(go: Go, between: Filtered) -> list[Place]:
    with noting_lines() as places:
        await go(between.port)
    return places


@pytest.mark.parametrize("host", ["sockets", "lean", "dump"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_nothing_passes_and_no_request_hangs_whichever_line_raises(
    tmp_path: Path, name: str, host: str
) -> None:
    scenario = SCENARIOS[name]
    wrong: list[str] = []
    raised = 0
    async with standing(tmp_path, host, scenario) as between:
        for place in await lines_of(scenario, between):
            with raising_at(place) as has_raised:
                wrong += [f"{what}: {place}" for what in await outcome_of(scenario.go, between)]
            raised += bool(has_raised)
        assert not wrong
        assert await outcome_of(scenario.go, between) == []
    assert raised > 100
