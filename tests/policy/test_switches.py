"""Deny patterns changed by a click."""

from __future__ import annotations

import pytest

from mcp_tool_filter.policy.patterns import parse_pattern
from mcp_tool_filter.policy.switches import NOTHING, switched

NAMES = ["read", "rm", "rmdir"]


@pytest.mark.parametrize(
    ("deny", "hide", "show", "result"),
    [
        (["^rm$"], [], ["rm"], [NOTHING]),  # no pattern at all would be refused
        (["^rm"], [], ["rm", "rmdir"], [NOTHING]),
        ([NOTHING], ["read"], [], ["^read$"]),
        ([], ["read"], [], ["^read$"]),
        ([], [], [], []),
        (["^rm"], [], ["rm"], ["^rmdir$"]),
        (["^rm", "^none"], ["read"], [], ["^rm", "^none", "^read$"]),
    ],
)
def test_exactly_these_tools_are_hidden_and_shown(
    deny: list[str], hide: list[str], show: list[str], result: list[str]
) -> None:
    assert switched([parse_pattern(text) for text in deny], NAMES, hide, show) == result
