"""The state that both directions of a conversation share: requests in flight, and the kind of
asker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from mcp_tool_filter.conversation.judged import (
    FORWARD,
    Judged,
)
from mcp_tool_filter.conversation.kind import Kind
from mcp_tool_filter.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.conversation.session import Exchanges
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.chain import judge_again
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Situation
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.messages import Batch, Request, Response, Single
from mcp_tool_filter.protocol.tools import Listing, parse_listing


@dataclass(slots=True, eq=False)
class BothSides:
    """Messages of the client and of the upstream are judged with the same memory."""

    policy: PolicyInForce
    client: Client = field(default_factory=Client)
    exchanges: Exchanges = field(default_factory=Exchanges)

    @property
    def kind(self) -> Kind:
        """The kind of asker that the client is, unless a message declares its own capabilities."""
        return self.policy.kinds.of(self.client)

    def _kind_of(self, exchange: Exchange | None) -> Kind:
        return self.policy.kinds.of(self.client, exchange.capabilities if exchange else None)

    def _snapshot_for(self, message: Single, kind: Kind, asked: Exchange | None) -> Snapshot:
        """Return the snapshot to judge an answer by; pin new tools in its list if that is
        configured, unless it answers an unusual request: that may be another list."""
        if kind.is_settled:
            return kind.snapshot
        is_usual = asked is None or not asked.is_unusual
        return kind.snapshot_for(list(_lists_in(message)), pins=is_usual)

    def _by_policy_now(self, judged: Judged, verdict: Verdict) -> Verdict:
        """Judge a message again if the policy was edited while it waited."""
        kind, message = self._kind_of(judged.exchange), judged.message
        if kind.snapshot is judged.in_force or message is None or isinstance(message, Batch):
            return verdict
        judged.in_force = kind.snapshot
        is_answer = judged.direction is Direction.FROM_UPSTREAM
        judged.snapshot = (
            self._snapshot_for(message, kind, judged.exchange) if is_answer else kind.snapshot
        )
        situation = Situation(
            snapshot=judged.snapshot,
            direction=judged.direction,
            exchange=judged.exchange,
            limits=self.policy.config.limits,
        )
        return judge_again(message, verdict, situation)

    def _judged(self, direction: Direction, size: int, origin: object) -> Judged:
        """Return the record of a message about which we know nothing yet."""
        snapshot = self.policy.kinds.start.snapshot
        return Judged(direction, None, FORWARD, self.client, snapshot, None, size, origin)


def _lists_in(message: Single) -> Iterator[Listing]:
    """Yield the tool list that a message carries, if it looks like one."""
    if isinstance(message, Request) and message.method == "sampling/createMessage":
        return  # these tools are for the model, in this one request
    with suppress(ProtocolError):  # the decision on the message finds out whether it matters
        listing = parse_listing(message)
        if listing and (
            isinstance(message, Response) or any(one.is_like_a_tool for one in listing.definitions)
        ):
            yield listing
