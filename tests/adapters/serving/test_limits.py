"""How many clients may connect, and what is kept back for the probe."""

from __future__ import annotations

import os
import resource

from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.serving.limits import (
    Reserve,
    Seats,
    most_clients,
    most_upstream_connections,
    soft_limit,
)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_reserve_lends_its_descriptors_and_takes_them_back() -> None:
    before = open_files()
    reserve = Reserve(5)
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
    reserve = Reserve(5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        reserve.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reserve._kept == []


@given(limit=st.integers(256, 2_000_000))
def test_clients_and_their_connections_fit_into_the_limit(limit: int) -> None:
    clients = most_clients(limit)
    assert clients >= 8
    assert clients + most_upstream_connections(limit, clients) <= limit
    assert most_upstream_connections(limit, clients) >= clients


def test_the_limit_is_that_of_this_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft_limit() == soft or soft == resource.RLIM_INFINITY


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    most=st.integers(1, 4),
    standing=st.integers(0, 3),
)
def test_the_numbers_of_served_and_waiting_clients_are_bounded(
    steps: list[tuple[bool, int]], most: int, standing: int
) -> None:
    """The client that waits longest gets the next place, or is dropped first."""
    seats = Seats(most, standing)
    seated, waiting = list[str](), list[str]()
    for enters, number in steps:
        client = str(number)
        if not enters:
            seats.leave(client)
            for room in (seated, waiting):
                if client in room:
                    room.remove(client)
            while waiting and len(seated) < most:
                seated.append(waiting.pop(0))
        elif client not in seated + waiting:
            if len(seated) < most:
                seated.append(client)
            else:
                waiting.append(client)
            gone = waiting.pop(0) if len(waiting) > standing else None
            assert seats.enter(client) == gone
        assert list(seats.standing) == waiting
