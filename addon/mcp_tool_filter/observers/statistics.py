"""What has become of the messages so far: counted, and the last refusals remembered.

>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> counted = Statistics()
>>> from mcp_tool_filter.policy.verdict import Reply
>>> denied = Reply(b"", Reason(Why.DENIED, ("delete_file",)))
>>> counted.note(None, denied, take_snapshot([], deny=[]), now=1.0)
>>> counted.refused, counted.refusals[0].tool
(1, 'delete_file')
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.policy.verdict import Forward, Reason, Verdict, Why
from mcp_tool_filter.protocol.messages import Message, Notification, Request, singles

_MOST_NAMES = 1000
_MOST_REFUSALS = 100


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call, or another message, that did not go through."""

    at: float
    why: Why
    tool: str
    detail: str


@dataclass(slots=True)
class Statistics:
    """One for each listener."""

    messages: int = 0
    lists: int = 0
    """Tool lists that clients got without the denied tools."""
    saved_bytes: int = 0
    """What the denied tools would have cost in these lists."""
    refused: int = 0
    invalid: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Calls that went through, by tool."""
    refused_calls: Counter[str] = field(default_factory=Counter)
    refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=_MOST_REFUSALS))
    """The last ones, newest first."""

    def note(
        self, message: Message | None, verdict: Verdict, snapshot: Snapshot, now: float
    ) -> None:
        """Count a message and its verdict."""
        self.messages += 1
        if isinstance(verdict, Forward):
            self._note_calls(message)
        else:
            self._note_reason(verdict.reason, snapshot, now)

    def _note_calls(self, message: Message | None) -> None:
        for one in singles(message) if message else ():
            if isinstance(one, Request | Notification) and one.method == "tools/call":
                _count(self.calls, _name_in(one))

    def _note_reason(self, reason: Reason, snapshot: Snapshot, now: float) -> None:
        match reason.why:
            case Why.CACHED | Why.HIDDEN:
                self.lists += 1
                self.saved_bytes += snapshot.denied_bytes
            case Why.INVALID:
                self.invalid += 1
            case _:
                self.refused += 1
                for tool in reason.tools:
                    _count(self.refused_calls, shown(tool))
                for tool in reason.tools or ("",):
                    refusal = Refusal(now, reason.why, shown(tool), reason.detail)
                    self.refusals.appendleft(refusal)


def _count(counter: Counter[str], name: str) -> None:
    """Count; names come from clients, so there may be no end of them."""
    if name in counter or len(counter) < _MOST_NAMES:
        counter[name] += 1


def _name_in(call: Request | Notification) -> str:
    """Return who is called by a call that has been judged, and so names somebody for sure."""
    name = call.params.get("name") if call.params else None
    return shown(name.text) if name and name.text is not None else "?"
