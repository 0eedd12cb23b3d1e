"""Does a parser of foreign bytes take more than its share of time for four times as many bytes?

    python -m tests.bench.growth

Each is measured with worst cases of n and of 4n bytes, in the processor's time of this process and
at best of several. Growing with the input, a parser takes four times as long; growing with its
square, sixteen times. It sees what ``tests/attacks/test_growth`` does not: regexes, and copies.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from json import JSONDecodeError

from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.rooms.recordings.reading import NotReadable
from tests.attacks.worst_cases import PARSERS, Parser, writer

ROUNDS = 12  # at most; what grows linearly needs one or two, also on a busy machine

MOST = 8.0

LEAST = 0.004  # seconds; chance decides about what is quicker


def main() -> int:
    slow = [one for parser in PARSERS for one in too_slow(parser)]
    print("\n".join(slow) or f"{len(PARSERS)} parsers grow with their input.")
    return 1 if slow else 0


def too_slow(parser: Parser) -> list[str]:
    """Return a line for each worst case that grows faster than its size."""
    found = []
    for shape in parser.shapes:
        write = writer(shape)
        growth = growth_of(parser.read, write(parser.size), write(4 * parser.size))
        if growth > MOST:
            found.append(f"{parser.name}: {growth:.1f} times for {write(60)!r}")
    return found


def growth_of[T](read: Callable[[T], object], small: T, large: T) -> float:
    """Return how many times as long the larger input takes, at best of several."""
    long = seconds(read, large)
    if long < LEAST:
        return 1.0
    short, growth = seconds(read, small), 0.0
    for _ in range(ROUNDS):
        growth = long / max(short, LEAST / 8)
        if growth < MOST / 2 + 1:
            break
        short, long = min(short, seconds(read, small)), min(long, seconds(read, large))
    return growth


def seconds[T](read: Callable[[T], object], raw: T) -> float:
    gc.disable()  # it walks through all that other parsers have left
    start = time.process_time()
    try:
        with suppress(ProtocolError, NotReadable, StartError, JSONDecodeError):
            read(raw)
    finally:
        gc.enable()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
