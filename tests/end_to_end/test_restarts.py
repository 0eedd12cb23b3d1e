"""A dev server restarts again and again, under load, and the filter goes on (--keep-running).

Each call is answered. It fails only if the server was away at some moment of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest

from mcp_tool_filter.core.conversation.policy_in_force import LOST_ANSWER
from tests.attacks.hosts import hosted, in_each_host
from tests.make import calling
from tests.raw_client import MCP_HEADERS, Answer, post, raw_client
from tests.raw_upstream import TIMEOUT, free_port, until

from .peer import upstream

RESTARTS = 4
CLIENTS = 6
LOST = -32000
HEADERS = MCP_HEADERS + b"MCP-Protocol-Version: 2025-11-25\r\n"
NOT_FOUND = {"code": -32601, "message": "Tool not found: delete_file"}


@dataclass
class Traffic:
    """What several clients asked, when, and what they got."""

    port: int
    clients: list[asyncio.Task[None]] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[tuple[float, float, dict[str, object]]] = field(default_factory=list)
    refused: list[object] = field(default_factory=list)

    async def call(self, number: int) -> None:
        """Call one tool after the other; some keep their connection, others open new ones."""
        most = 3 if number % 2 else sys.maxsize
        while not self.done.is_set():
            async with raw_client(self.port) as client:
                for _ in takewhile(lambda _: not self.done.is_set(), range(most)):
                    begun = time.monotonic()
                    said = await self._ask(client.ask, number, "slow", {"ms": 20})
                    self.calls.append((begun, time.monotonic(), said))
                    denied = await self._ask(client.ask, number, "delete_file", {"path": "/"})
                    self.refused.append(denied.get("error"))

    async def _ask(
        self, ask: Callable[[bytes], Awaitable[Answer]], number: int, tool: str, given: object
    ) -> dict[str, object]:
        id = f"{number}-{len(self.calls)}"
        call = calling(tool, id=json.dumps(id), arguments=json.dumps(given))
        async with asyncio.timeout(TIMEOUT):
            got = await ask(post(call, headers=HEADERS))
        assert got.status == 200, got
        # Some answer with JSON, some with one event.
        said: dict[str, object] = json.loads(re.sub(rb"(?m)^event: .*|^data: ", b"", got.body))
        assert said["id"] == id
        return said

    async def goes_on(self) -> None:
        """Wait until some calls have succeeded."""
        begin = len(self.calls)
        async with asyncio.timeout(TIMEOUT):
            while sum("result" in said for _, _, said in self.calls[begin:]) < 5 * CLIENTS:
                assert not any(one.done() for one in self.clients), self.clients
                await asyncio.sleep(0.02)

    def failures(self, away: list[tuple[float, float]]) -> list[object]:
        """Return what failed although the server was there all the time."""
        failed = [one for one in self.calls if "result" not in one[2]]
        return [
            one for one in failed if not any(one[0] < back and one[1] > gone for gone, back in away)
        ]


class DevServer:
    """A real server on a port that it keeps, killed and started again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running = ExitStack()
        self.port = free_port()
        self.away: list[tuple[float, float]] = []
        """When it was killed, and when it could be reached again."""
        self._start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        flags = ("--stateless", "--json")
        self._there = self._running.enter_context(upstream(self._name, *flags, port=self.port))

    async def restart(self, when: Callable[[], Awaitable[None]]) -> None:
        """Kill it; start it again after ``when``."""
        gone = time.monotonic()
        self._there.process.kill()
        await when()
        self.close()
        await asyncio.to_thread(self._start)
        self.away.append((gone, time.monotonic()))

    def close(self) -> None:
        self._running.close()


@pytest.mark.parametrize("server", ["mcp1", "ts2"])
@in_each_host
async def test_only_calls_in_flight_are_lost_at_a_restart(
    host: str, server: str, tmp_path: Path
) -> None:
    option = "keep_running" if host == "launcher" else "fail_fast=false"
    with closing(DevServer(server)) as upstream:
        async with hosted(host, upstream.origin, tmp_path, option, deny="^delete_") as it:

            async def say(text: str, times: int) -> None:
                await until(lambda: it.stderr.count(text) >= times)

            traffic = Traffic(it.port)
            traffic.clients = [asyncio.create_task(traffic.call(one)) for one in range(CLIENTS)]
            for number in range(1, RESTARTS + 1):
                await traffic.goes_on()
                await upstream.restart(partial(say, "waiting for it to come back", number))
                await say("is back: its tools are the same", number)
            await traffic.goes_on()
            traffic.done.set()
            await asyncio.gather(*traffic.clients)
            it.interrupt()
            assert await it.exit_code() == 0, it.stderr
        said = it.stderr
        assert traffic.failures(upstream.away) == []
    errors = [said["error"] for _, _, said in traffic.calls if "error" in said]
    assert errors
    assert all(error == {"code": LOST, "message": LOST_ANSWER} for error in errors)
    assert traffic.refused
    assert all(error == NOT_FOUND for error in traffic.refused)
    assert said.count("waiting for it to come back") == RESTARTS
    assert said.count("is back") == RESTARTS
    assert "Traceback" not in said
