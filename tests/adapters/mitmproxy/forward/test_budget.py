"""The largest unfinished messages are given up until the rest fits into the budget."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.adapters.mitmproxy.forward import budget
from mcp_tool_filter.adapters.mitmproxy.forward.budget import MemoryBudget

SMALL = budget._SMALL


class Holding:
    """Streams with unfinished bytes, and the ones that were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
        self.given_up: list[int] = []
        self.looks = 0
        self._sizes = sizes
        monkeypatch.setattr(budget, "_all_held", self._all)

    def _all(self) -> list[budget._Held]:
        self.looks += 1
        return [budget._Held(size, partial(self.given_up.append, size)) for size in self._sizes]


@given(sizes=st.lists(st.integers(0, 20 * SMALL), max_size=12), limit=st.integers(1, 60 * SMALL))
def test_the_streams_that_hold_most_are_closed_first(sizes: list[int], limit: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        held = Holding(monkeypatch, *sizes)
        one = MemoryBudget()
        one.limit = limit
        one.look()
    left = sorted(sizes, reverse=True)[len(held.given_up) :]
    assert held.given_up == sorted(sizes, reverse=True)[: len(held.given_up)]
    if sum(sizes) <= limit:
        assert held.given_up == []
    else:
        assert sum(left) <= limit * 3 // 4 or max(left) < SMALL
        assert all(size >= SMALL for size in held.given_up)


async def test_the_budget_is_checked_once_an_eighth_of_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Holding(monkeypatch)
    one = MemoryBudget()
    one.received(10**9)  # there is no limit yet
    one.limit = 8000
    one._since = 0
    for _ in range(10):
        one.received(100)
    await asyncio.sleep(0)
    assert held.looks == 0
    one.received(1)
    assert held.looks == 0  # not in the middle of what a connection does
    await asyncio.sleep(0)
    assert held.looks == 1


def test_an_exceeded_budget_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Holding(monkeypatch, 10 * SMALL)
    one = MemoryBudget()
    one.limit = SMALL
    one.look()
    one.look()
    assert caplog.text.count("Unfinished messages hold more than") == 1
