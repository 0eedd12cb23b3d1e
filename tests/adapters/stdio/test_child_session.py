"""A real command that runs for one session, and the requests that wait for its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.sessions import ChildSession, Outbox
from mcp_tool_filter.protocol.limits import Limits
from tests.make import calling
from tests.raw_upstream import TIMEOUT
from tests.stdio_client import upstream

CHANGED = '{"tools":"a"}'
MEBIBYTE = 1024 * 1024


@asynccontextmanager
async def session(
    *flags: str, said: list[str] | None = None, limits: Limits | None = None
) -> AsyncIterator[ChildSession]:
    ended: list[int] = []
    made = ChildSession(
        Child(upstream(*flags)),
        limits or Limits(),
        say=(said if said is not None else []).append,
        on_end=lambda _, code: ended.append(code),
    )
    try:
        yield made
    finally:
        await made.close()
        assert ended == [await made.ended]


async def ask(ours: ChildSession, line: bytes, *ids: str) -> Outbox:
    outbox = Outbox()
    assert ours.expect(ids, outbox)
    await ours.tell(line)
    return outbox


async def heard(outbox: Outbox) -> list[Any]:
    """Return all that comes, up to the end."""
    said = []
    while (one := await outbox.get()) is not None:
        said.append(json.loads(one))
    return said


async def test_an_id_can_be_in_use_only_once() -> None:
    async with session() as ours:
        assert ours.expect(["1"], Outbox())
        assert not ours.expect(["1.0"], Outbox())
        assert not ours.expect(["2", "2"], Outbox())
        assert ours.forget(["1"])
        assert not ours.forget(["1"])
        assert ours.expect(["1"], Outbox())


async def test_other_messages_go_to_the_stream_or_are_kept_for_it() -> None:
    async with session() as ours:
        outbox = await ask(ours, calling("change", arguments=CHANGED), "1")
        await heard(outbox)
        stream = ours.listen()
        await ours.tell(calling("change", id="2", arguments=CHANGED))
        async with asyncio.timeout(TIMEOUT):
            note = await stream.get()
        assert note
        assert json.loads(note)["method"] == "notifications/tools/list_changed"
        newer = ours.listen()
        assert stream.has_ended
        ours.stop_listening(newer)
        assert not ours.is_in_use


@pytest.mark.parametrize(("tool", "code"), [("crash", 3), ("close", 143)])
async def test_waiting_requests_get_an_error_when_the_command_ends_or_closes_its_output(
    tool: str, code: int
) -> None:
    async with session() as ours:
        outbox = await ask(ours, calling(tool), "1")
        [answer] = await heard(outbox)
        assert answer["error"] == {"code": -32000, "message": "Upstream connection lost"}
        assert await ours.ended == code
        assert ours.is_closing
        late = Outbox()
        assert ours.expect(["2"], late)
        await heard(late)


async def test_an_answer_that_cannot_be_passed_on_is_replaced_by_an_error() -> None:
    said: list[str] = []
    async with session(said=said, limits=Limits(message=1000)) as ours:
        outbox = await ask(ours, calling("big", arguments='{"bytes":5000}'), "1")
        [answer] = await heard(outbox)
        assert answer["id"] == 1
        assert answer["error"]["message"] == "The server sent an invalid response"
    assert said[0].startswith("Warning: The command sent an invalid message: ")


async def test_an_error_without_an_id_answers_the_only_request() -> None:
    """Some servers answer so what they do not understand; nobody should wait for another."""
    nameless = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}'
    async with session() as ours:
        line = calling("say", id="1", arguments=json.dumps({"raw": nameless}))
        [answer] = await heard(await ask(ours, line, "1"))
        assert (answer["id"], answer["error"]["code"]) == (1, -32603)


async def test_a_client_that_leaves_while_we_write_leaves_nothing_behind() -> None:
    async with session() as ours:
        line = calling("say", id="1", arguments=json.dumps({"raw": "x" * MEBIBYTE}))
        asking = asyncio.ensure_future(ours.ask([line], ["1"]))
        while not ours.is_in_use:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not ours.is_in_use


async def test_a_writer_waits_for_a_slow_reader() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    writing = asyncio.create_task(outbox.put(b"more"))
    await asyncio.sleep(0)
    assert not writing.done()
    await outbox.get()
    assert await writing


async def test_a_waiting_writer_is_told_that_the_reader_has_left() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    writing = asyncio.create_task(outbox.put(b"more"))
    await asyncio.sleep(0)
    outbox.end()
    assert not await writing
    assert not await outbox.put(b"even more")
    assert outbox.has_ended


async def test_the_last_message_needs_a_reader_but_no_room() -> None:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    outbox.put_last(b"lost")
    outbox.end()
    outbox.put_last(b"too late")
    assert outbox.drain()[1:] == [b"lost"]
    assert await outbox.get() is None
