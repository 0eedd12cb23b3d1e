"""The figures as one picture for the README.

python -m tests.bench.plot results.json .pictures/bench.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.bench.rounds import Measured, Table
from tests.bench.targets import Results
from tests.bench.ways import DIRECT, FASTMCP_PROXY, LAUNCHER, NGINX, SCRIPT, STOCK

_COLOURS = {
    DIRECT: "#b8bec6", NGINX: "#8a94a0", STOCK: "#e0a458", SCRIPT: "#5b8fc7",
    LAUNCHER: "#1f5fa8", FASTMCP_PROXY: "#b5544d",
}  # fmt: skip
_OTHERS = ("#2c8c6b", "#7a5ca8")


def plot(results: Results, path: Path) -> None:
    """Draw how many calls a second, what a call waits, and what a list costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), dpi=110)
    _bars(axes[0][0], results.calls, "rate", "Calls a second (1 KB)", (1, 16, 64))
    _bars(axes[0][1], results.calls, "p50", "Milliseconds a call takes, p50 (1 KB)", (1, 16))
    axes[0][0].get_legend().remove()  # the next one says it, where there is room
    _sizes(axes[1][0], results.calls)
    _lists(axes[1][1], results.lists)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _bars(axes: Any, calls: Table, what: str, title: str, clients: tuple[int, ...]) -> None:
    titles = [f"call, 1 KB, {number} client{'s' if number > 1 else ''}" for number in clients]
    names = [name for name in _COLOURS if name in calls.get(titles[0], {})]
    width = 0.8 / max(1, len(names))
    for at, name in enumerate(names):
        found = [(place, calls[one].get(name)) for place, one in enumerate(titles) if one in calls]
        drawn = [(x, getattr(one, what)) for x, one in found if isinstance(one, Measured)]
        bars = axes.bar(
            [x + (at - len(names) / 2 + 0.5) * width for x, _ in drawn],
            [y for _, y in drawn], width * 0.92, label=name, color=_COLOURS[name],
        )  # fmt: skip
        axes.bar_label(bars, fmt="{:.3g}" if what == "p50" else "{:.0f}", fontsize=7)
    axes.set_xticks(range(len(titles)), [f"{n} client{'s' if n > 1 else ''}" for n in clients])
    _dress(axes, title)


def _sizes(axes: Any, calls: Table) -> None:
    sizes = {"1 KB": 1, "100 KB": 100, "5 MB": 5 * 1024}
    for suffix, style in (("", "-"), (", SSE", ":")):
        for name in (STOCK, LAUNCHER):
            points = []
            for size, kilobytes in sizes.items():
                found = calls.get(f"call, {size}{suffix}, 1 client", {}).get(name)
                if isinstance(found, Measured):
                    points.append((kilobytes, found.p50))
            axes.plot(*zip(*points, strict=True), style, marker="o", color=_COLOURS[name],
                      label=name + suffix) if points else None  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("KB of result")
    _dress(axes, "Milliseconds a call takes, by the size of its result")


def _lists(axes: Any, lists: dict[int, Table]) -> None:
    rows = {number: next(iter(table.values())) for number, table in lists.items()}
    names = list(next(iter(rows.values()))) if rows else []
    others = iter(_OTHERS)
    for name in names:
        found = [(number, row.get(name)) for number, row in rows.items()]
        points = [(number, one.p50) for number, one in found if isinstance(one, Measured)]
        colour = _COLOURS.get(name) or next(others)
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tools")
    _dress(axes, "Milliseconds a list takes, by its tools")


def _dress(axes: Any, title: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def read_results(path: Path) -> Results:
    """Read what a run has written, as far as it is drawn."""
    said = json.loads(path.read_text())
    lists = {int(number): _table(table) for number, table in said["lists"].items()}
    return Results(calls=_table(said["calls"]), lists=lists)


def _table(said: dict[str, dict[str, Any]]) -> Table:
    return {
        title: {
            name: found if isinstance(found, str) else Measured(**found)
            for name, found in row.items()
        }
        for title, row in said.items()
    }


if __name__ == "__main__":
    plot(read_results(Path(sys.argv[1])), Path(sys.argv[2]))
