"""Real commands behind the bridge: their sessions, and the requests that wait for their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.core.errors import ConnectFailed
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.rooms.stdio.child import Child
from mcp_tool_filter.rooms.stdio.sessions import (
    BridgeSessions,
    ChildSession,
    Outbox,
    SharedSession,
    TooMany,
)
from tests.make import asking, calling
from tests.raw_upstream import TIMEOUT
from tests.stdio_client import upstream


@asynccontextmanager
async def sessions(*words: str, **settings: Any) -> AsyncIterator[BridgeSessions]:
    command = list(words) or upstream()
    made = BridgeSessions(lambda: Child(command), Limits(), say=lambda _: None, **settings)
    try:
        yield made
    finally:
        await made.close()


async def test_the_least_recently_used_session_is_ended_first() -> None:
    async with sessions(most=2) as ours:
        (_, first), (_, second) = await ours.begin(), await ours.begin()
        await first.tell(calling("read_file"))
        await ours.begin()
        assert second.ended.done()
        assert not first.ended.done()


async def test_no_session_begins_if_all_are_in_use() -> None:
    async with sessions(most=1) as ours:
        _, only = await ours.begin()
        only.listen()
        with pytest.raises(TooMany, match="--max-children 1"):
            await ours.begin()
        with pytest.raises(TooMany):
            await ours.shared()


async def test_requests_without_a_session_share_a_command_until_it_ends() -> None:
    async with sessions() as ours:
        shared = await ours.shared()
        assert await ours.shared() is shared
        ours.end(shared)
        assert await ours.shared() is not shared


async def test_an_idle_session_is_ended() -> None:
    async with sessions(idle=0.05) as ours:
        _, idle = await ours.begin()
        _, used = await ours.begin()
        assert used.expect(["1"], Outbox())  # somebody waits for it
        await idle.ended
        assert not used.ended.done()


async def test_closing_ends_all_commands_and_starts_no_more() -> None:
    async with sessions() as ours:
        _, session = await ours.begin()
        shared = await ours.shared()
    assert session.ended.done()
    assert shared.ended.done()
    with pytest.raises(TooMany, match="Shutting down"):
        await ours.begin()


async def test_a_command_that_cannot_start_opens_no_session() -> None:
    async with sessions("no-such-command", most=1) as ours:
        for _ in range(2):
            with pytest.raises(ConnectFailed):
                await ours.begin()


async def test_sessions_make_room_side_by_side() -> None:
    """One after the other, with patience for each, twenty clients would wait for minutes."""
    stubborn = upstream("--ignore-eof")
    async with sessions(*stubborn, most=8) as ours:
        before = [session for _, session in [await ours.begin() for _ in range(8)]]
        began = [asyncio.create_task(ours.begin()) for _ in range(8)]
        await asyncio.sleep(0)
        assert all(one.is_closing for one in before)
        async with asyncio.timeout(60):
            await asyncio.gather(*began)
        assert all(one.ended.done() for one in before)


async def test_what_waits_for_a_stream_is_bounded_in_bytes() -> None:
    async with sessions() as ours:
        _, session = await ours.begin()
        flood = calling("flood", arguments='{"messages":10000}')
        outbox = await session.ask([flood], ["1"], only_answers=True)
        async with asyncio.timeout(60):
            assert await outbox.get()
        kept = session.take_kept()
        assert sum(map(len, kept)) <= 4 * 1024 * 1024
        assert b'"9999' in kept[-1]  # the oldest were dropped


# One command, for one session


CHANGED = '{"tools":"a"}'
SLEEP = calling("sleep", id="1", arguments='{"seconds":0}')
MEBIBYTE = 1024 * 1024


@asynccontextmanager
async def session(
    say: Callable[[str], None] = print, limits: Limits | None = None
) -> AsyncIterator[ChildSession]:
    ended: list[int] = []

    def note(_session: object, code: int) -> None:
        ended.append(code)

    made = ChildSession(Child(upstream()), limits or Limits(), say=say, on_end=note)
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
        await heard(await ask(ours, calling("change", arguments=CHANGED), "1"))
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
async def test_waiting_requests_get_an_error_when_the_command_ends(tool: str, code: int) -> None:
    async with session() as ours:
        [answer] = await heard(await ask(ours, calling(tool), "1"))
        assert answer["error"] == {"code": -32000, "message": "Upstream connection lost"}
        assert await ours.ended == code
        assert ours.is_closing
        late = Outbox()
        assert ours.expect(["2"], late)
        await heard(late)


async def test_an_answer_that_cannot_be_passed_on_is_replaced_by_an_error() -> None:
    said: list[str] = []
    async with session(said.append, Limits(message=1000)) as ours:
        [answer] = await heard(await ask(ours, calling("big", arguments='{"bytes":5000}'), "1"))
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


async def full() -> Outbox:
    outbox = Outbox()
    await outbox.put(b"x" * (MEBIBYTE + 1))
    return outbox


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_writer_waits_until_a_slow_reader_reads_or_has_left(leaves: bool) -> None:
    outbox = await full()
    writing = asyncio.create_task(outbox.put(b"more"))
    await asyncio.sleep(0)
    assert not writing.done()
    if leaves:
        outbox.end()
    else:
        await outbox.get()
    assert await writing is await outbox.put(b"even more") is not leaves
    assert outbox.has_ended is leaves


async def test_the_last_message_needs_a_reader_but_no_room() -> None:
    outbox = await full()
    outbox.put_last(b"lost")
    outbox.end()
    outbox.put_last(b"too late")
    assert outbox.drain()[1:] == [b"lost"]
    assert await outbox.get() is None


# One command, for several clients of a stateless revision at once


@asynccontextmanager
async def shared(home: Path) -> AsyncIterator[SharedSession]:
    child = Child(upstream(journal=home / "journal"))
    session = SharedSession(child, Limits(), say=lambda _: None, on_end=lambda *_: None)
    try:
        yield session
    finally:
        await session.close()


async def first_of(outbox: Outbox) -> Any:
    said = await outbox.get()
    assert said
    return json.loads(said)


async def test_the_command_is_told_when_a_client_leaves(tmp_path: Path) -> None:
    async with shared(tmp_path) as session:
        number, _ = await session.ask_alone(SLEEP)
        session.leave(number)
        _, after = await session.ask_alone(calling("read_file", id="2"))
        await first_of(after)
    said = [json.loads(line) for line in (tmp_path / "journal").read_bytes().splitlines()]
    cancelled = [one for one in said if one["method"] == "notifications/cancelled"]
    assert [one["params"] for one in cancelled] == [{"requestId": number}]


async def test_the_command_is_not_told_about_answered_requests(tmp_path: Path) -> None:
    async with shared(tmp_path) as session:
        number, outbox = await session.ask_alone(calling("read_file"))
        await first_of(outbox)
        session.leave(number)
        _, after = await session.ask_alone(calling("write_file"))
        await first_of(after)
    assert b"cancelled" not in (tmp_path / "journal").read_bytes()


PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}'


async def test_what_comes_for_a_request_that_was_left_reaches_nobody_else(tmp_path: Path) -> None:
    async with shared(tmp_path) as session:
        number, _ = await session.ask_alone(SLEEP)
        session.leave(number)
        raw = json.dumps({"raw": PROGRESS % number})
        _, outbox = await session.ask_alone(calling("say", id="2", arguments=raw))
        assert (await first_of(outbox))["id"] == 2
        assert session._numbers._originals == {}


async def test_a_client_that_reads_slowly_delays_no_other(tmp_path: Path) -> None:
    async with shared(tmp_path) as session:
        _, slow = await session.ask_alone(calling("flood", id="1", arguments='{"messages":3000}'))
        _, other = await session.ask_alone(calling("read_file", id="2"))
        async with asyncio.timeout(60):
            assert (await first_of(other))["id"] == 2
        messages = slow.drain()
        assert json.loads(messages[-1])["id"] == 1
        assert sum(map(len, messages)) < 2 * 1024 * 1024


LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
LOGGED = ',"_meta":{"io.modelcontextprotocol/logLevel":"info"}'


@pytest.mark.parametrize(("others", "level", "heard_by"), [
    ([], "", [True]),
    ([("subscriptions/listen", "", "me")], "", [False, True]),
    ([("vendor/slow", "", "me")], LOGGED, [False, True]),
    ([("vendor/slow", "", "me")], "", [False, False]),  # it may be about either
    ([("vendor/slow", LOGGED, "me")], LOGGED, [True, True]),
    ([("vendor/slow", LOGGED.replace("info", "error"), "me")], LOGGED, [False, True]),
    ([("vendor/slow", LOGGED, "somebody else")], LOGGED, [False, False]),
    ([("vendor/slow", "", "somebody else")], LOGGED, [False, False]),
])  # fmt: skip
async def test_which_requests_a_log_message_reaches(
    others: list[tuple[str, str, str]], level: str, heard_by: list[bool], tmp_path: Path
) -> None:
    async with shared(tmp_path) as session:
        outboxes = []
        for method, wanted, asker in others:
            asked = asking(method, id="7", params=f'{{"name":"unanswered"{wanted}}}')
            how: Any = {"is_subscription": method == "subscriptions/listen", "asker": asker}
            outboxes.append((await session.ask_alone(asked, **how))[1])
        params = f'{{"name":"say","arguments":{json.dumps({"raw": LOG})}{level}}}'
        _, outbox = await session.ask_alone(asking("tools/call", id="2", params=params), asker="me")
        said = [await first_of(outbox)]
        if "method" in said[0]:
            said.append(await first_of(outbox))
        found = [other.drain() for other in outboxes]
        assert ["method" in str(one) for one in [*found, said]] == heard_by


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_client_may_leave_while_we_write(is_alone: bool, tmp_path: Path) -> None:
    line = calling("say", id="1", arguments=json.dumps({"raw": "x" * MEBIBYTE}))
    async with shared(tmp_path) as alone, session() as own:
        ours = alone if is_alone else own
        ask = alone.ask_alone(line) if is_alone else own.ask([line], ["1"])
        asking = asyncio.ensure_future(ask)
        while not ours.is_in_use:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not ours.is_in_use
