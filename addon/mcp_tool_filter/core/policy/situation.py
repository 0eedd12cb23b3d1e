"""What decisions and observers know besides the message: the client, the exchange, the situation.

And the interface of a link of the chain, which decides in a situation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import NamedTuple, Protocol

from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Message, Notification, Request, Single
from mcp_tool_filter.core.messages.tool_requests import ListRequest, ToolCall
from mcp_tool_filter.core.policy.effects import Deciding, Decision
from mcp_tool_filter.core.policy.patterns import Pattern
from mcp_tool_filter.core.policy.snapshot import CatalogItem, Snapshot
from mcp_tool_filter.core.policy.tool_filter import Envelope
from mcp_tool_filter.core.policy.verdict import Drop, Reply, Verdict


class Direction(StrEnum):
    FROM_CLIENT = "client"
    FROM_UPSTREAM = "upstream"

    @property
    def opposite(self) -> Direction:
        """The way that an answer takes."""
        return Direction.FROM_CLIENT if self is Direction.FROM_UPSTREAM else Direction.FROM_UPSTREAM


class Via(StrEnum):
    """How a client's messages travel."""

    HTTP = "http"
    LEGACY_SSE = "legacy-sse"
    STDIO = "stdio"


@dataclass(slots=True, weakref_slot=True, eq=False)
class Session:
    """A client's session with the upstream, opened through us."""

    id: str | None = None
    """None where the transport has no session ids."""
    revision: str | None = None
    """As negotiated by initialize."""
    started: float = 0.0
    is_like_the_fetch: bool = True
    """True while no request in it identifies its client more than our own fetch identifies us."""
    capabilities: str | None = None
    """The capabilities that its client has declared, in canonical spelling."""
    program: str | None = None
    """What its client has said of itself ("clientInfo"), in canonical spelling."""
    declares_changes: bool = False
    """True if the upstream has declared that it announces list changes to this client."""
    has_acted: bool = False
    """True if its client has done something that may change the upstream's list for it."""
    is_on_its_own: bool = False
    """True if the upstream has said that this session's list differs from that of others, or if
    its list may differ because it has acted."""
    serial: int = field(default_factory=count().__next__)
    """Distinguishes sessions, even those without an id."""
    notes: dict[str, object] = field(default_factory=dict)
    """What links of the chain remember about it."""

    @property
    def who(self) -> str:
        """The asker's identity, if the upstream may list other tools to this session; else
        empty."""
        is_alone = self.is_on_its_own or not self.is_like_the_fetch
        return f"session {self.serial}" if is_alone else ""


@dataclass(slots=True, eq=False)
class Client:
    """What we know about a client."""

    via: Via = Via.HTTP
    session: Session | None = None
    said_revision: str | None = None
    """The revision in the request's head, used if there is no session."""
    credential: str = ""
    """A keyed hash of its credentials; empty if it has none."""
    identity: bytes = field(default=b"", repr=False)
    """Its credentials as it sent them, if a link wants to know who asks."""
    asker: Callable[[], bytes] = field(default=bytes, repr=False)
    """Returns all that an answer may depend on besides the message."""
    address: str = ""
    """The address it connects from, if a link wants to know it."""
    claimed_session: str | None = None
    """The session id that it sends, even if we do not know that session."""
    upstream_has_sessions: bool = True
    """True if the upstream issues session ids, so that it recognises a false one."""

    @property
    def who(self) -> str:
        """The asker's identity by its credentials; empty for all clients without credentials."""
        return self.credential if self.session is None else self.session.who

    @property
    def revision(self) -> str | None:
        return self.said_revision if self.session is None else self.session.revision


@dataclass(slots=True, eq=False)
class RpcExchange:
    """A request and what we know about it until its response arrives; or a notification."""

    method: str
    """The method, cut if it is longer than any that matters to us."""
    id: str | None = None
    """The id as it was written; None for a notification."""
    tool: str | None = None
    """The name of the called tool, for a tools/call."""
    asked_at: float = 0.0
    size: int = 0
    """Bytes of the request; for a member of a batch, the bytes of that member."""
    request: Request | None = None
    """Kept only if a link of the chain wants to see it with the response."""
    exposed: str = ""
    """The name by which the client called the tool, if that is not the server's own."""
    cursor: str | None = None
    """The cursor that it sends."""
    is_unusual: bool = False
    """True if it asks for a list as our own fetch never does, such as with params that MCP does not
    define: the answer may be another list, or a part of it."""
    capabilities: str | None = None
    """The capabilities that it declares, in canonical spelling, and the variant that it wants."""
    program: str | None = None
    """What it says of its client, in canonical spelling."""
    is_on_trust: bool = False
    """True if it calls a tool of which we do not know whether it exists."""
    subscription: str | None = None
    """The upstream's id of this request, if it has agreed to answer it with each list change."""
    key: str = ""
    """The value of its id, set while it waits for its response."""
    is_only_shadowed: bool = False
    """True if it was forwarded although the policy would have answered it: only ``shadow`` is
    on."""
    is_cancelled: bool = False
    """True if the client has cancelled it meanwhile; or for a notification that does so."""
    notes: dict[str, object] | None = None
    """What a link or an observer wants to find again when the response arrives."""


