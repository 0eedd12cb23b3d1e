"""What a decision may need before it can be made. Effects are values; the host carries them out.

A decision that needs none is a plain value and costs nothing. One that must wait is a generator: it
yields effects, is sent what came of each, and returns the decision.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # most hosts have no rules, and need not wait for them
    from mcp_tool_filter.policy.rule_effects import RuleEffect


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before going on; only this message waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Make several decisions at the same time; they are sent back in the same order."""

    decisions: tuple[Deciding[Any], ...]


type Effect = Delay | Together | RuleEffect
type Deciding[Outcome] = Generator[Effect, object, Outcome]
