"""Does it keep its word for hours, among clients and upstreams that do not keep theirs?

    python -m tests.bench.soak --seconds 600 --sessions 40

All of it on the loopback, in three parts for each program: sessions that ask, leave and misbehave
while the upstream cuts connections; thousands of sessions and streams that come and go; and the
upstream killed while everyone waits. Then the first part once more with ``serve``: ten servers,
whose file changes every second. It fails if a call is lost or wrongly answered, if memory or open
files keep growing, if the loss is not told to each, or, in a run of a minute, if a client of one
server waits long for those of others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from tests.bench.soak import served
from tests.bench.soak.clients import Broken
from tests.bench.soak.ledger import Ledger
from tests.bench.soak.sessions import come_and_go, keep_on, lose
from tests.bench.ways import ADDON, LAUNCHER, REPOSITORY, SCRIPT, Running, until_answered, way
from tests.raw_upstream import free_port

SERVE = "serve"
_COMING = "come and go"
_SAMPLES = 40
_BATCHES = 6
_AT_ONCE = 20
_GROWTH = 0.05  # of memory, in the last quarter over the one before
_KEPT = 2.0  # kilobytes for each session; one that was not closed is remembered, up to 10,000
_WARM = 60.0  # seconds until it has all that it needs
_ENOUGH = 1000  # sessions, to tell a leak from noise
_FILES = 10  # that may be open at rest
_LONGEST_WAIT = 0.25  # seconds, for others
_LAST_WORDS = "Error: Lost connection to upstream MCP\nShutting down proxy\n"


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    megabytes: float
    files: int
    calls: int
    sessions: int


@dataclass(slots=True)
class Found:
    """What was seen of one program in one part."""

    way: str
    part: str
    ledger: Ledger = field(default_factory=Ledger)
    of_servers: list[Ledger] = field(default_factory=list)
    """What the ledger will be the sum of, where each server has its own."""
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """How much more memory there is in the last quarter than in the one before."""
        quarter = len(self.samples) // 4
        if not quarter:
            return 0.0
        before = statistics.median(s.megabytes for s in self.samples[-2 * quarter : -quarter])
        return statistics.median(s.megabytes for s in self.samples[-quarter:]) / before - 1

    @property
    def kept(self) -> float:
        """How many kilobytes stay behind for each session that came and went, after a while."""
        if len(self.samples) < 2:
            return 0.0
        middle, last = self.samples[len(self.samples) // 2], self.samples[-1]
        sessions = max(1, last.sessions - middle.sessions)
        return (last.megabytes - middle.megabytes) * 1024 / sessions


@dataclass(slots=True)
class Stage:
    """A program before an upstream of its own."""

    upstream: subprocess.Popen[bytes]
    proxy: subprocess.Popen[bytes]
    port: int
    log: IO[bytes]

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.proxy.pid}/fd").iterdir()))

    @property
    def megabytes(self) -> float:
        return Running("", self.port, (self.proxy.pid,)).megabytes()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


@contextmanager
def _upstream() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    command = [sys.executable, "-m", "tests.bench.soak.upstream"]
    upstream = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert upstream.stdout
    try:
        yield upstream, int(upstream.stdout.readline())
    finally:
        upstream.kill()
        upstream.wait()
        upstream.stdout.close()


@contextmanager
def staged(name: str) -> Iterator[Stage]:
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryFile() as log,
        _upstream() as (upstream, upstream_port),
    ):
        quiet = ("--set", "flow_detail=0") if name == SCRIPT else ()  # as in a long run
        one = way(name, upstream_port, Path(home), *quiet)
        env = {**os.environ, "PYTHONPATH": str(ADDON)}
        proxy = subprocess.Popen(one.command, stdout=subprocess.DEVNULL, stderr=log, env=env)
        try:
            until_answered(one.port)
            yield Stage(upstream, proxy, one.port, log)
        finally:
            proxy.kill()
            proxy.wait()


@contextmanager
def _served() -> Iterator[tuple[Stage, Path, int]]:
    """Run ``serve``; yield it, its file, and the port of its servers."""
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryFile() as log,
        _upstream() as (upstream, upstream_port),
    ):
        file = Path(home) / "servers.toml"
        file.write_text(served.config(upstream_port, 0))
        port = free_port()
        command = [sys.executable, "-m", "mcp_tool_filter", "serve", "--config", str(file)]
        env = {**os.environ, "PYTHONPATH": str(ADDON), "HOME": home}
        proxy = subprocess.Popen(
            [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=log, env=env
        )
        try:
            until_answered(port)
            yield Stage(upstream, proxy, port, log), file, upstream_port
        finally:
            proxy.kill()
            proxy.wait()


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    parts = [
        partial(_soak, sessions=args.sessions, seconds=args.seconds),
        partial(_come_and_go, visits=args.visits),
        partial(_lose, sessions=args.sessions),
    ]
    found = []
    for name in [one for one in (SCRIPT, LAUNCHER) if args.way in ("both", one)]:
        for part in parts:
            with staged(name) as stage:
                found.append(_report(part(name, stage)))
    if args.way in ("both", SERVE):
        found.append(_report(_serve(args.seconds)))
    problems = [f"{one.way}, {one.part}: {why}" for one in found for why in one.problems]
    print("\n".join(["", *problems]) if problems else "\nNothing is wrong.")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the first part, each way")
    parser.add_argument("--sessions", type=int, default=20, help="at a time")
    parser.add_argument("--visits", type=int, default=3000, help="of the second part")
    parser.add_argument("--way", choices=["both", SCRIPT, LAUNCHER, SERVE], default="both")
    return parser


# The parts


def _soak(name: str, stage: Stage, sessions: int, seconds: float) -> Found:
    found = Found(name, "soak")
    at_rest = stage.files

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(stage, found, seconds / _SAMPLES))
            all_of_them = (keep_on(stage.port, found.ledger, seconds) for _ in range(sessions))
            await asyncio.gather(*all_of_them)
            watching.cancel()
        await _until_at_rest(stage, at_rest)

    asyncio.run(run())
    _judge(found, stage, at_rest)
    return found


def _serve(seconds: float) -> Found:
    found = Found(SERVE, "soak")
    ledgers = found.of_servers
    ledgers.extend(Ledger(f"/s{number}/mcp") for number in range(served.SERVERS))

    async def run(stage: Stage, file: Path, upstream: int) -> served.Waits:
        watching = asyncio.create_task(_watch(stage, found, seconds / _SAMPLES))
        pid = stage.proxy.pid
        waits = await served.run(stage.port, pid, file, upstream, ledgers, seconds)
        watching.cancel()
        await _until_at_rest(stage, at_rest)
        return waits

    with _served() as (stage, file, upstream):
        at_rest = stage.files
        waits = asyncio.run(run(stage, file, upstream))
        for ledger in ledgers:
            found.ledger.add(ledger)
        _judge(found, stage, at_rest)
    print(f"\n{SERVE}: the longest of {waits.made} waits took {waits.longest * 1000:.0f} ms")
    if waits.longest > _LONGEST_WAIT and seconds >= _WARM:
        found.problems.append(f"one client waited {waits.longest * 1000:.0f} ms for others")
    return found


def _come_and_go(name: str, stage: Stage, visits: int) -> Found:
    found = Found(name, _COMING)
    at_rest, began = stage.files, time.monotonic()

    async def some(number: int) -> None:
        for _ in range(number):
            try:
                await come_and_go(stage.port, found.ledger)
            except Broken as error:
                found.ledger.note_lost(f"a visit: {error!r}")

    async def run() -> None:
        for _ in range(_BATCHES):
            each = max(1, visits // _BATCHES // _AT_ONCE)
            await asyncio.gather(*(some(each) for _ in range(_AT_ONCE)))
            await _until_at_rest(stage, at_rest)
            found.samples.append(_sample(stage, found, began))

    asyncio.run(run())
    if found.kept > _KEPT and found.ledger.sessions >= _ENOUGH:
        found.problems.append(f"{found.kept:.1f} KB stay behind for each session")
    _judge(found, stage, at_rest)
    return found


def _lose(name: str, stage: Stage, sessions: int) -> Found:
    found = Found(name, "loss")
    asyncio.run(lose(stage.port, found.ledger, sessions, stage.upstream.kill))
    try:
        if (code := stage.proxy.wait(10)) != 1:
            found.problems.append(f"exit code {code}")
    except subprocess.TimeoutExpired:
        found.problems.append("the process does not end")
    if not stage.said().endswith(_LAST_WORDS):
        found.problems.append(f"its last words: {stage.said()[-300:]!r}")
    if found.ledger.told != 2 * sessions:
        found.problems.append(f"{found.ledger.told} of {2 * sessions} were told of the loss")
    _judge_ledger(found)
    return found


async def _watch(stage: Stage, found: Found, interval: float) -> None:
    began = time.monotonic()
    while True:
        found.samples.append(_sample(stage, found, began))
        await asyncio.sleep(interval)


def _sample(stage: Stage, found: Found, began: float) -> Sample:
    ledgers = found.of_servers or [found.ledger]
    calls = sum(one.made.total() for one in ledgers)
    sessions = sum(one.sessions for one in ledgers)
    return Sample(time.monotonic() - began, stage.megabytes, stage.files, calls, sessions)


async def _until_at_rest(stage: Stage, at_rest: int) -> None:
    for _ in range(100):
        if stage.files <= at_rest:
            return
        await asyncio.sleep(0.1)


def _judge(found: Found, stage: Stage, at_rest: int) -> None:
    if (code := stage.proxy.poll()) is not None:
        found.problems.append(f"it has ended with {code}: {stage.said()[-500:]}")
    elif stage.files > at_rest + _FILES:
        found.problems.append(f"{stage.files} files are open at rest, {at_rest} at first")
    if found.growth > _GROWTH and found.samples[-1].seconds >= _WARM:
        found.problems.append(f"memory still grows: {found.growth:.1%} in the last quarter")
    if "Traceback" in stage.said():
        found.problems.append("a traceback: " + stage.said().partition("Traceback")[2][-1500:])
    _judge_ledger(found)


def _judge_ledger(found: Found) -> None:
    ledger = found.ledger
    if ledger.lost or ledger.wrong or ledger.unaccounted:
        found.problems.append("calls were lost or wrongly answered: " + "\n".join(ledger.evidence))


# What is printed


def _report(found: Found) -> Found:
    print(f"\n{found.way}, {found.part}: {found.ledger.row()}")
    if found.samples:
        if found.part == _COMING:
            print(f"{found.kept:.1f} KB kept for each session")
        print("   seconds      MB   files    calls")
    for one in found.samples[:: max(1, len(found.samples) // 10)]:
        print(f"  {one.seconds:8.1f} {one.megabytes:7.1f} {one.files:7} {one.calls:8}")
    print("\n".join(found.problems), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
