"""The policy that one listener uses now. All open streams look here for each message.

No stream keeps its own snapshot, so an edit of the patterns applies at once, even to streams and
sockets that were opened before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.conversation.kinds import ALL_CAPABILITIES, Kinds, canonical, listings_in
from mcp_tool_filter.conversation.memory import Fetched, HeldRequests
from mcp_tool_filter.policy.config import Config
from mcp_tool_filter.policy.effects import Deciding, at_once
from mcp_tool_filter.policy.exchange import Client, Link
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Verdict
from mcp_tool_filter.protocol.tools import Listing

if TYPE_CHECKING:
    from mcp_tool_filter.conversation.judged import Judged

type Observer = Callable[[Judged], None]
"""Called for each message after the decision; cannot change anything."""


type Propagate = Callable[[Judged], Verdict]
"""Returns the verdict on a message with the trace's parent replaced by our span."""


@dataclass(frozen=True, slots=True)
class SessionAtWork:
    """What the rules remember about one client."""

    id: str
    seconds: float
    """Since the session began."""
    messages: int
    errors: int
    mean_latency: float
    """Seconds from a request to its response."""


@dataclass(frozen=True, slots=True)
class RulesAtWork:
    """What the rules have done so far."""

    hits: tuple[tuple[str, int], ...] = ()
    """Each rule, in order of evaluation, and how often it has matched."""
    metrics: tuple[tuple[str, float], ...] = ()
    """What the rules have counted, by name."""
    sessions: tuple[SessionAtWork, ...] = ()
    """The most recently used one comes first."""


type AnswerUpstream = Callable[[bytes, object, Client], None]
"""Called with the reply, the host's object for the request, and the client whose stream it came
on."""


def _answer_nobody(_reply: bytes, _origin: object, _client: Client) -> None:
    """Do nothing: without links, only clients answer the upstream."""


type TellHidden = Callable[[tuple[str, ...], Judged], None]
"""Called with the faults of tools in a list that was fetched for this message's client."""


def _tell_nobody(_faults: tuple[str, ...], _judged: Judged) -> None:
    """Do nothing."""


def _ignore(_judged: Judged) -> None:
    """Do nothing."""


@dataclass(slots=True, kw_only=True)
class PolicyInForce:
    """The configuration, the result of the start-up fetch, and the snapshots made of both."""

    config: Config
    fetched: Fetched
    observe: Observer = _ignore
    propagate: Propagate | None = None
    """Set if requests are traced. Observers see the verdict before this changes it."""
    clock: Callable[[], float] = time.monotonic
    links: tuple[Link, ...] = ()
    """The chain after the tool filter."""
    answer_upstream: AnswerUpstream = _answer_nobody
    """Sends the upstream our reply to a request that came on a stream."""
    tell_hidden: TellHidden = _tell_nobody
    rules_at_work: Callable[[], RulesAtWork] = RulesAtWork
    keeps_requests: bool = False
    """True if a link wants to see a request together with its response."""
    reads_in_steps: bool = True
    """True if a long list is read in steps, so that other clients are served meanwhile."""
    held: HeldRequests = field(default_factory=HeldRequests)
    kinds: Kinds = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = Kinds(self.config, self.clock)
        at_once(self.take(self.fetched))

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of our own fetch."""
        return self.kinds.start.snapshot

    def take(self, fetched: Fetched) -> Deciding[None]:
        """Make this the snapshot of the start. If it raises, nothing has changed."""
        kinds = self.kinds
        if fetched.is_listed:
            yield from kinds.start.take(fetched.pages)
        self.fetched = fetched
        kinds.same_for_all = fetched.is_for_all
        kinds.start_key = fetched.revision, canonical(ALL_CAPABILITIES), ""

    @property
    def listings(self) -> Iterator[Listing]:
        """The fetched pages of the tool list. (Parsed each time: parsed lists take much memory.)"""
        return filter(None, listings_in(self.fetched.pages))

    def adopt(self, config: Config) -> None:
        """Use another configuration from now on, also for tools that were listed before."""
        same = (config.deny, config.allow) == (self.config.deny, self.config.allow)
        self.kinds.adopt(config, same_patterns=same)
        self.config = config
