"""No parser of foreign bytes takes more than its share of steps for more of its worst cases.

Instructions of the interpreter are counted, as in ``tests/test_growth``; ``tests/bench/growth``
measures the time, and so what regexes do and what is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from json import JSONDecodeError

import pytest

from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.rooms.recordings.reading import NotReadable
from tests.attacks.worst_cases import PARSERS, Parser, writer
from tests.test_growth import ALLOWED, FREE, steps_of

pytestmark = pytest.mark.rest

SIZE = 1500  # bytes of the shortest input


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_steps_grow_with_the_input(parser: Parser) -> None:
    """Also where it is longer: from some length on, one may be read in another way."""
    slow = []
    for number, shape in enumerate(parser.shapes):
        write = writer(shape)
        steps_in(parser, write(60))  # what is made once; what it has read itself, it may remember
        if all(grows(parser, write, size) for size in (SIZE, 4 * SIZE)):
            slow.append((number, write(60)))
    assert slow == []


def grows(parser: Parser, write: Callable[[int], bytes], size: int) -> bool:
    """Tell whether the steps grow faster than the input."""
    few, twice, most = (steps_in(parser, write(size * times)) for times in (1, 2, 4))
    return most - twice > ALLOWED * max(0, twice - few) + FREE


def test_quadratic_growth_is_detected() -> None:
    def each_with_each(raw: bytes) -> None:
        for _ in raw:
            for _ in raw:
                pass

    few, twice, most = (steps_of(each_with_each, b"a" * size) for size in (100, 200, 400))
    assert most - twice > ALLOWED * (twice - few) + FREE


def steps_in(parser: Parser, raw: bytes) -> int:
    def read(raw: bytes) -> None:
        with suppress(ProtocolError, NotReadable, StartError, JSONDecodeError):
            parser.read(raw)

    return steps_of(read, raw)
