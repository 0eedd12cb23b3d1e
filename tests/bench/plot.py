"""The figures as one picture for the README, from what ``python -m tests.bench --json FILE`` wrote.

python -m tests.bench.plot FILE PICTURE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.bench.ways import DIRECT, ENVOY, FASTMCP_PROXY, LAUNCHER, NGINX, SCRIPT, STOCK

_COLOURS = {
    DIRECT: "#b8bec6", NGINX: "#8a94a0", ENVOY: "#a78bb5", STOCK: "#e0a458", SCRIPT: "#5b8fc7",
    LAUNCHER: "#1f5fa8", FASTMCP_PROXY: "#b5544d",
}  # fmt: skip
_REWRITTEN = "#2c8c6b"

type Rows = dict[Any, dict[str, Any]]
"""By number of clients, size or number of tools: the figures of each way, or why it failed."""


def plot(said: dict[str, Any], path: str) -> None:
    """Draw how many calls a second, what a call waits, and what a list costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    calls = said["calls"]
    by_clients = {n: calls[f"call, 1 KB, {n} client{'s' * (n > 1)}"] for n in (1, 16, 64)}
    lists = {f"{int(n):,} tools": next(iter(rows.values())) for n, rows in said["lists"].items()}
    ratios = {"height_ratios": (1.25, 1)}
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 9.5), dpi=110, gridspec_kw=ratios)
    _bars(axes[0][0], by_clients, "rate", "Calls per second (1 KB): more is better")
    del by_clients[64]
    _bars(axes[0][1], by_clients, "p50", "Milliseconds per call: less is better")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="upper center", ncol=7, frameon=False)
    for suffix, style in (("", "-"), (", SSE", ":")):
        found = {
            size: calls[f"call, {size}{suffix}, 1 client"] for size in ("1 KB", "100 KB", "5 MB")
        }
        _lines(axes[1][0], found, (STOCK, LAUNCHER), style, suffix)
    axes[1][0].set_title("Milliseconds per call, by the size of its result", fontsize=11)
    _lines(axes[1][1], lists, tuple(next(iter(lists.values()))))
    axes[1][1].set_title("Milliseconds per tools/list, by the number of tools", fontsize=11)
    for each in axes[1]:
        each.legend(fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.965))  # the legend is above
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _bars(axes: Any, rows: Rows, what: str, title: str) -> None:
    """Draw lying bars: their figures stand behind them, where they cannot meet."""
    names = [name for name in _COLOURS if any(_figures(row, name) for row in rows.values())]
    height = 0.84 / len(names)
    for at, name in enumerate(names):
        drawn = {y: row[name][what] for y, row in enumerate(rows.values()) if _figures(row, name)}
        places = [y + (at - len(names) / 2 + 0.5) * height for y in drawn]
        bars = axes.barh(places, drawn.values(), height * 0.9, label=name, color=_COLOURS[name])
        axes.bar_label(bars, map(_plain, drawn.values()), padding=2, fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{n} client{'s' * (n > 1)}" for n in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: _plain(value))
    axes.margins(x=0.12)
    axes.set_title(title, fontsize=11)


def _lines(axes: Any, rows: Rows, names: tuple[str, ...], style: str = "-", more: str = "") -> None:
    for name in names:
        points = {at: row[name]["p50"] for at, row in rows.items() if _figures(row, name)}
        colour = _COLOURS.get(name, _REWRITTEN)
        axes.plot(
            *zip(*points.items(), strict=True), style, marker="o", color=colour, label=name + more
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: _plain(value))
    axes.grid(axis="y", alpha=0.3)


def _figures(row: dict[str, Any], name: str) -> bool:
    """Tell whether a way was measured: it may have failed, or be absent."""
    return isinstance(row.get(name), dict)


def _plain(value: float) -> str:
    """Write a figure as people do.

    >>> [_plain(value) for value in (42992.3, 298.2, 12.83, 5.0, 0.0637)]
    ['42,992', '298', '12.8', '5', '0.064']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
