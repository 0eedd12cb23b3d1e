"""The picture and the docs' figures, from what a run has written: python -m tests.bench.published

    python -m tests.bench --json .pictures/bench.json     # on a quiet machine
    python -m tests.bench.published                       # the picture, and a part of limits.md

A test compares both with the JSON, so no figure can be changed alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from tests.bench.ways import (
    AUDITED,
    DIRECT,
    ENVOY,
    ENVOY_MCP,
    FASTMCP_PROXY,
    LAUNCHER,
    NGINX,
    PUMP,
    REPOSITORY,
    SCRIPT,
    STOCK,
)

JSON = REPOSITORY / ".pictures" / "bench.json"
PICTURE = JSON.with_suffix(".svg")
PAGE = REPOSITORY / "addon" / "mcp_tool_filter" / "docs" / "limits.md"
_BEGIN, _END = "<!-- from .pictures/bench.json -->\n", "<!-- end of bench.json -->\n"
_WHAT = {
    PUMP: "a byte pump in asyncio, which reads nothing",
    NGINX: "nginx, no filter",
    ENVOY: "Envoy, router only",
    ENVOY_MCP: "Envoy with its MCP filter and RBAC (it cannot filter lists)",
    LAUNCHER: "**`mcp-tool-filter`**",
    SCRIPT: "**`mitmdump -s`**",
    STOCK: "`mitmdump` without the filter",
    FASTMCP_PROXY: "FastMCP's proxy, no filter",
}
_ONE, _SIXTEEN = "call, 1 KB, 1 client", "call, 1 KB, 16 clients"
_LIST, _DENIED = "list, 20 tools, 1 client", "denied call, 1 client"

type Said = dict[str, Any]
"""What ``--json`` has written."""


def main() -> int:
    said = json.loads(JSON.read_text())
    PICTURE.write_text(picture(said))
    PAGE.write_text(page_with(PAGE.read_text(), said))
    return 0


def page_with(page: str, said: Said) -> str:
    """Return the page with the figures of a run."""
    before, _, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"no place for the figures in {PAGE.name}")
    return "".join([before, _BEGIN, *(f"{line}\n" for line in figures(said)), _END, after])


# Figures


def figures(said: Said) -> Iterator[str]:
    """Yield the lines for the page."""
    machine = said["machine"]
    yield (
        f"Medians of one run, one after the other in each round (Python {machine['python']},"
        f" {machine['processors']} processors); clients and servers share the machine."
    )
    yield ""
    heads = ("through", "adds to a call of 1 KB", "calls a second, 16 clients",
             "processor time of a call", "a list of 20 tools", "a denied call")  # fmt: skip
    yield _row(heads)
    yield _row(["---"] + ["--:"] * (len(heads) - 1))
    for way, what in _WHAT.items():
        if any(_of(said, title, way) for title in (_ONE, _SIXTEEN)):
            yield _row([what, *_cells(said, way)])
    yield from _large(said)
    yield from _resources(said)


def _of(said: Said, title: str, way: str) -> dict[str, float] | None:
    """Return what was measured; None if it failed, or was not measured."""
    found = said["calls"].get(title, {}).get(way)
    return found if isinstance(found, dict) else None


def _cells(said: Said, way: str) -> Iterator[str]:
    one, direct = _of(said, _ONE, way), _of(said, _ONE, DIRECT)
    yield f"{_plain(one['p50'] - direct['p50'])} ms" if one and direct else ""
    sixteen = _of(said, _SIXTEEN, way)
    yield f"{sixteen['rate']:,.0f}" if sixteen else ""
    yield f"{sixteen['processor']:.0f} µs" if sixteen else ""
    for title in (_LIST, _DENIED):
        found = _of(said, title, way)
        yield f"{_plain(found['p50'])} ms" if found else ""


def _large(said: Said) -> Iterator[str]:
    if not said["large"]:
        return
    yield ""
    yield "The processor time of a large result, compared with `mitmdump` without the filter:"
    yield ""
    yield _row(["result", f"`{LAUNCHER}`", f"`{SCRIPT}`"])
    yield _row(["---", "--:", "--:"])
    for title, row in said["large"].items():
        theirs = row.get(STOCK)
        ours = [row.get(way) for way in (LAUNCHER, SCRIPT)]
        if isinstance(theirs, dict) and all(isinstance(one, dict) for one in ours):
            times = [f"{one['processor'] / theirs['processor']:.2f}" for one in ours]
            yield _row([title.removesuffix(", 1 client"), *times])


def _resources(said: Said) -> Iterator[str]:
    resident, start = said["resident"], said["start_up"]
    fewest, most = (sorted(resident, key=int)[at] for at in (0, -1)) if resident else ("", "")
    sentences = []
    if LAUNCHER in start:
        sentences.append(f"The launcher answers {start[LAUNCHER]:.0f} ms after its start.")
    if resident:
        idle, after = resident[fewest][LAUNCHER]
        more = resident[most][LAUNCHER][0] - idle
        sentences.append(f"It takes {after:.0f} MB after work; {int(most):,} tools take"
                         f" {more:.0f} MB more than {fewest}.")  # fmt: skip
    audited = said["audit"].get(_SIXTEEN, {})
    if all(isinstance(audited.get(way), dict) for way in (LAUNCHER, AUDITED)):
        times = audited[AUDITED]["processor"] / audited[LAUNCHER]["processor"]
        sentences.append(f"With an audit log, a small call takes {times:.1f} times the processor"
                         " time.")  # fmt: skip
    if peaks := [row[LAUNCHER] for row in said["peaks"].values()]:
        sentences.append(f"A large result takes up to {max(peaks):.1f} times its size.")
    if sentences:
        yield ""
        yield " ".join(sentences)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _plain(value: float) -> str:
    """Write a figure as people do.

    >>> [_plain(value) for value in (42992.3, 298.2, 12.83, 5.0, 0.0637)]
    ['42,992', '298', '12.8', '5.0', '0.064']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


