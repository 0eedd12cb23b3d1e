"""A real command that serves several clients of a stateless revision at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.child_session import ChildSession
from mcp_tool_filter.adapters.stdio.outbox import Outbox
from mcp_tool_filter.adapters.stdio.shared_session import SharedSession
from mcp_tool_filter.protocol.limits import Limits
from tests.make import calling
from tests.stdio_client import upstream


@asynccontextmanager
async def shared(journal: Path) -> AsyncIterator[SharedSession]:
    child = Child(upstream(journal=journal))
    session = ChildSession(child, Limits(), say=lambda _: None, on_end=lambda *_: None)
    try:
        yield SharedSession(session)
    finally:
        await session.close()


async def heard(outbox: Outbox) -> Any:
    said = await outbox.get()
    assert said
    return json.loads(said)


async def test_clients_may_use_the_same_id(tmp_path: Path) -> None:
    async with shared(tmp_path / "journal") as session:
        one, two = Outbox(), Outbox()
        await session.ask(calling("read_file", id='"same"'), one)
        await session.ask(calling("write_file", id='"same"'), two)
        answers = await asyncio.gather(heard(one), heard(two))
    assert [answer["id"] for answer in answers] == ["same", "same"]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == [
        "read_file",
        "write_file",
    ]


async def test_the_command_is_told_when_a_client_leaves(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with shared(journal) as session:
        number = await session.ask(calling("sleep", id="1", arguments='{"seconds":0}'), Outbox())
        session.leave(number)
        after = Outbox()
        await session.ask(calling("read_file", id="2"), after)
        await heard(after)
    said = [json.loads(line) for line in journal.read_bytes().splitlines()]
    cancelled = [one for one in said if one["method"] == "notifications/cancelled"]
    assert [one["params"] for one in cancelled] == [{"requestId": number}]


async def test_the_command_is_not_told_about_answered_requests(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with shared(journal) as session:
        outbox = Outbox()
        number = await session.ask(calling("read_file"), outbox)
        await heard(outbox)
        session.leave(number)
        after = Outbox()
        await session.ask(calling("write_file"), after)
        await heard(after)
    assert b"cancelled" not in journal.read_bytes()
