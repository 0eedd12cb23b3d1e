"""A reader in C is held to a number of levels, exactly."""

from __future__ import annotations

import random

import pytest
from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from mcp_tool_filter.protocol.exact_depth import ExactDepth


def reader(most: int) -> ExactDepth[dict[str, Raw]]:
    return ExactDepth(Decoder(dict[str, Raw]).decode, most)


def is_read(by: ExactDepth[dict[str, Raw]], written: bytes) -> bool:
    return by.read(memoryview(written)) is not None


@pytest.mark.parametrize("around", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("inside", [b"1", b'"[["', b'{"a":[]}', b"[{}]"])
@pytest.mark.parametrize("most", [4, 20, 128, 1000])
def test_the_depth_limit_is_exact(around: tuple[bytes, bytes], inside: bytes, most: int) -> None:
    """Also by a reader that has never read anything, and by one that has read much."""
    opening, closing = around
    levels = most - 1 - (2 if inside[:1] in (b"[", b"{") else 0)
    fits = b'{"a":%s%s%s}' % (opening * levels, inside, closing * levels)
    too_deep = b'{"a":%s%s%s}' % (opening * (levels + 1), inside, closing * (levels + 1))
    assert is_read(reader(most), fits)
    assert not is_read(reader(most), too_deep)
    used = reader(most)
    for _ in range(100):
        assert is_read(used, fits)
        assert not is_read(used, too_deep)


def test_arrays_and_objects_count_alike() -> None:
    chance = random.Random(7)
    readers = {most: reader(most) for most in (3, 8, 21, 127)}
    seen = set()
    for _ in range(4000):
        most = chance.choice(list(readers))
        value, depth = nested(chance, most - 1 + chance.randint(-2, 3))
        seen.add(depth + 1 <= most)
        assert is_read(readers[most], b'{"a":%s}' % value) is (depth + 1 <= most)
    assert seen == {True, False}


def nested(chance: random.Random, levels: int) -> tuple[bytes, int]:
    """Return a value, and how deep it is."""
    if levels < 1:
        return b"1", 0
    value, depth = nested(chance, levels - 1) if levels > 1 else (b"null", 0)
    before = chance.choice([b"", b"1,", b'"]",'])
    if chance.random() < 0.5:
        return b"[%s%s]" % (before, value), depth + 1
    return b'{"[":%s,"k":%d}' % (value, levels), depth + 1


def test_the_depth_limit_does_not_depend_on_pythons_stack() -> None:
    fits, too_deep = b'{"a":%s}' % (b"[" * 9 + b"]" * 9), b'{"a":%s}' % (b"[" * 10 + b"]" * 10)
    ours = reader(10)

    def within(levels: int) -> tuple[bool, bool]:
        if levels:
            return next(map(within, [levels - 1]))
        return is_read(ours, fits), is_read(ours, too_deep)

    for levels in (50, 0, 20, 150, 0, 100):
        assert not within(levels)[1]
    assert within(0) == (True, False)
    assert ours.read(memoryview(b"{}")) == {}


def test_invalid_json_raises_the_readers_own_error() -> None:
    with pytest.raises(DecodeError):
        reader(5).read(memoryview(b'{"a":[}'))
