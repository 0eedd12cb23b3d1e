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
from tests.bench.ways import DIRECT, ENVOY, FASTMCP_PROXY, LAUNCHER, NGINX, SCRIPT, STOCK

_COLOURS = {
    DIRECT: "#b8bec6", NGINX: "#8a94a0", ENVOY: "#a78bb5", STOCK: "#e0a458", SCRIPT: "#5b8fc7",
    LAUNCHER: "#1f5fa8", FASTMCP_PROXY: "#b5544d",
}  # fmt: skip
_OTHERS = ("#2c8c6b", "#7a5ca8")


def plot(results: Results, path: Path) -> None:
    """Draw how many calls a second, what a call waits, and what a list costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, 2, figsize=(12, 9.5), dpi=110, gridspec_kw={"height_ratios": (1.25, 1)}
    )
    more, less = "Calls per second (1 KB): more is better", "Milliseconds per call: less is better"
    _bars(axes[0][0], results.calls, "rate", more, (1, 16, 64))
    _bars(axes[0][1], results.calls, "p50", less, (1, 16))
    for each in axes[0]:
        each.get_legend().remove()
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="upper center", ncol=6, frameon=False
    )
    _sizes(axes[1][0], results.calls)
    _lists(axes[1][1], results.lists)
    figure.tight_layout(rect=(0, 0, 1, 0.965))  # the legend is above
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _bars(axes: Any, calls: Table, what: str, title: str, clients: tuple[int, ...]) -> None:
    """Draw lying bars: their figures stand behind them, where they cannot meet."""
    groups = {f"call, 1 KB, {n} client{'s' if n > 1 else ''}": n for n in clients}
    present = [one for one in groups if one in calls]
    names = [name for name in _COLOURS if any(name in calls[one] for one in present)]
    height = 0.84 / max(1, len(names))
    for at, name in enumerate(names):
        found = [(place, calls[one].get(name)) for place, one in enumerate(present)]
        drawn = [(y, getattr(one, what)) for y, one in found if isinstance(one, Measured)]
        bars = axes.barh(
            [y + (at - len(names) / 2 + 0.5) * height for y, _ in drawn],
            [x for _, x in drawn], height * 0.9, label=name, color=_COLOURS[name],
        )  # fmt: skip
        axes.bar_label(bars, [_plain(x) for _, x in drawn], padding=2, fontsize=7)
    counts = [groups[one] for one in present]
    axes.set_yticks(range(len(present)), [f"{n} client{'s' if n > 1 else ''}" for n in counts])
    axes.invert_yaxis()
    _dress(axes, title, axes.xaxis)
    axes.margins(x=0.12)


def _sizes(axes: Any, calls: Table) -> None:
    sizes = {"1 KB": 1, "100 KB": 100, "5 MB": 5 * 1024}
    for suffix, style in (("", "-"), (", SSE", ":")):
        for name in (STOCK, LAUNCHER):
            points = []
            for size, kilobytes in sizes.items():
                found = calls.get(f"call, {size}{suffix}, 1 client", {}).get(name)
                if isinstance(found, Measured):
                    points.append((kilobytes, found.p50))
            if points:
                axes.plot(*zip(*points, strict=True), style, marker="o", color=_COLOURS[name],
                          label=name + suffix)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(list(sizes.values()), list(sizes))
    axes.minorticks_off()
    _dress(axes, "Milliseconds per call, by the size of its result", axes.yaxis)


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
    axes.set_xticks(list(rows), [f"{number:,} tools" for number in rows])
    axes.minorticks_off()
    _dress(axes, "Milliseconds per tools/list, by the number of tools", axes.yaxis)


def _dress(axes: Any, title: str, figures: Any) -> None:
    """Label an axes; ``figures`` is the axis that has the figures, on a logarithmic scale."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axes.set_xscale if figures is axes.xaxis else axes.set_yscale)("log")
    low, high = figures.get_view_interval()
    is_short = high / low < 1000  # too few powers of ten to read a value between them
    figures.set_major_locator(LogLocator(subs=(1, 2, 5) if is_short else (1,)))
    figures.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    figures.set_minor_formatter(NullFormatter())
    axes.set_title(title, fontsize=11)
    axes.grid(axis="x" if figures is axes.xaxis else "y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def _plain(value: float) -> str:
    """Write a figure as people do.

    >>> [_plain(value) for value in (42992.3, 298.2, 12.83, 5.0, 0.0637)]
    ['42,992', '298', '12.8', '5', '0.064']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


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
