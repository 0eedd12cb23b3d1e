"""What becomes of an HTTP request, and what is known of it until its answer has gone by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_tool_filter.conversation.session import Exchanges, Session
from mcp_tool_filter.protocol.messages import render_batch

JSON = "application/json"


@dataclass(slots=True)
class Asked:
    """What a request asked, for whoever reads its answer."""

    exchanges: Exchanges
    session: Session | None = None
    session_id: str | None = None
    revision: str | None = None
    owed: tuple[bytes, ...] = ()
    """Replies of ours that belong into the answer."""
    is_legacy: bool = False
    """It is answered on a stream of its own, not here."""
    is_like_the_fetch: bool = True
    """Its head says no more of the client than our own fetch says of us."""
    is_first_page: bool = False
    """It asked for a list from its beginning."""

    @property
    def waits(self) -> bool:
        """Somebody waits for this very answer."""
        return len(self.exchanges) > 0 and not self.is_legacy

    def with_owed(self, body: bytes) -> bytes:
        """Return the upstream's answer to a batch together with ours."""
        if not self.owed:
            return body
        answer = body.strip()
        members = answer[1:-1] if answer.startswith(b"[") else answer
        return render_batch([*filter(None, [members.strip()]), *self.owed])


@dataclass(frozen=True, slots=True)
class Passed:
    """The request goes on, with another body if one is given."""

    asked: Asked
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The client gets this; whatever the upstream said or would have said, it is not seen."""

    status: int
    body: bytes = b""
    stream: LegacyStream | None = None
    """Where the body goes instead, in the transport that answers on a stream of its own."""
    content_type: str = JSON


@dataclass(slots=True)
class LegacyStream:
    """The open GET of a client of the older transport: all its answers go there."""

    send: Callable[[bytes], bool]
    session: Session
    target: str = ""
    """Where the client posts; known once the upstream has named it."""


@dataclass(slots=True)
class LegacyEndpoint:
    """A path to which clients of the older transport post, and the streams it was named on."""

    streams: list[LegacyStream] = field(default_factory=list)
    was_shared: bool = False
    """Two streams had it at once: nobody can tell any more whose a request is."""

    def add(self, stream: LegacyStream) -> None:
        self.streams.append(stream)
        self.was_shared = self.was_shared or len(self.streams) > 1

    @property
    def stream(self) -> LegacyStream | None:
        """Where our answers go; None if the client could be another."""
        return None if self.was_shared or not self.streams else self.streams[0]
