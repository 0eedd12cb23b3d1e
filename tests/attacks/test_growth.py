"""No parser of foreign bytes takes more than its share of time for four times as many bytes.

Each is measured with worst cases of n and of 4n bytes, in the processor's time of this process and
at best of several, so that a busy machine makes no difference. Growing with the input, a parser
takes four times as long; growing with its square, sixteen times.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from contextlib import suppress
from json import JSONDecodeError

import pytest

from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.rooms.recordings.reading import NotReadable
from tests.attacks.worst_cases import PARSERS, Parser, filled

pytestmark = pytest.mark.rest

ROUNDS = 12  # at most; what grows linearly needs one or two, also on a busy machine

MOST = 8.0

LEAST = 0.004  # seconds; chance decides about what is quicker


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_time_grows_linearly_with_the_input(parser: Parser) -> None:
    slow = []
    for number, shape in enumerate(parser.shapes):
        write = filled(b"", shape) if isinstance(shape, bytes) else shape
        growth = growth_of(parser.read, write(parser.size), write(4 * parser.size))
        if growth > MOST:
            slow.append((number, write(60), growth))
    assert slow == []


def test_quadratic_growth_is_detected() -> None:
    """The charset was once searched like this: 64 KB took most of a second."""
    charset = re.compile(r"""charset[^=;]*=\s*["']?([^"';\s]*)""")
    short, long = "charset" * 1000, "charset" * 4000
    assert growth_of(charset.findall, short, long) > MOST


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
    gc.disable()  # it walks through all that other tests have left
    start = time.process_time()
    try:
        with suppress(ProtocolError, NotReadable, StartError, JSONDecodeError):
            read(raw)
    finally:
        gc.enable()
    return time.process_time() - start
