"""HTTP in front of a real command, without the filter before it.

``tests/rooms/stdio/test_bridge_command.py`` has more, with the whole program around it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.rooms.stdio.bridge import Bridge, answer_from, events_from
from mcp_tool_filter.rooms.stdio.child import Child
from mcp_tool_filter.rooms.stdio.sessions import BridgeSessions, Outbox
from tests.make import answering, asking, calling
from tests.stdio_client import upstream

INITIALIZE = asking("initialize", params='{"protocolVersion":"2025-11-25","capabilities":{}}')
BOTH = (b"accept", b"application/json, text/event-stream")
META = '{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}'


@asynccontextmanager
async def bridge(*words: str, most: int = 64) -> AsyncIterator[Bridge]:
    command = list(words) or upstream()
    limits = Limits()
    sessions = BridgeSessions(lambda: Child(command), limits, say=lambda _: None, most=most)
    try:
        yield Bridge(sessions, limits)
    finally:
        await sessions.close()


async def sent(
    ours: Bridge, method: str = "POST", target: str = "/mcp", body: bytes = b"", session: str = "",
    headers: tuple[tuple[bytes, bytes], ...] = (BOTH,),
) -> ServedResponse:  # fmt: skip
    own = ((b"mcp-session-id", session.encode()),) if session else ()
    return await ours.answer(ServedRequest(method, target, (*headers, *own), body))


async def opened(ours: Bridge) -> str:
    given = await sent(ours, body=INITIALIZE)
    assert given.status == 200
    return dict(given.headers)[b"mcp-session-id"].decode()


async def body_of(response: ServedResponse) -> bytes:
    if isinstance(response.body, bytes):
        return response.body
    return b"".join([part async for part in response.body])


def streamed(response: ServedResponse) -> AsyncGenerator[bytes]:
    assert isinstance(response.body, AsyncGenerator)
    return response.body


def error_of(response: ServedResponse) -> tuple[object, int, str]:
    assert isinstance(response.body, bytes)
    said = json.loads(response.body)
    return said["id"], said["error"]["code"], said["error"]["message"]


@pytest.mark.parametrize(("method", "target", "status"), [
    ("PUT", "/mcp", 405), ("POST", "/sse", 405), ("GET", "/messages", 405), ("GET", "/x", 404),
])  # fmt: skip
async def test_other_paths_and_methods_are_refused(method: str, target: str, status: int) -> None:
    async with bridge() as ours:
        assert (await sent(ours, method, target)).status == status


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"jsonrpc":"2.0"}', INITIALIZE * 2])
async def test_a_body_that_is_no_message_starts_no_command(body: bytes) -> None:
    async with bridge("no-such-command") as ours:
        given = await sent(ours, body=body)
        assert (given.status, error_of(given)) == (400, (None, -32600, "Invalid Request"))


async def test_a_command_that_cannot_start_is_an_error_with_the_requests_id() -> None:
    async with bridge("no-such-command") as ours:
        given = await sent(ours, body=INITIALIZE.replace(b'"id":1', b'"id":"i"'))
        id, code, _ = error_of(given)
        assert (given.status, id, code) == (503, "i", -32000)
        assert (await sent(ours, "GET", "/sse")).status == 503


async def test_an_id_in_use_is_refused() -> None:
    """Two requests would wait for one answer."""
    async with bridge() as ours:
        name = await opened(ours)
        async with aclosing(streamed(await sent(ours, body=calling("ask"), session=name))):
            again = await sent(ours, body=calling("read_file"), session=name)
            assert (again.status, error_of(again)[0]) == (400, 1)
            assert (await sent(ours, body=calling("read_file", id="2"), session=name)).status == 200


async def test_a_stream_is_for_clients_that_accept_events() -> None:
    async with bridge() as ours:
        name = await opened(ours)
        assert (await sent(ours, "GET", session=name, headers=())).status == 406
        given = await sent(ours, "GET", session=name)
        assert given.status == 200
        async with aclosing(streamed(given)) as events:
            await sent(ours, body=calling("ask"), session=name)
            while b"roots/list" not in await anext(events):
                pass


async def test_the_older_transport_answers_on_its_stream() -> None:
    async with bridge() as ours:
        given = await sent(ours, "GET", "/sse")
        async with aclosing(streamed(given)) as events:
            target = (await anext(events)).decode().partition("data: ")[2].strip()
            assert (await sent(ours, target=target, body=INITIALIZE)).status == 202
            assert b"protocolVersion" in await anext(events)
            assert (await sent(ours, target=target, body=b"{")).status == 400
            assert (await sent(ours, target=f"{target}x", body=INITIALIZE)).status == 404
            assert (await sent(ours, target=f"{target}&sessionId=y", body=b"")).status == 404


async def test_a_command_of_an_older_revision_does_not_speak_the_stateless_one() -> None:
    """What it says to ``server/discover`` is no answer of 2026-07-28."""
    async with bridge() as ours:
        for method in ("server/discover", "tools/list"):
            given = await sent(ours, body=asking(method, id='"d"', params=META))
            assert (given.status, error_of(given)) == (404, ("d", -32601, "Method not found"))


PICKY = """
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
waiting = []
for line in sys.stdin:
    asked = json.loads(line)
    id = asked.get("id")
    if asked["method"] == "server/discover" and "clientInfo" in line and "old" not in sys.argv:
        say(id=id, result={"resultType": "complete", "supportedVersions": ["2026-07-28"]})
    elif "crash" in line:
        sys.exit(3)
    elif asked["method"] == "tools/call":
        waiting.append(id)
    elif asked["method"] == "ping":
        for one in waiting:
            say(id=one, result={"resultType": "complete", "content": []})
        say(id=id, result={})
    elif id is not None:
        say(id=id, error={"code": -32602, "message": "Invalid params"})
