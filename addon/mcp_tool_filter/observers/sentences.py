"""Put verdicts into words: sentences for comments and replays, single words for entries and spans.

>>> from mcp_tool_filter.policy.snapshot import take_snapshot
>>> from mcp_tool_filter.policy.verdict import Reply
>>> denied = Reply(b"", Reason(Why.UNKNOWN, ("no_such_tool",)))
>>> describe(denied, take_snapshot([], deny=[]))
'not found: no_such_tool (the upstream has no such tool)'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from mcp_tool_filter.policy.snapshot import Snapshot, Standing, shown
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Notification, Request

LONGEST = 256  # characters of a URI, a method, an id

_SUBJECTS = {
    "tools/call": ("name", "tool"),
    "resources/read": ("uri", "uri"),
    "resources/subscribe": ("uri", "uri"),
    "resources/unsubscribe": ("uri", "uri"),
    "prompts/get": ("name", "prompt"),
}


def verdict_word(verdict: Verdict) -> str:
    match verdict:
        case Forward():
            return "forwarded"
        case Rewrite():
            return "changed"
        case Reply(_, reason):
            return "answered" if reason.why in (Why.CACHED, Why.STORED) else "refused"
        case Drop():
            return "dropped"
        case unexpected:
            assert_never(unexpected)


def subject_of(message: Request | Notification) -> tuple[str, str] | None:
    """Return the kind and the name of what a message is about: a tool, a URI or a prompt.

    >>> from mcp_tool_filter.protocol.messages import parse_message
    >>> subject_of(parse_message(b'{"jsonrpc":"2.0","id":1,"method":"prompts/get",'
    ...                          b'"params":{"name":"greet"}}'))
    ('prompt', 'greet')
    """
    found = _SUBJECTS.get(message.method)
    if found is None or message.params is None:
        return None
    member, kind = found
    value = message.params.get(member)
    if value is None or value.text is None:
        return None
    return kind, shown(value.text[:LONGEST])


def denying_pattern(reason: Reason, snapshot: Snapshot) -> str | None:
    """Return the pattern that denies the called tool."""
    found = map(snapshot.denying, reason.tools)
    return next((pattern.text for pattern in found if pattern), None)


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
    if tool not in snapshot.hidden_names:
        return "the upstream has no such tool"
    pattern = snapshot.denying(tool)
    return f"denied by {pattern.text}" if pattern else "matches no allow pattern"


def _not_found(tool: str, snapshot: Snapshot) -> str:
    if snapshot.standing(tool) is Standing.ALLOWED:
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
    if tool not in snapshot.hidden_names:
        return "not in the snapshot"
    pattern = snapshot.denying(tool)
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
