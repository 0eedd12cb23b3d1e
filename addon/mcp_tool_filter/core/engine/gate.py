"""The first question about a request: may whoever sends it talk to us at all?

A page of another site must not reach the upstream through its user's browser, so Host, Origin and
Sec-Fetch-Site are judged before a body is read, and once more before the request is sent: other
addons may have changed it. What was found out is kept with the head (``RequestNotes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_tool_filter.core.http.asker import problem_in_source
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.messages import INVALID_REQUEST, render_error

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange

FORBIDDEN = render_error(None, INVALID_REQUEST, "Forbidden: unknown Host or Origin")
FORBIDDEN_SITE = render_error(None, INVALID_REQUEST, "Forbidden: sent by a page of another site")
_OTHER_SITE = "Sec-Fetch-Site"


def problem_at_the_gate(exchange: Exchange, *, may_visit: bool) -> str | None:
    """Return what is wrong with the place that a request comes from; ``may_visit`` lets a browser
    come from another site for a login."""
    head, service = exchange.head, exchange.service
    notes, config = head.notes, service.listener.policy.config
    if notes.config is not config:
        host = exchange.down.host
        asked = Head(head.method, head.target, head.fields, host.peer)
        known = notes.head = service.listener.as_decided(asked)
        notes.config, notes.problem, notes.out_fields = config, None, None
        if not service.listener.is_forward:  # there the upstream itself can check both
            notes.problem = problem_in_source(
                config.allowed_hosts, known, authority=head.authority, own=host.own
            )
    problem = notes.problem
    if problem == _OTHER_SITE and may_visit and service.is_visit and service.is_visit(exchange):
        return None
    return problem


def refusal_for(problem: str) -> bytes:
    """Return what the sender is told."""
    return FORBIDDEN_SITE if problem == _OTHER_SITE else FORBIDDEN
