"""The figures as tables that read alike in a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.rounds import Measured, Table, added, ratio
from tests.bench.targets import Results
from tests.bench.ways import STOCK


def render_row(title: str, row: dict[str, Measured | str]) -> str:
    """Write one scenario: rate, ratio to mitmdump, latency, and what is added to going directly."""
    titles = _lines("way", "answers/s", "x mitmdump", "p50", "p99", "added", "computes")
    return "\n".join([f"\n### {title}\n", *titles, *(_line(name, row) for name in row)])


def _line(name: str, row: dict[str, Measured | str]) -> str:
    found = row[name]
    if isinstance(found, str):
        return f"| {name} | failed: {found} |"
    times, more = ratio(row, name, STOCK), added(row, name)
    return _cells(
        name,
        f"{found.rate:.0f}",
        "" if times is None else f"{times:.2f}",
        f"{found.p50:.2f} ms",
        f"{found.p99:.2f} ms",
        "" if more is None else f"{more:.2f} ms",
        f"{found.processor:.0f} µs",
    )


def render_lists(lists: dict[int, Table]) -> str:
    """Write how long a list takes, by the number of tools."""
    names = list(next(iter(next(iter(lists.values())).values())))
    lines = ["\n### Milliseconds for a list, p50\n", *_lines("tools", *names)]
    for number, table in lists.items():
        row = next(iter(table.values()))
        lines.append(_cells(str(number), *(_p50(row.get(name)) for name in names)))
    return "\n".join(lines)


def render_peaks(peaks: dict[str, dict[str, float]]) -> str:
    """Write how often a large result's size was held in memory."""
    names = list(next(iter(peaks.values())))
    lines = ["\n### Memory that one result takes, times its size\n", *_lines("result", *names)]
    lines += [
        _cells(title, *(f"{found:.2f}" for found in row.values())) for title, row in peaks.items()
    ]
    return "\n".join(lines)


def render_resources(results: Results) -> str:
    return "\n".join(_resources(results))


def _resources(results: Results) -> Iterator[str]:
    yield "\n### Start, memory\n"
    by_tools = [f"RSS, {number} tools" for number in results.resident]
    yield from _lines("way", "first answer", "idle stream", *by_tools)
    for name in results.start_up:
        yield _cells(
            name,
            f"{results.start_up[name]:.0f} ms",
            f"{results.idle_stream[name]:.0f} KB" if name in results.idle_stream else "",
            *(_megabytes(found.get(name)) for found in results.resident.values()),
        )
    others = {name: found for name, found in results.sessions.items() if name != "alone"}
    for name in others:
        times = ratio(results.sessions, name, "alone")
        yield f"\nCalls {name} other sessions: {times or 0:.2f} times as quick as alone."


def _megabytes(found: tuple[float, float] | None) -> str:
    return f"{found[0]:.0f}, worked {found[1]:.0f} MB" if found else ""


def _p50(found: Measured | str | None) -> str:
    return f"{found.p50:.2f}" if isinstance(found, Measured) else "-"


def _lines(*titles: str) -> Iterator[str]:
    yield _cells(*titles)
    yield _cells("---", *("--:" for _ in titles[1:]))


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
