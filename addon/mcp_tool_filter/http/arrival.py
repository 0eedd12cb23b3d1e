"""What the head of a request says of the message in its body."""

from __future__ import annotations

from mcp_tool_filter.conversation.conversation import Arrival, oversized
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.head import Head, refuse_body, refuse_mismatch
from mcp_tool_filter.http.identity import has_usual_params
from mcp_tool_filter.policy.chain import refusal
from mcp_tool_filter.policy.verdict import Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits, OverLimit
from mcp_tool_filter.protocol.messages import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    Message,
    Request,
)
from mcp_tool_filter.protocol.revisions import has_initialize
from mcp_tool_filter.protocol.tools import parse_list_request


class HttpArrival(Arrival):
    """One for each request."""

    __slots__ = ("_exchange", "_fetched", "_head", "_is_endpoint")

    def __init__(
        self, head: Head, exchange: HttpExchange, fetched: Fetched, is_endpoint: bool
    ) -> None:
        self._head = head
        self._exchange = exchange
        self._fetched = fetched
        self._is_endpoint = is_endpoint

    def problem_in(self, message: Message, raw: bytes, limits: Limits) -> Reply | None:
        why = refuse_mismatch(self._head, message)
        return refused(raw, Why.MISMATCH, why, limits) if why else None

    def judge_unreadable(self, raw: bytes, error: ProtocolError, limits: Limits) -> Verdict:
        """Let a body pass that is no message, such as a form of a login."""
        if not refuse_body(self._head, raw, is_endpoint=self._is_endpoint, limits=limits):
            return Forward()
        if isinstance(error, OverLimit):
            return oversized(raw, str(error))
        return refused(raw, Why.MALFORMED, str(error), limits)

    def may_use_snapshot(self, request: Request) -> bool:
        """Tell whether the upstream would have answered this with the list it gave us."""
        exchange, head = self._exchange, self._head
        client = exchange.conversation.client
        session, revision = client.session, client.revision
        if revision is None or not exchange.is_like_the_fetch or not has_usual_params(request):
            return False
        if session and not session.is_like_the_fetch:
            return False
        if exchange.is_legacy:
            return session is not None
        if not self._is_endpoint or not _accepts_both(head):
            return False
        if has_initialize(revision):
            opened = session is not None or not (exchange.session_id or self._fetched.sessions)
            return opened and head.get(b"mcp-protocol-version") in (None, revision)
        said = parse_list_request(request).revision
        return revision == said and head.get(b"mcp-method") == request.method


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
