"""The thread in which a relay's rules live."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.file import RulesInForce
from mcp_tool_filter.adapters.stdio.waiting import DecidingThread
from mcp_tool_filter.policy.effects import Deciding, Delay


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[DecidingThread]:
    file = tmp_path / "policy.yaml"
    file.write_text("interceptor: {rules: [{id: a, actions: [allow]}]}")
    made = DecidingThread(RulesInForce(str(file)))
    yield made
    made.close()


def waiting(seconds: float, made: str) -> Deciding[str]:
    yield Delay(seconds)
    return made


def test_all_work_runs_in_one_thread_and_is_awaited(rules: DecidingThread) -> None:
    found = {rules.do(threading.get_ident) for _ in range(3)}
    assert len(found) == 1
    assert threading.get_ident() not in found
    with pytest.raises(ZeroDivisionError):
        rules.do(lambda: 1 / 0)


def test_decisions_wait_side_by_side(rules: DecidingThread) -> None:
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(rules.wait_for, rules.effects.outcome_of(waiting(1.0, "slow")))
        assert rules.wait_for(rules.effects.outcome_of(waiting(0.0, "quick"))) == "quick"
        assert slow.result() == "slow"


def test_a_decision_that_raises_is_reported(rules: DecidingThread) -> None:
    def raising() -> Deciding[str]:
        yield Delay(0.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rules.wait_for(rules.effects.outcome_of(raising()))
