"""The inputs of a decision besides the message; and the interface of a link of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mcp_tool_filter.policy.effects import Decision
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange
from mcp_tool_filter.policy.list_from import ListFrom
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.tool_filter import Envelope
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import Single

_LIMITS = Limits()


class Link(Protocol):
    """One step of the chain after the tool filter: decides on one message, never on a batch.

    It returns a verdict, or a generator that yields effects and returns one. ``Forward`` passes the
    message to the next link, ``Rewrite`` a changed one; ``Reply`` and ``Drop`` end the chain. A
    reply goes back to the sender of the message.
    """

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Situation:
    """The inputs of a decision besides the message."""

    snapshot: Snapshot
    direction: Direction = Direction.FROM_CLIENT
    client: Client | None = None
    exchange: Exchange | None = None
    """The request or notification itself; for a response, the request that it answers."""
    list_from: ListFrom = ListFrom.AUTO
    envelope: Envelope | None = None
    """The frame of the list in the revision that the client speaks."""
    may_use_cache: bool = False
    """True if the client's session is known and it has no credentials of its own."""
    links: tuple[Link, ...] = ()
    limits: Limits = _LIMITS
    now: float = 0.0
    is_answered: bool = False
    """True if the snapshot will answer this request."""
    origin: object = None
    """The host's own object for the message, such as mitmproxy's flow."""
