"""Colour, columns and a progress line, on terminals only.

>>> columns([("file_read", "exposed"), ("rm", "denied")], is_terminal=True)
['file_read  exposed', 'rm         denied']
>>> columns([("file_read", "exposed")], is_terminal=False)
['file_read\\texposed']
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from shutil import get_terminal_size
from typing import TextIO


class Colour(StrEnum):
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BOLD = "1"
    DIM = "2"


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def leads_nowhere(stream: TextIO) -> bool:
    """Tell whether output is discarded, as with /dev/null."""
    try:
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
    return is_device and not is_terminal(stream)


def paint(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """Colour a text on a terminal, unless NO_COLOR is set."""
    stream = stream or sys.stdout
    if not is_terminal(stream) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def columns(rows: Sequence[tuple[str, ...]], *, is_terminal: bool) -> list[str]:
    """Format a table: aligned for people, with tabs for programs."""
    if not is_terminal:
        return ["\t".join(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def shortened(text: str, width: int) -> str:
    """Return the text's first line, cut to a width.

    >>> shortened("Deletes a file for good.", 10)
    'Deletes a…'
    """
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def width() -> int:
    return get_terminal_size().columns


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what we are waiting for, until the block ends."""
    if not is_terminal(sys.stderr):
        yield
        return
    from mcp_tool_filter.cli.output.log import set_status  # --help need not wait for it

    set_status(text)  # other output appears above it
    try:
        yield
    finally:
        set_status("")