_LIMITS = Limits()


class Link(Protocol):
    """One step of the chain after the tool filter: decides on one message, never on a batch.

    It returns a verdict, or a generator that yields effects and returns one. ``Forward`` passes the
    message to the next link, ``Rewrite`` a changed one; ``Reply`` and ``Drop`` end the chain. A
    reply goes back to the sender of the message.
    """

    def decide(self, message: Single, situation: Situation) -> Decision[Verdict]: ...


class EditedRequest(NamedTuple):
    """A client's message after its edits."""

    sent: Single
    """What the upstream gets, and policy judges."""
    seen: Single
    """The same without the values that edits put into it: observers must not show them."""
    refusal: Reply | Drop | None = None
    """The refusal of a call that policy would let pass."""


class Editor(Protocol):
    """Edits names and definitions at the client's side of the policy, which judges the server's
    own."""

    def asked(self, message: Single, snapshot: Snapshot, limits: Limits) -> EditedRequest:
        """Return a client's message with the server's own names. Raises ProtocolError."""

    def plain(self, name: str, call: bytes, arguments: bytes, snapshot: Snapshot) -> bytes | None:
        """Return what the upstream gets of a plain call, which has these arguments or none; None
        if it must be read as usual."""

    def exposed(self, own: str) -> str:
        """Return the name that clients know."""

    def own(self, name: str, snapshot: Snapshot) -> str | None:
        """Return the server's own name of a tool; None if clients know no tool of this name."""

    def shown(self, snapshot: Snapshot) -> list[tuple[str, bytes]]:
        """Return the tools as clients know them."""

    def told(self, text: bytes, snapshot: Snapshot, limits: Limits) -> bytes:
        """Return a message for the client with the edited definitions. Raises ProtocolError."""

    def refusal(self, text: bytes, names: Iterable[str]) -> bytes:
        """Return errors that we write with the names of these tools that the client knows."""

    @property
    def patterns(self) -> Iterable[str]:
        """The names and globs that users wrote."""

    def refuse_start(self, snapshots: Sequence[Snapshot]) -> None:
        """Raise StartError if these tools do not fit the edits."""

    def unmatched(self, snapshots: Sequence[Snapshot], beside: Editor | None) -> list[str]:
        """Return the names and globs that match no tool, and that the other editor lacks."""


class Catalog(Protocol):
    """The filter of what an upstream offers besides tools: prompts, resources and skills.

    The tool filter asks it about what it lets pass itself.
    """

    @property
    def lists(self) -> tuple[str, ...]:
        """The methods that list what the patterns judge."""

    def survey(
        self, answers: Mapping[str, Sequence[bytes]]
    ) -> tuple[tuple[CatalogItem, ...], list[Pattern]]:
        """Return what an upstream lists, given its answers to ``lists``, and the patterns that
        match nothing of that. Raises ProtocolError."""

    def judge_ahead(self, answer: Message, method: str = "") -> Deciding[None]:
        """Judge the URIs of a long answer in steps. Decide on the answer right after this."""

    def judge_asked_ahead(self, message: Message) -> None:
        """Judge the URIs that a client's message names. Raises ProtocolError if they are too many,
        or cannot be read."""

    def hides(self, topic: str) -> bool:
        """Tell whether a list of this topic could hide something."""

    def decide_from_client(self, message: Request | Notification, situation: Situation) -> Verdict:
        """Answer a request for a denied thing as if there were no such thing."""

    def decide_from_upstream(self, message: Single, situation: Situation) -> Verdict:
        """Remove denied things from a list; drop a notification about one."""


@dataclass(slots=True, eq=False)
class Situation:
    """The inputs of a decision besides the message."""

    snapshot: Snapshot
    direction: Direction = Direction.FROM_CLIENT
    client: Client | None = None
    exchange: RpcExchange | None = None
    """The request or notification itself; for a response, the request that it answers."""
    links: tuple[Link, ...] = ()
    limits: Limits = _LIMITS
    origin: object = None
    """The host's own object for the message, such as mitmproxy's flow."""
    catalog: Catalog | None = None
    """The patterns for prompts, resources and skills, if there are any."""
    envelope: Envelope | None = None
    """The frame of the list in the revision that the client speaks."""
    may_use_cache: bool = False
    """True if the client's session is known and it has no credentials of its own."""
    call: ToolCall | None = None
    """The message, if it was read as a call before."""
    asks: ListRequest | None = None
    """The message, if it was read as a tools/list before."""
    is_answered: bool = False
    """True if the snapshot will answer this request."""
    is_shadow: bool = False
    """True if the verdict is only reported: links must not wait, nor have any effect."""
    audited: list[Verdict] | None = None
    """The verdicts that links would have given, but must only report."""
