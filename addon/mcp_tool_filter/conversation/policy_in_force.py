"""What one listener decides by at this moment; all that is open asks here for each message.

Nothing keeps a snapshot of its own, so an edit of the patterns applies at once, also to streams and
sockets that were opened before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.session import Envelopes
from mcp_tool_filter.errors import FetchFailed, ProtocolError
from mcp_tool_filter.policy.chain import Link
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.judged_lists import JudgedLists
from mcp_tool_filter.policy.snapshot import Snapshot, take_snapshot
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import parse_message, singles
from mcp_tool_filter.protocol.tools import Listing, in_parts, parse_listing

if TYPE_CHECKING:
    from mcp_tool_filter.conversation.conversation import Judged

type Observer = Callable[[Judged], None]
"""Told of each message after it has been decided on; cannot change anything."""


@dataclass(frozen=True, slots=True)
class SessionAtWork:
    """What the rules remember of one client."""

    id: str
    seconds: float
    """Since it began."""
    messages: int
    errors: int
    mean_latency: float
    """Seconds from a request to its response."""


@dataclass(frozen=True, slots=True)
class RulesAtWork:
    """What the rules have done so far."""

    hits: tuple[tuple[str, int], ...] = ()
    """Each rule, in the order of evaluation, with how often it has matched."""
    metrics: tuple[tuple[str, float], ...] = ()
    """What rules have counted, by name."""
    sessions: tuple[SessionAtWork, ...] = ()
    """The one used last comes first."""


type AnswerUpstream = Callable[[bytes, object, Client], None]
"""Told the reply, what the host gave with the request, and on whose stream it came."""


def _answer_nobody(_reply: bytes, _origin: object, _client: Client) -> None:
    """Without links, nobody but a client answers the upstream."""


def _ignore(_judged: Judged) -> None:
    """Nobody observes."""


@dataclass(slots=True, kw_only=True)
class PolicyInForce:
    """The configuration, what the upstream said at start, and the snapshot made of both."""

    config: Config
    fetched: Fetched
    observe: Observer = _ignore
    clock: Callable[[], float] = time.monotonic
    links: tuple[Link, ...] = ()
    """The chain after the tool filter."""
    answer_upstream: AnswerUpstream = _answer_nobody
    """Sends the upstream our reply to a request that came on a stream."""
    rules_at_work: Callable[[], RulesAtWork] = RulesAtWork
    keeps_requests: bool = False
    """A link wants to see a request together with its response."""
    snapshot: Snapshot = field(init=False)
    envelopes: Envelopes = field(default_factory=Envelopes)
    judged: JudgedLists = field(default_factory=JudgedLists)

    def __post_init__(self) -> None:
        self.snapshot = self._take_snapshot(self.config)

    @property
    def listings(self) -> Iterator[Listing]:
        """The pages of the tool list, as they were fetched: read anew, for that takes much room."""
        return chain.from_iterable(map(_listings_in, self.fetched.pages))

    def snapshot_with(self, config: Config) -> Snapshot:
        """Apply other patterns to what was fetched."""
        if (config.deny, config.allow) == (self.config.deny, self.config.allow):
            return self.snapshot
        return self._take_snapshot(config)

    def adopt(self, config: Config, snapshot: Snapshot) -> None:
        """Decide by another configuration from now on."""
        self.config, self.snapshot = config, snapshot

    def _take_snapshot(self, config: Config) -> Snapshot:
        return take_snapshot(map(self._note_page, self.listings), config.deny, config.allow)

    def _note_page(self, listing: Listing) -> Listing:
        """Keep what stands around the tools of the first page."""
        self.envelopes.learn(self.fetched.revision, listing)
        return listing


def _listings_in(page: bytes) -> Iterator[Listing]:
    try:
        for part in in_parts(page):
            message = parse_message(part, Limits(message=len(part)))
            for listing in map(parse_listing, singles(message)):
                if listing is None:
                    raise FetchFailed(why="The answer holds no tool list")
                yield listing
    except ProtocolError as error:
        raise FetchFailed(why=f"The tool list cannot be read for sure: {error}") from None
