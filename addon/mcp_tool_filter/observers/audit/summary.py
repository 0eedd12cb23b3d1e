"""Summarise an audit log: calls by tool and session, refusals, the slowest calls, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from mcp_tool_filter.observers.audit.entry import (
    Entry,
    caller_of,
    count_in,
    has_failed,
    is_refused,
    method_of,
    milliseconds_in,
)
from mcp_tool_filter.observers.bounded import count_bounded

_MOST_SLOWEST = 10
_MOST_NAMES = 10_000
_MOST_TOOLS = 200  # of one session


@dataclass(slots=True)
class Summary:
    """Counts of entries."""

    entries: int = 0
    first: str = ""
    last: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    """Successful calls, by tool."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests, by tool or method."""
    errors: Counter[str] = field(default_factory=Counter)
    """Calls that the upstream, or the tool, answered with an error, by tool."""
    sessions: Counter[str] = field(default_factory=Counter)
    """Entries by session, or by address if there is none."""
    by_session: dict[str, Counter[str]] = field(default_factory=dict)
    """What each session has called, by tool."""
    unanswered: int = 0
    dropped: int = 0
    """Lines that could not be written."""
    saved_bytes: int = 0
    """What the hidden tools would have cost in the lists."""
    slowest: list[tuple[float, str]] = field(default_factory=list)
    """The upstream's time in milliseconds, and the tool."""

    def add(self, entry: Entry) -> None:
        if entry.get("event") == "dropped":
            self.dropped += count_in(entry, "count") or 0
            return
        if "event" in entry:
            return
        self.entries += 1
        time = str(entry.get("time", ""))
        self.first = min(filter(None, (self.first, time)), default="")
        self.last = max(self.last, time)
        caller = caller_of(entry)
        count_bounded(self.sessions, caller, most=_MOST_NAMES)
        name = str(entry.get("tool") or entry.get("uri") or method_of(entry))
        self.saved_bytes += count_in(entry, "saved_bytes") or 0
        if is_refused(entry):
            count_bounded(self.refused, name, most=_MOST_NAMES)
        elif entry.get("method") == "tools/call":
            self._add_call(name, caller, entry)

    def _add_call(self, tool: str, caller: str, entry: Entry) -> None:
        count_bounded(self.calls, tool, most=_MOST_NAMES)
        if caller in self.by_session or len(self.by_session) < _MOST_NAMES:
            count_bounded(self.by_session.setdefault(caller, Counter()), tool, most=_MOST_TOOLS)
        self.unanswered += entry.get("answered") is False
        if has_failed(entry):
            count_bounded(self.errors, tool, most=_MOST_NAMES)
        took = milliseconds_in(entry, "upstream_ms")
        is_full = len(self.slowest) == _MOST_SLOWEST
        if took is not None and not (is_full and took <= self.slowest[0][0]):
            self.slowest = sorted([*self.slowest, (took, tool)], key=itemgetter(0))
            self.slowest = self.slowest[-_MOST_SLOWEST:]

    def as_json(self) -> dict[str, object]:
        return {
            "entries": self.entries,
            "first": self.first,
            "last": self.last,
            "calls": dict(self.calls.most_common()),
            "refused": dict(self.refused.most_common()),
            "errors": dict((+self.errors).most_common()),
            "sessions": dict(self.sessions.most_common()),
            "calls_by_session": {
                caller: dict(calls.most_common()) for caller, calls in self.by_session.items()
            },
            "unanswered": self.unanswered,
            "dropped": self.dropped,
            "saved_bytes": self.saved_bytes,
            "slowest": [{"tool": tool, "ms": took} for took, tool in reversed(self.slowest)],
        }


def summarise(entries: Iterable[Entry]) -> Summary:
    """Add up all entries."""
    summary = Summary()
    for entry in entries:
        summary.add(entry)
    return summary
