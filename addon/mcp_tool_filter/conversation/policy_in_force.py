"""What one listener decides by at this moment; all that is open asks here for each message.

Nothing keeps a snapshot of its own, so an edit of the patterns applies at once, also to streams and
sockets that were opened before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.conversation.capabilities import ALL_CAPABILITIES, canonical
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.kind import listings_in
from mcp_tool_filter.conversation.kinds import Kinds
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.exchange import Client
from mcp_tool_filter.policy.judged_lists import JudgedLists
from mcp_tool_filter.policy.situation import Link
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.tools import Listing

if TYPE_CHECKING:
    from mcp_tool_filter.conversation.judged import Judged

type Observer = Callable[[Judged], None]
"""Told of each message after it has been decided on; cannot change anything."""


type Propagate = Callable[[Judged], Verdict]
"""Returns the verdict on a message with the trace's parent replaced by our span."""


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


type TellHidden = Callable[[tuple[str, ...], Judged], None]
"""Told what is wrong with the tools of a list that was fetched for this message's client."""


def _tell_nobody(_faults: tuple[str, ...], _judged: Judged) -> None:
    """Nobody reads about hidden tools."""


def _ignore(_judged: Judged) -> None:
    """Nobody observes."""


@dataclass(slots=True, kw_only=True)
class PolicyInForce:
    """The configuration, what the upstream said at start, and the snapshot made of both."""

    config: Config
    fetched: Fetched
    observe: Observer = _ignore
    propagate: Propagate | None = None
    """Where requests are traced; observers see the verdict before it."""
    clock: Callable[[], float] = time.monotonic
    links: tuple[Link, ...] = ()
    """The chain after the tool filter."""
    answer_upstream: AnswerUpstream = _answer_nobody
    """Sends the upstream our reply to a request that came on a stream."""
    tell_hidden: TellHidden = _tell_nobody
    rules_at_work: Callable[[], RulesAtWork] = RulesAtWork
    keeps_requests: bool = False
    """A link wants to see a request together with its response."""
    reads_in_steps: bool = True
    """A long list is read in steps, so that others are served meanwhile."""
    kinds: Kinds = field(init=False)
    judged: JudgedLists = field(default_factory=JudgedLists)

    def __post_init__(self) -> None:
        self.kinds = Kinds(self.config)
        self.take(self.fetched)

    @property
    def snapshot(self) -> Snapshot:
        """That of our own fetch."""
        return self.kinds.start.snapshot

    def take(self, fetched: Fetched) -> None:
        """Make what was fetched the snapshot of the start. Raises before anything has changed."""
        kinds = self.kinds
        if fetched.is_listed:
            kinds.start.take(fetched.pages)
        self.fetched = fetched
        kinds.are_one = fetched.is_for_all
        kinds.start_key = fetched.revision, canonical(ALL_CAPABILITIES), ""

    @property
    def listings(self) -> Iterator[Listing]:
        """The pages of the tool list, as they were fetched: read anew, for that takes much room."""
        return listings_in(self.fetched.pages)

    def adopt(self, config: Config) -> None:
        """Decide by another configuration from now on, also about what was listed before."""
        same = (config.deny, config.allow) == (self.config.deny, self.config.allow)
        self.kinds.adopt(config, same_patterns=same)
        self.config = config
