"""What refuses a start once the tools are known, for every shape of the filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.errors import UnmatchedPattern
from mcp_tool_filter.core.policy.patterns import parse_pattern
from mcp_tool_filter.core.process.start import refuse_start, unmatched_in
from tests.make import snapshot

STRICT = parse_config(deny=["^rm"], strict="true")


def test_a_strict_user_gets_no_filter_whose_pattern_matches_nothing() -> None:
    with pytest.raises(UnmatchedPattern):
        refuse_start(STRICT, [snapshot("read", deny="^rm")])
    refuse_start(STRICT, [snapshot("rm", deny="^rm")])
    refuse_start(replace(STRICT, strict=False), [snapshot("read", deny="^rm")])


@pytest.mark.parametrize(("tools", "is_dead"), [
    ((["read"], ["write"]), True), ((["read"], ["rm"]), False), ((["rm"], ["read"]), False),
    ((), False),
])  # fmt: skip
def test_a_pattern_for_several_upstreams_may_match_at_one(
    tools: Sequence[Sequence[str]], is_dead: bool
) -> None:
    snapshots = [snapshot(*names, deny="^rm") for names in tools]
    assert [one.text for one in unmatched_in(snapshots)] == (["^rm"] if is_dead else [])


def test_patterns_that_are_judged_elsewhere_do_not_count() -> None:
    found = [snapshot("read", deny="^rm")]
    refuse_start(STRICT, found, among=[parse_pattern("^other")])
    with pytest.raises(UnmatchedPattern):
        refuse_start(STRICT, found, among=[parse_pattern("^rm")])