"""


@pytest.mark.parametrize("words", [(), ("old",)])
async def test_a_refused_discover_costs_no_other_client_anything(words: tuple[str, ...]) -> None:
    """It ended the command, with the calls in flight, and the revision, for all clients."""
    async with bridge(sys.executable, "-c", PICKY, *words) as ours:
        call = asyncio.create_task(sent(ours, body=asking("tools/call", id="1", params=META)))
        await asyncio.sleep(0)
        refused = await sent(ours, body=asking("server/discover", id="2", params=META))
        assert (refused.status, error_of(refused)[1]) == (404, -32601) if words else (200, -32602)
        if not words:
            await sent(ours, body=asking("ping", id="3", params=META))
            assert b'"content": []' in await body_of(await call)
            crash = META.replace("{", '{"crash":1,', 1)
            assert (await sent(ours, body=asking("server/discover", params=crash))).status == 200
            again = await sent(ours, body=asking("ping", id="4", params=META))
            assert again.status == 200
        else:
            [shared] = ours.sessions._open()
            assert shared.is_in_use
            call.cancel()
            await asyncio.wait([call])
            assert ours.sessions._open() == []


async def test_a_silent_command_is_asked_again_while_it_may_still_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_tool_filter.rooms.stdio.bridge._PROBE", 0.01)
    async with bridge(sys.executable, "-c", f"import time\ntime.sleep(1)\n{PICKY}") as ours:
        asked = asking("server/discover", id="2", params=META)
        assert (await sent(ours, body=asked)).status == 404
        monkeypatch.setattr("mcp_tool_filter.rooms.stdio.bridge._PROBE", 20)
        assert (await sent(ours, body=asked)).status == 200


# What a command said, as HTTP

type Answered = tuple[int, str, bytes]
"""Status, type and body."""

ONE, TWO = answering("{}", id="1"), answering("{}", id="2")


async def answered(*said: bytes, only_json: bool = False, is_batch: bool = False) -> Answered:
    outbox = Outbox(only_answers=only_json)
    for one in said:
        await outbox.put(one, is_answer=True)
    outbox.end()
    given = await answer_from(outbox, lambda: None, is_batch=is_batch)
    return given.status, dict(given.headers)[b"content-type"].decode(), await body_of(given)


@pytest.mark.parametrize("said", [(ONE,), (ONE, TWO)])
async def test_the_answers_to_a_batch_are_a_batch(said: tuple[bytes, ...]) -> None:
    _, kind, body = await answered(*said, is_batch=True)
    assert (kind, body) == ("application/json", b"[" + b",".join(said) + b"]")


async def test_who_leaves_before_the_answer_is_forgotten() -> None:
    left: list[bool] = []
    waiting = asyncio.create_task(answer_from(Outbox(only_answers=True), lambda: left.append(True)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert left == [True]


async def test_a_request_that_was_cancelled_has_no_answer() -> None:
    assert await answered() == (200, "text/event-stream", b"")
    _, kind, body = await answered(only_json=True)
    assert kind == "application/json"
    assert b"The server sent no answer" in body


async def test_a_quiet_stream_sends_keep_alive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tool_filter.rooms.stdio.bridge._HEARTBEAT", 0.01)
    outbox = Outbox()
    events: AsyncIterator[bytes] = events_from(outbox, lambda: None)
    assert await anext(events) == b": alive\n\n"
    await outbox.put(ONE, is_answer=True)
    while (heard := await anext(events)) == b": alive\n\n":
        pass
    assert ONE in heard
