"""The answers for clients when there is no answer of the upstream to forward."""

from __future__ import annotations

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.forward.flows import json_response
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import real_request
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import (
    ErrorAnswer,
    Failure,
)
from mcp_tool_filter.conversation.judged import INVALID_ANSWER, LOST_ANSWER
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Reason, Why
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    render_batch,
    render_error,
)
from mcp_tool_filter.protocol.sse import render_event

INTERNAL = render_error(None, INTERNAL_ERROR, "Internal error")
FORBIDDEN = render_error(None, INVALID_REQUEST, "Forbidden: unknown Host or Origin")
FORBIDDEN_SITE = render_error(None, INVALID_REQUEST, "Forbidden: sent by a page of another site")
_FULL = render_error(None, UPSTREAM_LOST, "Too many clients are connected")
_TOO_MUCH = "Too many unfinished messages: try again later"
_INVALID_REQUEST = render_error(None, INVALID_REQUEST, "Invalid Request")
_TOO_LARGE = render_error(None, INVALID_REQUEST, "Request too large")
_INVALID_ANSWER = render_error(None, INTERNAL_ERROR, INVALID_ANSWER)
_LOST = render_error(None, UPSTREAM_LOST, LOST_ANSWER)


def full_response() -> Response:
    """Return the answer for a client above the limit; it also closes the connection."""
    response = json_response(503, _FULL)
    response.headers["connection"] = "close"
    response.headers["retry-after"] = "1"
    return response


def error_answer(
    flow: HTTPFlow, failure: Failure, listener: Listener | None, exchange: HttpExchange | None
) -> ErrorAnswer:
    """Return a JSON-RPC error for a failure for which mitmproxy would send an HTML page."""
    match failure:
        case Failure.REQUEST_MALFORMED:
            return ErrorAnswer(json_response(400, _INVALID_REQUEST))
        case Failure.REQUEST_TOO_LARGE:
            return ErrorAnswer(json_response(413, _TOO_LARGE))
        case Failure.MALFORMED | Failure.RESPONSE_TOO_LARGE:
            status, body = invalid_answer(flow, listener, exchange)
            return ErrorAnswer(json_response(status, body), render_event(body))
        case Failure.OVER_BUDGET:
            return _over_budget_answer(exchange)
        case Failure.CONNECT_FAILED | Failure.LOST:
            return _lost_answer(flow, listener, exchange)


def reason_of(failure: Failure) -> Reason | None:
    """Return why a request is refused, if it is the request that is at fault."""
    match failure:
        case Failure.REQUEST_MALFORMED:
            return Reason(Why.MALFORMED, detail="not valid HTTP")
        case Failure.REQUEST_TOO_LARGE:
            return Reason(Why.OVERSIZED, detail="Request too large")
        case _:
            return None


def invalid_answer(
    flow: HTTPFlow, listener: Listener | None, exchange: HttpExchange | None
) -> tuple[int, bytes]:
    """Return status and body that replace an answer that cannot be judged."""
    status, body = 502, _INVALID_ANSWER
    if listener and exchange:
        answered = listener.invalid_answer(exchange, origin=flow)
        status, body = answered.status, answered.body
    return status, b"" if flow.request.method == "HEAD" else body


def _over_budget_answer(exchange: HttpExchange | None) -> ErrorAnswer:
    ids = exchange.conversation.exchanges.take_all() if exchange else []
    replies = [render_error(id, INTERNAL_ERROR, _TOO_MUCH) for id in (*ids,) or (None,)]
    body = replies[0] if len(replies) == 1 else render_batch(replies)
    response = json_response(200 if ids else 503, body)
    response.headers["retry-after"] = "1"
    return ErrorAnswer(response, b"".join(map(render_event, replies)) if ids else b"")


def _lost_answer(
    flow: HTTPFlow, listener: Listener | None, exchange: HttpExchange | None
) -> ErrorAnswer:
    replies: tuple[bytes, ...] = ()
    if listener and exchange:
        if exchange.is_legacy and flow.request.method != "GET":
            listener.tell_of_loss(real_request(flow).path, flow.request.raw_content or b"")
        else:
            replies = listener.lost_replies(exchange)
    if not replies:
        return ErrorAnswer(json_response(502, _LOST))
    body = replies[0] if len(replies) == 1 else render_batch(list(replies))
    return ErrorAnswer(json_response(200, body), b"".join(map(render_event, replies)))
