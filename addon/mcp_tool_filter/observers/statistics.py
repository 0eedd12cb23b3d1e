"""Count the verdicts, and remember the last refusals.

>>> from mcp_tool_filter.policy.exchange import Client
>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.policy.verdict import Reply
>>> counted = Statistics()
>>> denied, none = Reply(b"", Reason(Why.DENIED, ("delete_file",))), take_snapshot([], deny=[])
>>> counted.note(Judged(Direction.FROM_CLIENT, None, denied, Client(), none), now=1.0)
>>> counted.refused, counted.refusals[0].tool
(1, 'delete_file')
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.observers.bounded import count_bounded
from mcp_tool_filter.policy.exchange import Direction
from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.policy.verdict import Forward, Reason, Rewrite, Why

_MOST_NAMES = 1000
_MOST_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A call or another message that was refused."""

    at: float
    why: Why
    tool: str
    detail: str


@dataclass(slots=True, weakref_slot=True)
class Statistics:
    """The counts of one listener."""

    messages: int = 0
    lists: int = 0
    """Tool lists from which denied tools were removed."""
    saved_bytes: int = 0
    """What the denied tools would have cost in these lists."""
    refused: int = 0
    ruled: int = 0
    """Messages that rules changed or answered."""
    invalid: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Forwarded calls, by tool."""
    refused_calls: Counter[str] = field(default_factory=Counter)
    refusals: deque[RefusedMessage] = field(default_factory=lambda: deque(maxlen=_MOST_REFUSALS))
    """The last refusals, newest first."""

    def note(self, judged: Judged, now: float) -> None:
        """Count a message and its verdict."""
        self.messages += 1
        verdict = judged.verdict
        if not isinstance(verdict, Forward):
            self._note_reason(verdict.reason, judged.snapshot, now)
        if judged.direction is Direction.FROM_CLIENT:
            self._note_calls(judged)

    def _note_calls(self, judged: Judged) -> None:
        for one in judged.members or (judged,):
            tool = one.exchange.tool if one.exchange else None
            if tool is not None and isinstance(one.verdict, Forward | Rewrite):
                if tool in self.calls:  # the keys are names as they are shown
                    self.calls[tool] += 1
                else:
                    count_bounded(self.calls, shown(tool), most=_MOST_NAMES)

    def _note_reason(self, reason: Reason, snapshot: Snapshot, now: float) -> None:
        match reason.why:
            case Why.CHANGED | Why.STORED:
                self.ruled += 1
            case Why.CACHED | Why.HIDDEN:
                self.lists += 1
                self.saved_bytes += snapshot.denied_bytes
            case Why.CANCELLED:
                pass
            case Why.INVALID:
                self.invalid += 1
            case _:
                self.refused += 1
                names = [shown(tool) for tool in reason.tools]
                for name in names:
                    count_bounded(self.refused_calls, name, most=_MOST_NAMES)
                for name in names or ("",):
                    self.refusals.appendleft(RefusedMessage(now, reason.why, name, reason.detail))
