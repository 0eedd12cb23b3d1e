"""Verdicts: what happens to a message, and why.

A verdict is one of four. Code that carries it out matches all four, so that mypy finds a forgotten
one. A reason is for observers; a client never sees it.
"""

from __future__ import annotations

from enum import StrEnum

from mcp_tool_filter.core.messages.limits import frozen

TOOL = "tool"
"""What a tool is called in reasons, as other things are called prompt, resource or skill."""

type RefusedBy = tuple[int, tuple[bytes, ...]]
"""How the upstream refuses a client: its HTTP status and WWW-Authenticate headers."""


class Why(StrEnum):
    DENIED = "denied"
    """A call of a tool that the user denies."""
    UNKNOWN = "unknown"
    """A call of a tool that the upstream does not have."""
    CACHED = "cached"
    """A list answered from the snapshot."""
    HIDDEN = "hidden"
    """A list without the denied tools, or with the definitions of the snapshot."""
    MALFORMED = "malformed"
    """A message that two readers could read differently."""
    MISMATCH = "mismatch"
    """Headers that contradict the body."""
    OVERSIZED = "oversized"
    INVALID = "invalid"
    """The upstream sent something that we cannot judge."""
    LOST = "lost"
    """The upstream is lost."""
    BLOCKED = "blocked"
    """A rule refused it."""
    CHANGED = "changed"
    """Rules changed it."""
    EDITED = "edited"
    """An edit of definitions changed it."""
    STORED = "stored"
    """A cached answer of a rule."""
    CANCELLED = "cancelled"
    """The client cancelled it while it waited."""
    FORBIDDEN = "forbidden"
    """A host or origin that is not ours."""


EVERYDAY = (Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED, Why.CANCELLED)
"""What happens to honest messages, too."""


@frozen
class Reason:
    why: Why
    tools: tuple[str, ...] = ()
    detail: str = ""
    drift: tuple[str, ...] = ()
    """Sentences about differences between the upstream and the snapshot."""
    rule: str = ""
    """The rule that decided."""
    thing: str = TOOL
    """What ``tools`` names: tools, or prompts, resources or skills."""
    pattern: str = ""
    """The pattern that denies one that is no tool."""
    by_upstream: RefusedBy | None = None
    """The HTTP answer to repeat, if ``why`` does not decide about ours."""


@frozen
class Forward:
    """Forward the original bytes."""


@frozen
class Rewrite:
    """Forward this text instead."""

    text: bytes
    reason: Reason
    owed: tuple[bytes, ...] = ()
    """Our own replies that must be added to the answer (of a batch that lost members)."""
    to_upstream: tuple[bytes, ...] = ()
    """Our own replies to the upstream's requests in a batch, if we can send them at once."""


@frozen
class Reply:
    """Answer instead of the upstream."""

    text: bytes
    reason: Reason


@frozen
class Drop:
    """Forward nothing, and answer nothing."""

    reason: Reason


type Verdict = Forward | Rewrite | Reply | Drop


def is_for_nobody(verdict: Verdict) -> bool:
    """Tell whether this drops the answer to our own copy of a request: no client waits for it."""
    return isinstance(verdict, Drop) and verdict.reason.why is Why.STORED


VERDICTS = (Forward, Rewrite, Reply, Drop)
"""For ``isinstance``: any other decision must wait."""
