"""One rule: its conditions and its actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_tool_filter.policy.rules.actions import (
    CHANGES,
    REFUSALS,
    Action,
    Allow,
)
from mcp_tool_filter.policy.rules.conditions import Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    conditions: tuple[Condition, ...]
    labels: tuple[str, ...]
    """Each condition as the rules file has it."""
    actions: tuple[Action, ...]
    action_names: tuple[str, ...]
    for_requests: bool
    for_responses: bool
    name: str = ""
    priority: int = 0

    @property
    def labelled(self) -> Iterator[tuple[Condition, str]]:
        """Each condition, and how the policy writes it."""
        return zip(self.conditions, self.labels, strict=True)

    @property
    def changes_message(self) -> bool:
        return any(isinstance(one, CHANGES) for one in self.actions)

    @property
    def always_ends(self) -> bool:
        """True if no later rule is evaluated whenever this one matches (with ``fail_fast``)."""
        return any(isinstance(one, Allow | REFUSALS) for one in self.actions)
