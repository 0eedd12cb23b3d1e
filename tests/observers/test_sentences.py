"""What people read about a message that rules have decided on."""

from __future__ import annotations

import pytest

from mcp_tool_filter.observers.sentences import describe, is_refusal
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.verdict import Reason, Reply, Rewrite, Verdict, Why

NO_TOOLS = take_snapshot([], deny=[])


@pytest.mark.parametrize(
    ("verdict", "sentence", "refused"),
    [
        (Reply(b"", Reason(Why.BLOCKED, detail="no", rule="r")), "refused by rule r: no", True),
        (Rewrite(b"", Reason(Why.CHANGED, rule="r, s")), "changed by rule r, s", False),
        (Reply(b"", Reason(Why.STORED)), "answered with a stored result", False),
    ],
)
def test_the_comment_names_the_rule(verdict: Verdict, sentence: str, refused: bool) -> None:
    assert describe(verdict, NO_TOOLS) == sentence
    assert is_refusal(verdict) == refused
