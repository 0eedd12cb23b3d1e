"""What a command said, as HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mcp_tool_filter.adapters.sockets.server import ServedResponse
from mcp_tool_filter.adapters.stdio.bridge import (
    answer_from,
    events_from,
)
from mcp_tool_filter.adapters.stdio.sessions import Outbox
from tests.make import answering

NOTE = b'{"jsonrpc":"2.0","method":"notifications/progress"}'
ONE, TWO = answering("{}", id="1"), answering("{}", id="2")
BOTH = b"application/json, text/event-stream"


async def answered(
    *said: bytes, accept: bytes = BOTH, is_batch: bool = False
) -> tuple[int, str, bytes]:
    """Return status, type and body."""
    outbox = Outbox(only_answers=accept != BOTH)
    for one in said:
        await outbox.put(one, is_answer=one is not NOTE)
    outbox.end()
    given = await answer_from(outbox, lambda: None, is_batch=is_batch)
    return given.status, dict(given.headers)[b"content-type"].decode(), await body_of(given)


async def body_of(response: ServedResponse) -> bytes:
    if isinstance(response.body, bytes):
        return response.body
    return b"".join([part async for part in response.body])


async def test_one_answer_is_json() -> None:
    assert await answered(ONE) == (200, "application/json", ONE)


@pytest.mark.parametrize("said", [(ONE,), (ONE, TWO)])
async def test_the_answers_to_a_batch_are_a_batch(said: tuple[bytes, ...]) -> None:
    _, kind, body = await answered(*said, is_batch=True)
    assert (kind, body) == ("application/json", b"[" + b",".join(said) + b"]")


async def test_other_messages_before_the_answer_make_it_a_stream() -> None:
    _, kind, body = await answered(NOTE, ONE)
    assert kind == "text/event-stream"
    assert body.index(NOTE) < body.index(ONE)


async def test_other_messages_are_sent_before_the_answer_is_there() -> None:
    outbox = Outbox()
    await outbox.put(NOTE)
    given = await answer_from(outbox, lambda: None)
    assert not isinstance(given.body, bytes)
    assert NOTE in await anext(given.body)
    outbox.end()


async def test_who_leaves_before_the_answer_is_forgotten() -> None:
    left: list[bool] = []
    waiting = asyncio.create_task(answer_from(Outbox(only_answers=True), lambda: left.append(True)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert left == [True]


async def test_a_request_that_was_cancelled_has_no_answer() -> None:
    assert await answered() == (200, "text/event-stream", b"")
    _, kind, body = await answered(accept=b"application/json")
    assert kind == "application/json"
    assert b"The server sent no answer" in body


async def test_a_late_answer_is_a_stream_and_closing_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_tool_filter.adapters.stdio.bridge._JSON_SOON", 0.01)
    left: list[bool] = []
    outbox = Outbox()
    given = await answer_from(outbox, lambda: left.append(True))
    await outbox.put(ONE, is_answer=True)
    outbox.end()
    assert ONE in await body_of(given)
    assert left == [True]


async def test_a_quiet_stream_sends_keep_alive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tool_filter.adapters.stdio.bridge._HEARTBEAT", 0.01)
    outbox = Outbox()
    events: AsyncIterator[bytes] = events_from(outbox, lambda: None)
    assert await anext(events) == b": alive\n\n"
    await outbox.put(ONE, is_answer=True)
    heard = await anext(events)
    while heard == b": alive\n\n":
        heard = await anext(events)
    assert ONE in heard
