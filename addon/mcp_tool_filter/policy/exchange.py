"""Who speaks, and what is asked: what a decision and an observer know besides the message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from mcp_tool_filter.protocol.messages import Request


class Direction(StrEnum):
    FROM_CLIENT = "client"
    FROM_UPSTREAM = "upstream"


class Via(StrEnum):
    """How a client's messages travel."""

    HTTP = "http"
    LEGACY_SSE = "legacy-sse"
    WEBSOCKET = "websocket"
    STDIO = "stdio"


@dataclass(slots=True, eq=False)
class Session:
    """A client's session with the upstream, opened through us."""

    id: str | None = None
    """None where the transport has no session ids."""
    revision: str | None = None
    """As agreed on by initialize."""
    started: float = 0.0
    is_like_the_fetch: bool = True
    """No request in it says more of its client than our own fetch says of us."""
    capabilities: str | None = None
    """What its client has declared, in one spelling."""
    declares_changes: bool = False
    """The upstream has declared that it tells this client when its list changes."""
    is_on_its_own: bool = False
    """The upstream lists other tools to it than to others, as it said."""
    serial: int = field(default_factory=count().__next__)
    """Tells sessions apart, also those without an id."""
    notes: dict[str, object] = field(default_factory=dict)
    """What a link of the chain wants to remember of it."""

    @property
    def who(self) -> str:
        """Tell sessions apart whose upstream knows who asks; empty for all others."""
        is_alone = self.is_on_its_own or not self.is_like_the_fetch
        return f"session {self.serial}" if is_alone else ""


@dataclass(slots=True, eq=False)
class Client:
    """Who speaks to us, as far as it is known."""

    via: Via = Via.HTTP
    session: Session | None = None
    said_revision: str | None = None
    """What its head says, where there is no session that would know."""
    credential: str = ""
    """A keyed hash of its credentials; empty if it brought none."""
    identity: bytes = field(default=b"", repr=False)
    """Its credentials as it sent them, where a link wants to know who asks."""
    address: str = ""
    """Where it connects from, where a link wants to know that."""
    claimed_session: str | None = None
    """The session id that it names, whether we know that session or not."""
    upstream_has_sessions: bool = True
    """The upstream gives out session ids, and so knows a false one."""

    @property
    def who(self) -> str:
        """Tell askers apart by their credentials; empty for all who bring none."""
        return self.credential if self.session is None else self.session.who

    @property
    def revision(self) -> str | None:
        return self.said_revision if self.session is None else self.session.revision


@dataclass(slots=True, eq=False)
class Exchange:
    """A request, and what is known of it until its response has come; or a notification."""

    method: str
    """Cut, if it is longer than any that matters."""
    id: str | None = None
    """As it was written; None if it is a notification."""
    tool: str | None = None
    """The name that a tools/call calls."""
    asked_at: float = 0.0
    size: int = 0
    """Bytes of the request; what the responses to a batch answer counts as a part of it."""
    request: Request | None = None
    """Kept only where a link of the chain wants to see it with the response."""
    has_cursor: bool = False
    """It asks for a later page of a list."""
    cursor: str | None = None
    """The one that it names."""
    capabilities: str | None = None
    """What it declares its client to be capable of, in one spelling."""
    subscription: str | None = None
    """What the upstream calls it, if it has agreed to answer with each change of the tool list."""
    key: str = ""
    """The value of its id, once it waits for its response."""
    notes: dict[str, object] | None = None
    """What a link, or an observer, wants to find again when the response comes."""
