"""A recording of a terminal as an SVG that moves, without a program to play it.

``.pictures/screen.txt`` has the frames as text, each below a line with the seconds that it stays:

    === 2.5

The SVG shows them one after the other, again and again. A reader that shows no animation shows the
frame that stays longest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLUMNS, ROWS = 104, 18
_WIDTH, _HEIGHT = 8.43, 18  # of a letter, in pixels
_MARGIN = 16

type Lines = tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    seconds: float
    lines: Lines


def wrapped(text: str) -> Lines:
    """Return the last rows of what a terminal shows of this text."""
    lines = [
        line[start : start + COLUMNS]
        for line in text.rstrip().splitlines()
        for start in range(0, max(1, len(line)), COLUMNS)
    ]
    return tuple(line.rstrip() for line in lines[-ROWS:])


def write_frames(frames: list[Frame]) -> str:
    return "".join(f"=== {one.seconds}\n" + "\n".join((*one.lines, "")) for one in frames)


def read_frames(text: str) -> list[Frame]:
    parts = re.split(r"^=== ([\d.]+)\n", text, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [Frame(float(seconds), tuple(lines.splitlines())) for seconds, lines in pairs]


def render_svg(frames: list[Frame]) -> str:
    """Draw the frames."""
    whole = sum(one.seconds for one in frames)
    longest = max(range(len(frames)), key=lambda number: frames[number].seconds)
    width, height = round(COLUMNS * _WIDTH) + 2 * _MARGIN, ROWS * _HEIGHT + 2 * _MARGIN
    styles, groups, begins = [], [], 0.0
    for number, frame in enumerate(frames):
        ends = begins + frame.seconds
        begin, end = (round(100 * at / whole, 2) for at in (begins, ends))
        steps = f"0%{{visibility:hidden}}{begin}%{{visibility:visible}}{end}%{{visibility:hidden}}"
        shown = "visible" if number == longest else "hidden"
        styles.append(
            f"@keyframes f{number}{{{steps}}}"
            f"#f{number}{{visibility:{shown};animation:f{number} {whole}s step-end infinite}}"
        )
        groups.append(f'<g id="f{number}">{"".join(_rows(frame.lines))}</g>')
        begins = ends
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}">\n<style>\n'
        "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6dbe2;"
        "white-space:pre}\n.key{fill:#7cc4ff}.head{fill:#fff;font-weight:bold}"
        ".more{fill:#7ddc9a}.less{fill:#ff9d94}\n" + "\n".join(styles) + "\n</style>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#14181d"/>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


_KINDS = (("head", r"\$ |.* in every conversation"), ("key", r"  \[r\]"), ("more", r"\+"),
          ("less", r"-"))  # fmt: skip


def _rows(lines: Lines) -> list[str]:
    rows = []
    for row, line in enumerate(lines):
        if line:
            kind = next((name for name, begin in _KINDS if re.match(begin, line)), "")
            of_kind = f' class="{kind}"' if kind else ""
            length = round(len(line) * _WIDTH, 1)
            top = _MARGIN + (row + 1) * _HEIGHT - 4
            rows.append(
                f'<text x="{_MARGIN}" y="{top}" textLength="{length}"{of_kind}>'
                f"{escape(line)}</text>\n"
            )
    return rows
