"""What observers are told about a message: what it was, its verdict, and the basis of the
decision."""

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
_DEEPEST_READ = 5000  # levels; we read so deep only to find the id of a message that is too deep
FORWARD = Forward()


@dataclass(slots=True, eq=False)
class Judged:
    """One message and its verdict. This is what observers get."""

    direction: Direction
    message: Message | None
    """None if it could not be read."""
    verdict: Verdict
    client: Client
    snapshot: Snapshot
    """The snapshot that it was judged by."""
    exchange: Exchange | None = None
    """The request that this message is, or answers."""
    size: int = 0
    """Bytes received."""
    origin: object = None
    """The host's own object for the message, such as mitmproxy's flow."""
    members: tuple[Judged, ...] = ()
    """The members of a batch, each with its own verdict."""
    in_force: Snapshot | None = None
    """The snapshot in force at that time; it differs from ``snapshot`` for a page of an unfinished
    list."""

    def member(self, message: Single, exchange: Exchange | None) -> Judged:
        """Return the record of a member of this batch."""
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
        """The members of a batch, or this message."""
        return self.members or (self,)


class Arrival:
    """What a transport knows about a client's message besides its bytes."""

    __slots__ = ()
    announces = True
    """True if the transport announces messages (in headers), so that ``problem_in`` must be
    asked."""

    is_endpoint = True
    """False if it came elsewhere than at the MCP endpoint."""

    @property
    def can_list(self) -> bool:
        """Whether the host can ask the upstream for the list that this client would get."""
        return False

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Return a refusal if the transport announced a different message, else None."""
        return None

    def may_use_snapshot(self, request: Request) -> bool:
        """Tell whether the upstream would answer this tools/list with the list that we fetched."""
        return False

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Decide on a message that cannot be read. Observers are not told if it is forwarded."""
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        refused = refusal(raw, Why.MALFORMED, limits=limits)
        return Reply(refused.text, Reason(Why.MALFORMED, detail=str(error)))


def oversized(beginning: bytes, detail: str, ids: list[str] | None = None) -> Reply:
    """Refuse a message that is too large or too deep; ``beginning`` is the part that we have."""
    if ids is None:
        anything = Limits(message=max(1, len(beginning)), depth=_DEEPEST_READ)
        ids = ids_in(beginning, anything) or list(dict.fromkeys(ids_guessed_in(beginning)))
    text = f"Request too large: {detail}"
    reply = render_error(ids[0] if len(ids) == 1 else None, INVALID_REQUEST, text)
    return Reply(reply, Reason(Why.OVERSIZED, detail=text))
