"""``serve`` with ten servers among clients that misbehave, while its file is read every second."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.bench.soak.clients import asking, streamable
from tests.bench.soak.ledger import Ledger
from tests.bench.soak.sessions import behave_as_of_old, keep_on, leave_an_old_stream
from tests.bench.soak.upstream import DENIED

SERVERS = 10
_CLIENTS = 2  # of each server
_OF_HTTP_SSE = (behave_as_of_old, leave_an_old_stream)  # these servers speak Streamable HTTP
_PAUSE = 0.02


def config(upstream: int, number: int) -> str:
    """Return the file with ten servers; the last one's policy changes with each number."""
    servers = [
        f'[servers.s{server}]\nurl = "http://127.0.0.1:{upstream}/mcp"\n'
        for server in range(SERVERS)
    ]
    return f'deny = ["{DENIED}"]\n' + "\n".join(servers) + f'deny = ["{DENIED}", "no{number}"]\n'


class Waits:
    """How long a well-behaved client waits for each ``ping``."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.made = 0
        self.is_over = False

    async def ask(self, port: int, ledger: Ledger) -> None:
        """Ask until it is over. What this process itself was late by is not the proxy's."""
        async with streamable(port, ledger) as session:
            while not self.is_over:
                began = time.monotonic()
                await asyncio.sleep(_PAUSE)
                late = time.monotonic() - began - _PAUSE
                began = time.monotonic()
                await session.ask(asking("ping", "ping", {}))
                self.longest = max(self.longest, time.monotonic() - began - late)
                self.made += 1


async def reload(file: Path, upstream: int, pid: int) -> None:
    """Change the file and have it read again, every second."""
    for number in range(1_000_000):
        await asyncio.sleep(1.0)
        file.write_text(config(upstream, number))
        os.kill(pid, signal.SIGHUP)


async def crowd(port: int, ledgers: list[Ledger], seconds: float) -> None:
    """Let clients of all servers but the first behave and misbehave for so long."""
    async with asyncio.TaskGroup() as group:
        for ledger in ledgers[1:]:
            for _ in range(_CLIENTS):
                group.create_task(keep_on(port, ledger, seconds, *_OF_HTTP_SSE))


async def run(
    port: int, pid: int, file: Path, upstream: int, ledgers: list[Ledger], seconds: float
) -> Waits:
    waits = Waits()
    pinging = asyncio.create_task(waits.ask(port, ledgers[0]))
    reloading = asyncio.create_task(reload(file, upstream, pid))
    await crowd(port, ledgers, seconds)
    waits.is_over = True
    await pinging
    reloading.cancel()
    with suppress(asyncio.CancelledError):
        await reloading
    return waits
