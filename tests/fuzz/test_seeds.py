"""The fuzzer's target over all that it begins with: the oracles themselves are tested."""

from __future__ import annotations

import re

import pytest

from mcp_tool_filter.policy import chain
from mcp_tool_filter.policy.verdict import Forward
from tests.fuzz.oracle import Violation
from tests.fuzz.seeds import seeds, tokens
from tests.fuzz.target import run

_SEEDS = seeds()


def test_no_seed_breaks_a_promise() -> None:
    for seed in _SEEDS:
        run(seed)


@pytest.mark.parametrize("decision", ["decide_call", "decide_listing"])
def test_a_filter_that_forwards_everything_is_noticed(
    decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every door, and not by one lucky seed."""
    monkeypatch.setattr(chain, decision, lambda *_, **__: Forward())
    assert len(_noticed()) > 20


def _noticed() -> list[bytes]:
    found = []
    for seed in _SEEDS[::4]:
        try:
            run(seed)
        except Violation:
            found.append(seed)
    return found


def test_the_dictionary_is_one_that_libfuzzer_reads() -> None:
    assert all(re.fullmatch(r'"(?:\\x[0-9a-f]{2})+"', line) for line in tokens().splitlines())
