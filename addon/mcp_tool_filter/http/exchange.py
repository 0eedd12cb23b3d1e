"""What becomes of an HTTP request, and what is known of it until its answer has gone by."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.http.legacy import LegacyStream
from mcp_tool_filter.policy.exchange import Session
from mcp_tool_filter.protocol.messages import render_batch

JSON = "application/json"


@dataclass(slots=True, eq=False)
class HttpExchange:
    """One HTTP request and its answer, with the messages that they carry."""

    conversation: Conversation
    session_id: str | None = None
    """The one that its head names; known to us only if the conversation has a session."""
    owed: tuple[bytes, ...] = ()
    """Our own replies that belong into the answer."""
    is_legacy: bool = False
    """Its messages are answered on a stream of its own, not here."""
    is_like_the_fetch: bool = True
    """Its head says no more of the client than our own fetch says of us."""

    @property
    def waits(self) -> bool:
        """Somebody waits for this very answer."""
        return not self.is_legacy and len(self.conversation.exchanges) > 0

    @property
    def session(self) -> Session | None:
        return self.conversation.client.session

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

    exchange: HttpExchange
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The client gets this; whatever the upstream said or would have said, it is not seen."""

    status: int
    body: bytes = b""
    stream: LegacyStream | None = None
    """Where the body goes instead, in the transport that answers on a stream of its own."""
    content_type: str = JSON
