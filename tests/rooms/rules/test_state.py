"""The state of rules that only this process keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.rules.policy import StateSettings
from mcp_tool_filter.rooms.rules.rule_effects import Identify
from mcp_tool_filter.rooms.rules.state import StateInMemory, open_state


def test_credentials_have_the_same_hash_in_one_state_and_another_in_the_next() -> None:
    """A salt that other processes knew would let them guess credentials."""
    one, other = StateInMemory(), StateInMemory()
    me = Identify(b"Bearer me")
    assert one.at_once(me) == one.at_once(me)
    assert one.at_once(me) != other.at_once(me)
    assert one.at_once(me) != one.at_once(Identify(b"Bearer you"))


@pytest.mark.parametrize("rest", ["[", "host:99999x/0", "[::/0", "host:p/x", "ho st:-1/0"])
def test_no_error_about_a_redis_url_shows_its_password(rest: str) -> None:
    for url in ("redis://me:hunter2@", "redis://:hunter2/", "other://hunter2@"):
        with pytest.raises(StartError, match=r"redis|of the rules") as caught:
            open_state(StateSettings(url=url + rest, prefix="p"))
        assert "hunter2" not in str(caught.value)


times = st.lists(st.floats(0, 100), max_size=40).map(sorted)


@given(times, st.integers(0, 4), st.floats(0.5, 30))
def test_a_window_holds_at_most_its_limit(at: list[float], limit: int, window: float) -> None:
    memory = StateInMemory()
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
    memory = StateInMemory()
    limits = ((1, 1.0), (2, 100.0))
    assert memory.count_use("k", limits, 0.0) is None
    assert memory.count_use("k", limits, 0.5) == 0.5
    assert memory.count_use("k", limits, 1.0) is None
    assert memory.count_use("k", limits, 2.0) == 98.0


def test_windows_are_bounded() -> None:
    memory = StateInMemory(most_keys=10, most_uses=50)
    for number in range(1000):
        memory.count_use(str(number % 100), ((100, 1e9),), float(number))
    assert len(memory._windows) <= 10
    assert memory._uses == sum(map(len, memory._windows.values())) <= 50


def test_keys_without_a_use_are_not_remembered() -> None:
    """A limit of 0 refuses all; whoever chooses the keys must not fill the memory."""
    memory = StateInMemory(most_keys=10)
    for number in range(100):
        assert memory.count_use(f"k{number}", ((0, 60.0),), 0.0) == 60.0
    assert not memory._windows


def test_an_entry_expires() -> None:
    memory = StateInMemory()
    memory.write_cache("k", b"v", 5.0, "g", 10, 0.0)
    assert memory.read_cache("k", 4.9) == b"v"
    assert memory.read_cache("k", 5.0) is None
    assert memory.bytes == 0


def test_entries_per_group_and_bytes_in_total_are_bounded() -> None:
    memory = StateInMemory(most_bytes=5000)
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
