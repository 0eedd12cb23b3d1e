"""How many clients may connect, what is kept back for the probe, and memory for large bodies."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.messages.limits import MEBIBYTE
from mcp_tool_filter.core.process import limits as room


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_reserve_lends_its_descriptors_and_takes_them_back() -> None:
    before = open_files()
    reserve = room.Reserve(5)
    reserve.fill()
    reserve.fill()
    assert open_files() == before + 5
    with reserve.lent():
        assert open_files() == before
    assert open_files() == before + 5
    reserve.release()
    assert open_files() == before


def test_a_reserve_takes_as_many_descriptors_as_there_are() -> None:
    """No descriptor is left: the probe fails, and the process goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = room.Reserve(5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        reserve.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reserve._kept == []


@given(limit=st.integers(256, 2_000_000))
def test_clients_and_their_connections_fit_into_the_limit(limit: int) -> None:
    clients = room.most_clients(limit)
    assert clients >= 8
    assert clients + room.most_upstream_connections(limit, clients) <= limit
    assert room.most_upstream_connections(limit, clients) >= clients


def test_the_limit_is_that_of_this_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert room.soft_limit() == soft or soft == resource.RLIM_INFINITY


SCRIPT = """
import os
from pathlib import Path
from mcp_tool_filter.core.process.limits import return_free_memory, keep_free_memory

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20

keep_free_memory()
before = megabytes()
bodies = [b"x" * (4 << 20) for _ in range(10)]
del bodies
print(megabytes() - before)
return_free_memory()
print(megabytes() - before)
"""


def test_freed_memory_is_kept_and_given_back() -> None:
    """Of 40 MB, with glibc."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    kept, left = map(int, ended.stdout.split())
    assert kept > 30
    assert left < 10


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_name: str | None) -> ctypes.CDLL:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    room._glibc.cache_clear()
    room.keep_free_memory()
    room.return_free_memory()
    room._glibc.cache_clear()


class Held:
    """Something that holds so many bytes."""

    def __init__(self, size: int) -> None:
        self.held_bytes = size

    def give_up(self) -> None:
        self.held_bytes = 0


@pytest.mark.parametrize(("count", "size"), [(10, 40_000_000), (1500, 270_000), (6000, 60_000)])
def test_many_small_holders_count_as_a_few_large_ones(count: int, size: int) -> None:
    holders = [Held(size) for _ in range(count)]
    budget = room.MemoryBudget(lambda: holders)
    budget.limit = 128 * MEBIBYTE
    budget.look()
    assert sum(one.held_bytes for one in holders) <= budget.limit * 3 // 4


def test_ordinary_requests_are_never_given_up() -> None:
    holders = [*(Held(1000) for _ in range(20_000)), *(Held(40_000_000) for _ in range(9))]
    budget = room.MemoryBudget(lambda: holders)
    budget.limit = 128 * MEBIBYTE
    budget.look()
    assert [one.held_bytes for one in holders[:20_000]] == [1000] * 20_000
