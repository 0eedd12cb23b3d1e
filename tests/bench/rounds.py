"""Side by side: every way is gone for a moment in each round, one after the other.

What the machine does besides falls on all of them alike; the median round counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.bench.load import Question, Slice, connected, drive
from tests.bench.ways import DIRECT, ENVOY, NGINX, PUMP, STOCK, Running

MEBIBYTE = 1024 * 1024
_WITHOUT_FILTER = frozenset({DIRECT, PUMP, NGINX, ENVOY, STOCK})


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked, by how many at once."""

    name: str
    question: Question
    clients: int = 1
    needs_filter: bool = False
    """Without a filter there is nothing to compare."""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of all rounds."""

    rate: float
    """Answers a second."""
    p50: float
    """Milliseconds."""
    p99: float
    processor: float
    """Microseconds that it computes for each answer: what else the machine does hardly counts."""
    rounds: tuple[float, ...] = field(repr=False)
    """The rate in each round, for ratios."""


type Table = dict[str, dict[str, Measured | str]]
"""Scenario by scenario, way by way; a text says why there is no figure."""


def call(size: int, how: str, what: str = "text") -> Question:
    arguments = {"bytes": size, "as": how} | ({"what": what} if what != "text" else {})
    params = {"name": "answer", "arguments": arguments}
    return Question("tools/call", params, _EXPECTED[what], at_least=size * 9 // 10)


_EXPECTED = {
    "text": b"A line such as",
    "rows": b'"row 1"',
    "rows in a text": b'\\"row 1\\"',
    "base64": b"iVBORw0K",
}
LARGE = tuple(_EXPECTED)
_REFUSALS = (b"Tool not found: danger_1", b"RBAC: access denied")  # ours, and Envoy's
DENIED = Question("tools/call", {"name": "danger_1", "arguments": {"path": "a"}}, _REFUSALS)
LIST = Question("tools/list", {}, b"tool_2")


def scenarios(*, short: bool = False) -> list[Scenario]:
    if short:
        return [
            Scenario("call, 1 KB", call(1024, "json"), 1),
            Scenario("call, 1 KB", call(1024, "json"), 16),
            Scenario("call, 1 KB, SSE", call(1024, "sse"), 16),
            Scenario("denied call", DENIED, 1, needs_filter=True),
            Scenario("list, 20 tools", LIST, 1),
        ]
    found = []
    for how, suffix in (("json", ""), ("sse", ", SSE")):
        found += [Scenario(f"call, 1 KB{suffix}", call(1024, how), n) for n in (1, 16, 64)]
        found += [Scenario(f"call, 100 KB{suffix}", call(100 * 1024, how), n) for n in (1, 16)]
        found += [Scenario(f"call, 5 MB{suffix}", call(5 * MEBIBYTE, how), 1)]
    found += [Scenario("denied call", DENIED, n, needs_filter=True) for n in (1, 16)]
    found += [Scenario("list, 20 tools", LIST, n) for n in (1, 16)]
    return found


def large_scenarios() -> list[Scenario]:
    """Results of tools, which are most of the bytes that pass."""
    return [
        Scenario(f"{size} of {what}{suffix}", call(number, how, what))
        for size, number in (("100 KB", 100 * 1024), ("5 MB", 5 * MEBIBYTE))
        for how, suffix in (("json", ""), ("sse", ", SSE"))
        for what in LARGE
    ]


def side_by_side(
    ways: Sequence[Running], asked: Iterable[Scenario], rounds: int, seconds: float
) -> Iterator[tuple[str, dict[str, Measured | str]]]:
    """Yield each scenario's row when it is complete."""
    for scenario in asked:
        slices: dict[str, list[tuple[Slice, float]]] = {}
        failed: dict[str, str] = {}
        for number in range(rounds):
            turn = number % len(ways)
            for way in (*ways[turn:], *ways[:turn]):
                if (scenario.needs_filter and way.name in _WITHOUT_FILTER) or way.name in failed:
                    continue
                try:
                    slices.setdefault(way.name, []).append(_slice(way, scenario, seconds))
                except (OSError, AssertionError) as error:
                    failed[way.name] = str(error)[-200:]
        row: dict[str, Measured | str] = {
            way.name: _median(slices[way.name]) for way in ways if slices.get(way.name)
        }
        yield scenario.title, {**row, **failed}


def _slice(way: Running, scenario: Scenario, seconds: float) -> tuple[Slice, float]:
    with connected(way.port, scenario.clients) as clients:
        before = way.processor_time()
        found = drive(clients, scenario.question, seconds)
        return found, (way.processor_time() - before) / (len(found.latencies) + len(clients))


def _median(turns: list[tuple[Slice, float]]) -> Measured:
    slices = [one for one, _ in turns]
    return Measured(
        rate=statistics.median(one.rate for one in slices),
        p50=statistics.median(one.quantile(0.5) for one in slices) * 1000,
        p99=statistics.median(one.quantile(0.99) for one in slices) * 1000,
        processor=statistics.median(computed for _, computed in turns) * 1e6,
        rounds=tuple(one.rate for one in slices),
    )


def ratio(row: dict[str, Measured | str], one: str, other: str) -> float | None:
    """How many times as quick: the median of what the rounds say, each by itself."""
    ours, theirs = row.get(one), row.get(other)
    if not isinstance(ours, Measured) or not isinstance(theirs, Measured):
        return None
    pairs = zip(ours.rounds, theirs.rounds, strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def added(row: dict[str, Measured | str], one: str, quantile: str = "p50") -> float | None:
    """Milliseconds that a way adds to going directly."""
    ours, direct = row.get(one), row.get(DIRECT)
    if not isinstance(ours, Measured) or not isinstance(direct, Measured):
        return None
    return float(getattr(ours, quantile) - getattr(direct, quantile))
