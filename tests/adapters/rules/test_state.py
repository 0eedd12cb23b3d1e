"""The state of rules that only this process keeps."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.rules.state import StateInMemory, open_state
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rule_effects import CountUse, Identify, ReadCache, WriteCache
from mcp_tool_filter.rules.policy import StateSettings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_uses_are_counted_and_forgotten_by_the_clock() -> None:
    clock = Clock()
    state = StateInMemory(clock)
    use = CountUse("k", ((1, 60.0),), 1.0)
    assert state.at_once(use) is None
    clock.now += 20
    assert state.at_once(use) == 40
    clock.now += 41
    assert await state.carry_out(use) is None


def test_a_cached_result_expires_by_the_clock() -> None:
    clock = Clock()
    state = StateInMemory(clock)
    state.at_once(WriteCache("k", b"v", 60.0, "g", 1))
    clock.now += 59
    assert state.at_once(ReadCache("k", 1.0)) == b"v"
    clock.now += 2
    assert state.at_once(ReadCache("k", 1.0)) is None


def test_credentials_have_the_same_hash_in_one_state_and_another_in_the_next() -> None:
    """A salt that other processes knew would let them guess credentials."""
    one, other = StateInMemory(), StateInMemory()
    me = Identify(b"Bearer me")
    assert one.at_once(me) == one.at_once(me)
    assert one.at_once(me) != other.at_once(me)
    assert one.at_once(me) != one.at_once(Identify(b"Bearer you"))


def test_without_a_url_the_state_is_in_memory() -> None:
    assert isinstance(open_state(StateSettings()), StateInMemory)


def test_a_redis_url_that_cannot_be_used_stops_the_start() -> None:
    with pytest.raises(StartError, match="redis"):
        open_state(StateSettings(url="redis://[", prefix="p"))
