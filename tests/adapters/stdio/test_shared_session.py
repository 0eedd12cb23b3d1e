"""A real command that serves several clients of a stateless revision at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.sessions import Outbox, SharedSession
from mcp_tool_filter.protocol.limits import Limits
from tests.make import asking, calling
from tests.stdio_client import upstream


@asynccontextmanager
async def shared(journal: Path) -> AsyncIterator[SharedSession]:
    child = Child(upstream(journal=journal))
    session = SharedSession(child, Limits(), say=lambda _: None, on_end=lambda *_: None)
    try:
        yield session
    finally:
        await session.close()


async def heard(outbox: Outbox) -> Any:
    said = await outbox.get()
    assert said
    return json.loads(said)


async def test_the_command_is_told_when_a_client_leaves(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with shared(journal) as session:
        number, _ = await session.ask_alone(calling("sleep", id="1", arguments='{"seconds":0}'))
        session.leave(number)
        _, after = await session.ask_alone(calling("read_file", id="2"))
        await heard(after)
    said = [json.loads(line) for line in journal.read_bytes().splitlines()]
    cancelled = [one for one in said if one["method"] == "notifications/cancelled"]
    assert [one["params"] for one in cancelled] == [{"requestId": number}]


async def test_the_command_is_not_told_about_answered_requests(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with shared(journal) as session:
        number, outbox = await session.ask_alone(calling("read_file"))
        await heard(outbox)
        session.leave(number)
        _, after = await session.ask_alone(calling("write_file"))
        await heard(after)
    assert b"cancelled" not in journal.read_bytes()


PROGRESS = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}'


async def test_what_comes_for_a_request_that_was_left_reaches_nobody_else(tmp_path: Path) -> None:
    async with shared(tmp_path / "journal") as session:
        number, _ = await session.ask_alone(calling("sleep", id="1", arguments='{"seconds":0}'))
        session.leave(number)
        raw = json.dumps({"raw": PROGRESS % number})
        _, outbox = await session.ask_alone(calling("say", id="2", arguments=raw))
        assert (await heard(outbox))["id"] == 2
        assert session._numbers._originals == {}


async def test_a_client_that_reads_slowly_delays_no_other(tmp_path: Path) -> None:
    async with shared(tmp_path / "journal") as session:
        _, slow = await session.ask_alone(calling("flood", id="1", arguments='{"messages":3000}'))
        _, other = await session.ask_alone(calling("read_file", id="2"))
        async with asyncio.timeout(60):
            assert (await heard(other))["id"] == 2
        messages = slow.drain()
        assert json.loads(messages[-1])["id"] == 1
        assert sum(map(len, messages)) < 2 * 1024 * 1024


LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
LOGGED = ',"_meta":{"io.modelcontextprotocol/logLevel":"info"}'


@pytest.mark.parametrize(
    ("others", "level", "heard_by"),
    [
        ([], "", [True]),
        ([("subscriptions/listen", "", "me")], "", [False, True]),
        ([("vendor/slow", "", "me")], LOGGED, [False, True]),
        ([("vendor/slow", "", "me")], "", [False, False]),  # it may be about either
        ([("vendor/slow", LOGGED, "me")], LOGGED, [True, True]),
        ([("vendor/slow", LOGGED.replace("info", "error"), "me")], LOGGED, [False, True]),
        ([("vendor/slow", LOGGED, "somebody else")], LOGGED, [False, False]),
        ([("vendor/slow", "", "somebody else")], LOGGED, [False, False]),
    ],
)
async def test_a_log_message_reaches_each_request_that_wants_it_if_one_asker_sent_all(
    others: list[tuple[str, str, str]], level: str, heard_by: list[bool], tmp_path: Path
) -> None:
    async with shared(tmp_path / "journal") as session:
        outboxes = []
        for method, wanted, asker in others:
            asked = asking(method, id="7", params=f'{{"name":"unanswered"{wanted}}}')
            is_subscription = method == "subscriptions/listen"
            _, outbox = await session.ask_alone(asked, is_subscription=is_subscription, asker=asker)
            outboxes.append(outbox)
        params = f'{{"name":"say","arguments":{json.dumps({"raw": LOG})}{level}}}'
        asked = asking("tools/call", id="2", params=params)
        _, outbox = await session.ask_alone(asked, asker="me")
        said = [await heard(outbox)]
        if "method" in said[0]:
            said.append(await heard(outbox))
        found = [[json.loads(one) for one in other.drain()] for other in outboxes]
        assert ["method" in str(one) for one in [*found, said]] == heard_by


async def test_a_client_that_leaves_while_we_write_leaves_nothing_behind(tmp_path: Path) -> None:
    async with shared(tmp_path / "journal") as ours:
        asking = asyncio.ensure_future(ours.ask_alone(calling("read_file", id="1")))
        while not ours.is_in_use:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not ours.is_in_use
