"""The words of entries and spans for a verdict and for the subject of a message."""

from __future__ import annotations

from typing import assert_never

from mcp_tool_filter.policy.snapshot import Snapshot, shown
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


def pattern_of(reason: Reason, snapshot: Snapshot) -> str | None:
    """Return the pattern that denies the called tool."""
    found = (snapshot.denied.get(name) for name in reason.tools)
    return next((pattern.text for pattern in found if pattern), None)
