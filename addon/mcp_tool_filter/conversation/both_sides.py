"""What both sides of a conversation share: who waits for what, and which list is whose."""

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
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange
from mcp_tool_filter.policy.situation import Situation
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.messages import (
    Batch,
    Request,
    Response,
    Single,
)
from mcp_tool_filter.protocol.tools import Listing, parse_listing


@dataclass(slots=True, eq=False)
class BothSides:
    """What a client and the upstream say is judged with the same memory."""

    policy: PolicyInForce
    client: Client = field(default_factory=Client)
    exchanges: Exchanges = field(default_factory=Exchanges)

    @property
    def kind(self) -> Kind:
        """What kind of asker the client is, as far as its messages do not say themselves."""
        return self.policy.kinds.of(self.client)

    def _kind_of(self, exchange: Exchange | None) -> Kind:
        return self.policy.kinds.of(self.client, exchange.capabilities if exchange else None)

    def _snapshot_for(self, message: Single, kind: Kind) -> Snapshot:
        """Return what an answer is judged by; pin what is new in its list, where that counts."""
        if kind.is_listed and not self.policy.config.judges_new_tools:
            return kind.snapshot
        return kind.snapshot_for(list(_lists_in(message)))

    def _by_policy_now(self, told: Judged, verdict: Verdict) -> Verdict:
        """Judge again what has waited while the policy was edited."""
        kind, message = self._kind_of(told.exchange), told.message
        if kind.snapshot is told.in_force or message is None or isinstance(message, Batch):
            return verdict
        told.in_force = kind.snapshot
        is_answer = told.direction is Direction.FROM_UPSTREAM
        told.snapshot = self._snapshot_for(message, kind) if is_answer else kind.snapshot
        situation = Situation(
            snapshot=told.snapshot,
            direction=told.direction,
            exchange=told.exchange,
            limits=self.policy.config.limits,
        )
        return judge_again(message, verdict, situation)

    def _judged(self, direction: Direction, size: int, origin: object) -> Judged:
        """Begin to judge a message of which nothing is known yet."""
        snapshot = self.policy.kinds.start.snapshot
        return Judged(direction, None, FORWARD, self.client, snapshot, None, size, origin)


def _lists_in(message: Single) -> Iterator[Listing]:
    """Yield the tool list that a message carries, if it looks like one."""
    if isinstance(message, Request) and message.method == "sampling/createMessage":
        return  # its tools are the model's, for that one request
    with suppress(ProtocolError):  # the decision says whether it matters
        listing = parse_listing(message)
        if listing and (
            isinstance(message, Response) or any(one.is_like_a_tool for one in listing.definitions)
        ):
            yield listing
