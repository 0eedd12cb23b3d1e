"""Describe verdicts in plain words, for comments on flows and for replays.

>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.policy.verdict import Reply
>>> denied = Reply(b"", Reason(Why.UNKNOWN, ("no_such_tool",)))
>>> describe(denied, take_snapshot([], deny=[]))
'not found: no_such_tool (the upstream has no such tool)'
"""

from __future__ import annotations

from collections.abc import Iterable

from mcp_tool_filter.policy.snapshot import Snapshot, shown
from mcp_tool_filter.policy.verdict import Forward, Reason, Verdict, Why

_MOST_NAMES = 20


def describe(verdict: Verdict, snapshot: Snapshot) -> str:
    """Describe a verdict and its reason."""
    if isinstance(verdict, Forward):
        return "forwarded"
    return describe_reason(verdict.reason, snapshot)


def describe_reason(reason: Reason, snapshot: Snapshot) -> str:
    match reason.why:
        case Why.CACHED:
            denied = _by_pattern(snapshot.denied, snapshot)
            return f"{_hidden(len(snapshot.denied))}, answered from the snapshot{denied}"
        case Why.HIDDEN if reason.tools:
            return _hidden(len(reason.tools)) + _by_pattern(reason.tools, snapshot)
        case Why.HIDDEN:
            return "tools as they were at start-up"
        case Why.DENIED | Why.UNKNOWN:
            return "; ".join(_not_found(tool, snapshot) for tool in reason.tools)
        case Why.BLOCKED:
            return f"refused by rule {reason.rule}: {reason.detail}"
        case Why.CHANGED:
            return f"changed by rule {reason.rule}"
        case Why.STORED:
            return "answered with a stored result"
        case Why.CANCELLED:
            return "cancelled by the client while it waited"
        case Why.INVALID:
            return f"invalid message from the upstream: {reason.detail}"
        case why:
            return f"refused ({why}): {reason.detail}"


def pattern_of(tool: str, snapshot: Snapshot) -> str:
    """Describe the pattern that hides a tool.

    >>> from mcp_tool_filter.policy.snapshot import take_snapshot
    >>> pattern_of("a", take_snapshot([], deny=[]))
    'the upstream has no such tool'
    """
    if tool not in snapshot.denied:
        return "the upstream has no such tool"
    pattern = snapshot.denied[tool]
    return f"denied by {pattern.text}" if pattern else "matches no allow pattern"


def _not_found(tool: str, snapshot: Snapshot) -> str:
    if tool in snapshot.allowed:
        return shown(tool)
    return f"not found: {shown(tool)} ({pattern_of(tool, snapshot)})"


def _hidden(count: int) -> str:
    return f"hidden {count} tool" + ("" if count == 1 else "s")


def _by_pattern(tools: Iterable[str], snapshot: Snapshot) -> str:
    names: dict[str, list[str]] = {}
    for tool in tools:
        names.setdefault(_label(tool, snapshot), []).append(shown(tool))
    return "".join(f"\n  {text}: {_listed(found)}" for text, found in names.items())


def _label(tool: str, snapshot: Snapshot) -> str:
    if tool not in snapshot.denied:
        return "not in the snapshot"
    pattern = snapshot.denied[tool]
    return pattern.text if pattern else "matches no allow pattern"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def is_refusal(verdict: Verdict) -> bool:
    """Tell whether the verdict refuses the message."""
    return not isinstance(verdict, Forward) and verdict.reason.why not in (
        Why.CACHED,
        Why.HIDDEN,
        Why.CHANGED,
        Why.STORED,
        Why.CANCELLED,
    )
