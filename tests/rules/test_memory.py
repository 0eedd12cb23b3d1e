"""Windows and caches in memory: what they count, and their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.rules.link import MemoryState

times = st.lists(st.floats(0, 100), max_size=40).map(sorted)


@given(times, st.integers(0, 4), st.floats(0.5, 30))
def test_a_window_never_holds_more_than_its_limit(
    at: list[float], limit: int, window: float
) -> None:
    memory = MemoryState(b"")
    accepted: list[float] = []
    for now in at:
        wait = memory.count_use("k", ((limit, window),), now)
        inside = [one for one in accepted if one > now - window]
        assert (wait is None) == (len(inside) < limit)
        if wait is None:
            accepted.append(now)
        else:
            assert 0 < wait <= window * 1.000001


def test_several_limits_count_a_use_once_or_not_at_all() -> None:
    memory = MemoryState(b"")
    limits = ((1, 1.0), (2, 100.0))
    assert memory.count_use("k", limits, 0.0) is None
    assert memory.count_use("k", limits, 0.5) == 0.5
    assert memory.count_use("k", limits, 1.0) is None
    assert memory.count_use("k", limits, 2.0) == 98.0


def test_keys_do_not_share_a_window() -> None:
    memory = MemoryState(b"")
    assert memory.count_use("a", ((1, 9.0),), 0.0) is None
    assert memory.count_use("b", ((1, 9.0),), 0.0) is None


def test_windows_are_bounded() -> None:
    memory = MemoryState(b"", most_keys=10, most_uses=50)
    for number in range(1000):
        memory.count_use(str(number % 100), ((100, 1e9),), float(number))
    assert len(memory._windows) <= 10
    assert memory._uses == sum(map(len, memory._windows.values())) <= 50


def test_keys_without_a_use_are_not_remembered() -> None:
    """A limit of 0 refuses all; whoever chooses the keys must not fill the memory."""
    memory = MemoryState(b"", most_keys=10)
    for number in range(100):
        assert memory.count_use(f"k{number}", ((0, 60.0),), 0.0) == 60.0
    assert not memory._windows


def test_an_entry_expires() -> None:
    memory = MemoryState(b"")
    memory.write_cache("k", b"v", 5.0, "g", 10, 0.0)
    assert memory.read_cache("k", 4.9) == b"v"
    assert memory.read_cache("k", 5.0) is None
    assert memory.bytes == 0


def test_entries_per_group_and_bytes_in_total_are_bounded() -> None:
    memory = MemoryState(b"", most_bytes=5000)
    for number in range(10):
        memory.write_cache(f"k{number}", b"v", 5.0, "g", 3, 0.0)
    assert [memory.read_cache(f"k{number}", 0.0) for number in range(6, 10)] == [
        None, b"v", b"v", b"v",
    ]  # fmt: skip
    memory.write_cache("big", b"x" * 4500, 5.0, "h", 3, 0.0)
    memory.write_cache("big2", b"x" * 4500, 5.0, "h", 3, 0.0)
    assert memory.bytes <= 5000
    memory.write_cache("huge", b"x" * 6000, 5.0, "h", 3, 0.0)
    assert memory.read_cache("huge", 0.0) is None
    memory.clean_up(10.0)
    assert (memory.bytes, memory._groups) == (0, {})
