"""What the upstream gets: the head of a request, and whether it may be sent a second time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_tool_filter.core.http.head import SAFE_METHODS, Fields, Head, fields_for_upstream

if TYPE_CHECKING:
    from mcp_tool_filter.core.engine.exchange import Exchange
    from mcp_tool_filter.core.http.asked import Passed

# NTLM and Negotiate log in for all that follows on the upstream's connection.
_LOGIN_OF_CONNECTION = re.compile(rb"(?:ntlm|negotiate)\b", re.IGNORECASE)
_SAFE_MESSAGES = frozenset({
    "initialize", "ping", "server/discover", "tools/list", "prompts/list", "prompts/get",
    "resources/list", "resources/templates/list", "resources/read", "completion/complete",
    "logging/setLevel",
})  # fmt: skip


def write_head(exchange: Exchange, head: Head, passed: Passed, *, is_usual: bool) -> None:
    """Set the fields that the upstream gets; the written head, too, if it will be used again."""
    notes = exchange.head.notes
    exchange.out_fields, exchange.out_head = _fields(exchange, head, passed), None
    # Which requests get the operator's headers changes while endpoints come and go.
    if exchange.service.listener.legacy.endpoints:
        return
    if not is_usual and passed.body is not None and not notes.out_head:  # its edits concern no head
        is_plain = not (passed.headers or exchange.added or exchange.address or exchange.authority)
        is_usual = is_plain and exchange.out_fields == _fields(exchange, head, _unchanged(passed))
    if is_usual:
        notes.out_fields = exchange.out_fields
        notes.out_head = exchange.out_head = exchange.rendered_head()


def _unchanged(passed: Passed) -> Passed:
    return type(passed)(passed.exchange)


def _fields(exchange: Exchange, head: Head, passed: Passed) -> Fields:
    service, elsewhere, host = exchange.service, exchange.address, exchange.authority
    listener = service.listener
    if host is None and elsewhere is not None:
        host = elsewhere.authority
    elif host is None and listener.keeps_host:
        host = (exchange.head.authority or head.get(b"host") or "").encode("latin-1")
    # The operator's headers and logins belong to the upstream, and to no other place.
    ours = () if elsewhere is not None else listener.headers_for(head)
    added = [(name.encode(), value.encode()) for name, value in ours]
    return fields_for_upstream(
        head,
        passed,
        host=service.authority if host is None else host,
        added=(*added, *exchange.added),
    )


def may_be_repeated(exchange: Exchange) -> bool:
    """Tell whether sending the request twice changes nothing."""
    if exchange.head.method in SAFE_METHODS:
        return True
    asked = exchange.asked
    methods = asked.conversation.exchanges.methods if asked is not None else ()
    return bool(methods) and _SAFE_MESSAGES.issuperset(methods)


def logs_connection_in(exchange: Exchange) -> bool:
    """Tell whether the client logs in for all that follows on the upstream's connection."""
    return any(
        name.lower() == b"authorization" and _LOGIN_OF_CONNECTION.match(value)
        for name, value in exchange.out_fields
    )
