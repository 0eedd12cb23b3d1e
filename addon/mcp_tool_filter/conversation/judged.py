"""What is told of a message: what it was, what becomes of it, and by what that was decided."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.chain import refusal
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.messages import (
    INVALID_REQUEST,
    Message,
    Request,
    Single,
    ids_guessed_in,
    ids_in,
    render_error,
)

INVALID_ANSWER = "The server sent an invalid response"
LOST_ANSWER = "Upstream connection lost"
_DEEPEST_READ = 5000  # levels, to find the id of a message that is too deep
FORWARD = Forward()


@dataclass(slots=True, eq=False)
class Judged:
    """One message and what becomes of it; this is what observers get."""

    direction: Direction
    message: Message | None
    """None if it could not be read."""
    verdict: Verdict
    client: Client
    snapshot: Snapshot
    """What it was judged by."""
    exchange: Exchange | None = None
    """The request that this is, or answers."""
    size: int = 0
    """Bytes that came."""
    origin: object = None
    """What the host gave with the message, such as mitmproxy's flow."""
    members: tuple[Judged, ...] = ()
    """Those of a batch, each with its own verdict."""
    in_force: Snapshot | None = None
    """What was in force when it was judged; a page of an unfinished list has one of its own."""

    def member(self, message: Single, exchange: Exchange | None) -> Judged:
        """Begin to judge a member of this batch."""
        size = message.place.end - message.place.start
        return Judged(
            self.direction,
            message,
            FORWARD,
            self.client,
            self.snapshot,
            exchange,
            size,
            self.origin,
        )

    @property
    def each(self) -> tuple[Judged, ...]:
        """The members of a batch, or this one."""
        return self.members or (self,)


class Arrival:
    """What a transport knows of a client's message that the message itself does not say."""

    __slots__ = ()
    announces = True
    """It may have announced another message: ``problem_in`` says whether it has."""

    @property
    def can_list(self) -> bool:
        """Can the host ask the upstream for the list that this client would get?"""
        return False

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Refuse a message that the transport announced as another."""
        return None

    def may_use_snapshot(self, request: Request) -> bool:
        """Tell whether the upstream would answer this tools/list with the list it gave us."""
        return False

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Decide on what cannot be read; nobody is told of what is forwarded unread."""
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        refused = refusal(raw, Why.MALFORMED, limits=limits)
        return Reply(refused.text, Reason(Why.MALFORMED, detail=str(error)))


def oversized(beginning: bytes, detail: str, ids: list[str] | None = None) -> Reply:
    """Answer what is too large or too deep; ``beginning`` is what is there of it."""
    if ids is None:
        anything = Limits(message=max(1, len(beginning)), depth=_DEEPEST_READ)
        ids = ids_in(beginning, anything) or list(dict.fromkeys(ids_guessed_in(beginning)))
    text = f"Request too large: {detail}"
    reply = render_error(ids[0] if len(ids) == 1 else None, INVALID_REQUEST, text)
    return Reply(reply, Reason(Why.OVERSIZED, detail=text))