# The picture

_COLOURS = {
    DIRECT: "#b8bec6", PUMP: "#98a1ab", NGINX: "#8a94a0", ENVOY: "#c3aecd", ENVOY_MCP: "#a78bb5",
    LAUNCHER: "#1f5fa8", SCRIPT: "#5b8fc7", STOCK: "#e0a458", FASTMCP_PROXY: "#b5544d",
}  # fmt: skip
_WIDTH, _LEFT, _ROW, _TITLE = 860, 170, 26, 44


def picture(said: Said) -> str:
    """Draw what a call waits, and how many calls a second there are, as SVG."""
    direct = _of(said, _ONE, DIRECT)
    adds = {
        way: found["p50"] - direct["p50"]
        for way in _COLOURS
        if direct and way != DIRECT and (found := _of(said, _ONE, way))
    }
    rates = {way: found["rate"] for way in _COLOURS if (found := _of(said, _SIXTEEN, way))}
    parts: list[str] = []
    height = 0
    for title, values in (
        ("Milliseconds added to a call of 1 KB: less is better", adds),
        ("Calls per second, 16 clients: more is better", rates),
    ):
        parts += _bars(title, values, height)
        height += _TITLE + _ROW * len(values) + 16
    return "".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="13">\n',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n', *parts, "</svg>\n",
    ])  # fmt: skip


def _bars(title: str, values: dict[str, float], top: int) -> Iterator[str]:
    yield f'<text x="12" y="{top + 28}" font-size="15" font-weight="bold">{title}</text>\n'
    longest = max(values.values(), default=1.0)
    for at, (way, value) in enumerate(values.items()):
        y = top + _TITLE + at * _ROW
        width = max(1.0, value / longest * (_WIDTH - _LEFT - 90))
        weight = ' font-weight="bold"' if way in (LAUNCHER, SCRIPT) else ""
        yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end"{weight}>{escape(way)}</text>\n'
        yield (
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 7}"'
            f' fill="{_COLOURS[way]}"/>\n'
        )
        yield f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{_plain(value)}</text>\n'


if __name__ == "__main__":
    sys.exit(main())
