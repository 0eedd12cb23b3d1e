"""What the figures should be, and whether they are. Ratios of one run, never times alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.rounds import Measured, Table, added, ratio
from tests.bench.ways import AUDITED, DIRECT, ENVOY_MCP, FASTMCP_PROXY, LAUNCHER, SCRIPT, STOCK

_ONE, _SIXTEEN = "call, 1 KB, 1 client", "call, 1 KB, 16 clients"
_DENIED, _LIST = "denied call, 1 client", "list, 20 tools, 1 client"


@dataclass(slots=True, kw_only=True)
class Results:
    """All of a run."""

    calls: Table = field(default_factory=dict)
    large: Table = field(default_factory=dict)
    audit: Table = field(default_factory=dict)
    """With the audit log and without it."""
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)
    """How often a large result's size was held in memory, by scenario and way."""
    lists: dict[int, Table] = field(default_factory=dict)
    """By the number of tools."""
    start_up: dict[str, float] = field(default_factory=dict)
    """Milliseconds to the first answer."""
    resident: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Megabytes, idle and after work, by the number of tools."""
    idle_stream: dict[str, float] = field(default_factory=dict)
    """Kilobytes for each."""
    sessions: dict[str, Measured | str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    found: float
    wanted: float
    unit: str = "x"
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least"
        mark = "reached" if self.is_reached else "NOT reached"
        return f"{self.what}: {self.found:.2f} {self.unit} ({bound} {self.wanted:g}): {mark}"


def targets(results: Results) -> Iterator[Target]:
    """Compare what was measured with what was promised."""
    calls = results.calls
    for title, ours, script in ((_ONE, 4.0, 2.0), (_SIXTEEN, 9.0, 2.5)):
        yield from _at_least(f"launcher / mitmdump, {title}", calls, title, LAUNCHER, STOCK, ours)
        yield from _at_least(
            f"mitmdump -s / mitmdump, {title}", calls, title, SCRIPT, STOCK, script
        )
        yield from _at_least(
            f"launcher / FastMCP's proxy, {title}", calls, title, LAUNCHER, FASTMCP_PROXY, 10.0
        )
    row = calls.get(_SIXTEEN, {})
    if (computes := _computes(row, LAUNCHER, STOCK)) is not None:
        yield Target(f"launcher / mitmdump, processor, {_SIXTEEN}", computes, 0.1, at_most=True)
    yield from _at_least(f"launcher / Envoy, {_SIXTEEN}", calls, _SIXTEEN, LAUNCHER, ENVOY_MCP, 0.8)
    if isinstance(ours_there := row.get(LAUNCHER), Measured):
        yield Target("processor time of a call, 16 clients", ours_there.processor, 70.0, "µs",
                     at_most=True)  # fmt: skip
    yield from _streams(calls)
    yield from _large(results.large)
    yield from _peaks(results.peaks)
    for title in (_ONE, _SIXTEEN):
        what = f"with the audit log / without, {title}"
        yield from _at_least(what, results.audit, title, AUDITED, LAUNCHER, 0.45)
    yield from _latencies(calls)
    yield from _answered_by_us(calls)
    yield from _resources(results)


def _at_least(
    what: str, table: Table, title: str, one: str, other: str, wanted: float
) -> Iterator[Target]:
    found = ratio(table.get(title, {}), one, other)
    if found is not None:
        yield Target(what, found, wanted)


def _computes(row: dict[str, Measured | str], one: str, other: str) -> float | None:
    """Return the ratio of what they compute: a busy machine disturbs it less than that of times."""
    ours, theirs = row.get(one), row.get(other)
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        return ours.processor / theirs.processor
    return None


def _large(large: Table) -> Iterator[Target]:
    """How long a large result takes, compared with mitmdump without a filter."""
    for title, row in large.items():
        wanted = 0.9 if title.startswith("100 KB") else 1.0
        for way in (SCRIPT, LAUNCHER):
            if times := ratio(row, STOCK, way):
                yield Target(f"{title}, {way} / mitmdump", times, wanted, at_most=True)
            if (computes := _computes(row, way, STOCK)) is not None:
                yield Target(f"{title}, {way} / mitmdump, processor", computes, wanted,
                             at_most=True)  # fmt: skip


def _peaks(peaks: dict[str, dict[str, float]]) -> Iterator[Target]:
    for title, row in peaks.items():
        for way in (SCRIPT, LAUNCHER):
            yield Target(f"{title}, memory, {way}", row[way], 3.0, "x its size", at_most=True)


def _latencies(calls: Table) -> Iterator[Target]:
    row = calls.get(_ONE, {})
    ours, theirs, slowest = added(row, LAUNCHER), added(row, STOCK), added(row, LAUNCHER, "p99")
    if ours is None or theirs is None or slowest is None:
        return
    yield Target("added latency, launcher / mitmdump", ours / theirs, 0.5, at_most=True)
    if (envoy := added(row, ENVOY_MCP)) is not None:
        yield Target("added latency, launcher / Envoy", ours / envoy, 0.85, at_most=True)
    yield Target("added latency of a call, p50", ours, 0.5, "ms", at_most=True)
    yield Target("added latency of a call, p99", slowest, 2.0, "ms", at_most=True)


def _streams(calls: Table) -> Iterator[Target]:
    """How much longer a call takes if its answer is an event."""
    for clients in ("1 client", "16 clients"):
        json, sse = (
            calls.get(f"call, 1 KB{how}, {clients}", {}).get(LAUNCHER) for how in ("", ", SSE")
        )
        if isinstance(json, Measured) and isinstance(sse, Measured):
            what = f"call answered with an event / with JSON, {clients}"
            yield Target(what, sse.p50 / json.p50, 1.1, at_most=True)


def _answered_by_us(calls: Table) -> Iterator[Target]:
    through_stock, envoy = (calls.get(_ONE, {}).get(way) for way in (STOCK, ENVOY_MCP))
    for what, title in (("denied call", _DENIED), ("cached list", _LIST)):
        for way in (LAUNCHER, SCRIPT):
            ours = calls.get(title, {}).get(way)
            if isinstance(ours, Measured) and isinstance(through_stock, Measured):
                least = through_stock.p50
                yield Target(f"{what} / call through mitmdump, {way}", ours.p50 / least, 1.0,
                             at_most=True)  # fmt: skip
                yield Target(f"{what}, p50, {way}", ours.p50, 1.0, "ms", at_most=True)
        ours = calls.get(title, {}).get(LAUNCHER)
        if isinstance(ours, Measured) and isinstance(envoy, Measured):
            yield Target(f"{what} / call through Envoy, launcher", ours.p50 / envoy.p50, 0.8,
                         at_most=True)  # fmt: skip


def _resources(results: Results) -> Iterator[Target]:
    if LAUNCHER in results.start_up:
        times = results.start_up[LAUNCHER] / results.start_up[STOCK]
        yield Target("start to first answer, launcher / mitmdump", times, 0.47, at_most=True)
        yield Target("start to first answer, launcher", results.start_up[LAUNCHER], 180.0, "ms",
                     at_most=True)  # fmt: skip
    by_tools = results.resident
    if by_tools and LAUNCHER in (fewest := by_tools[min(by_tools)]):
        times = fewest[LAUNCHER][1] / fewest[STOCK][1]
        yield Target("RSS, launcher / mitmdump", times, 0.46, at_most=True)
        yield Target("RSS, launcher", fewest[LAUNCHER][1], 35.0, "MB", at_most=True)
        grown = by_tools[max(by_tools)][LAUNCHER][0] - fewest[LAUNCHER][0]
        if len(by_tools) > 1:
            yield Target(f"RSS with {max(by_tools)} tools, more than with {min(by_tools)}",
                         grown, 10, "MB", at_most=True)  # fmt: skip
    if LAUNCHER in results.idle_stream:
        found = results.idle_stream[LAUNCHER]
        yield Target("idle SSE session", found, 16, "KB", at_most=True)


def far_off(results: Results) -> list[str]:
    """What a noisy machine does not explain: for CI."""
    wanted = [
        (_ONE, SCRIPT, STOCK, 0.5),
        (_SIXTEEN, SCRIPT, STOCK, 0.5),
        (_ONE, LAUNCHER, STOCK, 1.0),
        (_SIXTEEN, LAUNCHER, STOCK, 1.0),
        (_LIST, LAUNCHER, STOCK, 1.0),
        (_ONE, LAUNCHER, DIRECT, 0.02),
    ]
    found = []
    for title, one, other, least in wanted:
        times = ratio(results.calls.get(title, {}), one, other)
        if times is None or times < least:
            found.append(f"{title}: {one} / {other} = {times}, and should be at least {least}")
    return found
