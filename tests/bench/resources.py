"""What a way costs before anyone asks, and while nobody does: time to start, memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.bench import rounds as measuring
from tests.bench.load import check, connect, connected, drive, renew_session
from tests.bench.rounds import LIST, MEBIBYTE, Measured, Scenario, call, large_scenarios
from tests.bench.ways import LAUNCHER, Running, running, started, until_answered, way

_STREAMS = 200


def start_up(names: Sequence[str], upstream: int, home: Path, rounds: int) -> dict[str, float]:
    """Milliseconds from the command to the first answer that a client has."""
    took: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            one = way(name, upstream, home)
            began = time.perf_counter()
            with started(one):
                until_answered(one.port)
                took[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(times) for name, times in took.items()}


def resident(
    names: Sequence[str], upstream: int, home: Path, seconds: float = 1.0
) -> dict[str, tuple[float, float]]:
    """Megabytes after the first answer, and after many calls and a list."""
    found = {}
    for name in names:
        with running(way(name, upstream, home)) as it:
            idle = it.megabytes()
            with connected(it.port, 16) as clients:
                drive(clients, call(1024, "json"), seconds)
            with connected(it.port, 1) as clients:
                drive(clients, LIST, 0.1)
            found[name] = (idle, it.megabytes())
    return found


def peaks(names: Sequence[str], upstream: int, home: Path) -> dict[str, dict[str, float]]:
    """How much memory one large result takes, as a multiple of its size, by scenario and way."""
    found: dict[str, dict[str, float]] = {}
    for scenario in large_scenarios():
        if not scenario.name.startswith("5 MB"):
            continue
        row = found[scenario.title] = {}
        for name in names:
            with running(way(name, upstream, home)) as it, connected(it.port, 1) as (client,):
                drive([client], call(1024, "json"), 0.1)
                it.forget_peak()
                before = it.megabytes()
                answer = client.answer(client.request(scenario.question.body()))
                check(answer, scenario.question)
                row[name] = (it.peak_megabytes() - before) / (len(answer) / MEBIBYTE)
    return found


def idle_streams(names: Sequence[str], upstream: int, home: Path) -> dict[str, float]:
    """Kilobytes that one more client costs who only listens on its GET stream."""
    found = {}
    for name in names:
        with running(way(name, upstream, home)) as it, ExitStack() as stack:
            _listen(it, 20, stack)  # what the first ones need is not theirs alone
            before = it.megabytes()
            _listen(it, _STREAMS, stack)
            found[name] = (it.megabytes() - before) * 1024 / _STREAMS
    return found


def _listen(it: Running, number: int, stack: ExitStack) -> None:
    for _ in range(number):
        client = connect(it.port)
        stack.callback(client.sock.close)
        client.ask(client.request(b"", "GET"))
        while b"\r\n\r\n" not in client.heard:
            client.hears_all()


def among_sessions(
    upstream: int, home: Path, others: int, rounds: int, seconds: float
) -> dict[str, Measured | str]:
    """Calls through a launcher that knows many other sessions, and through one that does not."""
    with (
        running(way(LAUNCHER, upstream, home)) as alone,
        running(way(LAUNCHER, upstream, home)) as busy,
    ):
        client = connect(busy.port)
        for _ in range(others):
            renew_session(client)
        client.sock.close()
        ways = [replace(alone, name="alone"), replace(busy, name=f"among {others}")]
        scenario = Scenario("call, 1 KB", call(1024, "json"))
        return dict(measuring.side_by_side(ways, [scenario], rounds, seconds))[scenario.title]
