"""What becomes of an HTTP request, and what is known of it until its answer has gone by."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.judged import Arrival, oversized
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.head import Head, refuse_body, refuse_mismatch
from mcp_tool_filter.http.identity import has_usual_params
from mcp_tool_filter.http.legacy import LegacyStream
from mcp_tool_filter.policy.chain import refusal
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.messages import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    Message,
    Request,
    render_batch,
)
from mcp_tool_filter.protocol.revisions import has_initialize
from mcp_tool_filter.protocol.tools import parse_list_request

JSON = "application/json"


_NO_HEAD = Head("", "", ())


@dataclass(slots=True, eq=False)
class HttpExchange(Arrival):
    """One HTTP request and its answer, with the messages that they carry."""

    conversation: Conversation
    head: Head = _NO_HEAD
    is_endpoint: bool = False
    """It was sent to where MCP is spoken."""
    owed: tuple[bytes, ...] = ()
    """Our own replies that belong into the answer."""
    is_legacy: bool = False
    """Its messages are answered on a stream of its own, not here."""
    is_like_the_fetch: bool = True
    """Its head says no more of the client than our own fetch says of us."""
    announces: bool = True

    @property
    def waits(self) -> bool:
        """Somebody waits for this very answer."""
        return not self.is_legacy and len(self.conversation.exchanges) > 0

    @property
    def can_list(self) -> bool:
        """An upstream of the older transport would answer on the client's own stream."""
        return not self.is_legacy

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        """Refuse a message that the head announces as another."""
        why = refuse_mismatch(self.head, message)
        return refused(raw, Why.MISMATCH, why, limits) if why else None

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Let a body pass that is no message, such as a form of a login."""
        if not refuse_body(self.head, raw, is_endpoint=self.is_endpoint, limits=limits):
            return Forward()
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        return refused(raw, Why.MALFORMED, str(error), limits)

    def may_use_snapshot(self, request: Request) -> bool:
        """Tell whether the upstream would have answered this with the list it gave us."""
        client, said = self.conversation.client, self.head.said
        session, revision = client.session, client.revision
        if revision is None or not self.is_like_the_fetch or not has_usual_params(request):
            return False
        if session and not session.is_like_the_fetch:
            return False
        if self.is_legacy:
            return session is not None
        if not self.is_endpoint or not _accepts_both(self.head):
            return False
        if has_initialize(revision):
            gives_ids = self.conversation.policy.fetched.sessions
            opened = session is not None or not (said.session_id or gives_ids)
            return opened and said.revision in (None, revision)
        return revision == parse_list_request(request).revision and said.method == request.method

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
    headers: tuple[tuple[str, str | None], ...] = ()
    """What its headers say now; None: the header goes."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The client gets this; whatever the upstream said or would have said, it is not seen."""

    status: int
    body: bytes = b""
    stream: LegacyStream | None = None
    """Where the body goes instead, in the transport that answers on a stream of its own."""
    content_type: str = JSON


def refused(body: bytes, why: Why, detail: str, limits: Limits) -> Reply:
    """Refuse a request; the client is not told why, the observers are."""
    code, text = INVALID_REQUEST, "Invalid Request"
    if why in (Why.MISMATCH, Why.OVERSIZED):
        text = detail[:1].upper() + detail[1:]
    if why is Why.MISMATCH:
        code = HEADER_MISMATCH
    return Reply(refusal(body, why, code, text, limits).text, Reason(why, detail=detail))


def _accepts_both(head: Head) -> bool:
    accept = (head.get(b"accept") or "").lower()
    return "application/json" in accept and "text/event-stream" in accept
