"""Fetch the upstream's tools as a certain client: the list may depend on who asks.

We send the requests to the same URL as the client's request, in its session and with its headers,
so we never fetch a client's list with other credentials. In the older transport the upstream would
answer on the client's own stream, so we open a stream of our own, with the client's headers.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from secrets import randbelow

import orjson

from mcp_tool_filter.adapters.sockets.client import Headers, HttpClient, Room
from mcp_tool_filter.adapters.sockets.connect import HttpFailed, LoginNeeded, NotConnected
from mcp_tool_filter.adapters.upstream.fetch import fetch_pages
from mcp_tool_filter.adapters.upstream.legacy import LegacyClient
from mcp_tool_filter.adapters.upstream.replies import (
    INITIALIZE,
    Refused,
)
from mcp_tool_filter.adapters.upstream.streamable import Poster
from mcp_tool_filter.adapters.upstream.target import Target, login_to
from mcp_tool_filter.conversation.kinds import VARIANT
from mcp_tool_filter.errors import (
    ProtocolError,
    StartError,
)
from mcp_tool_filter.http.exchange import HttpExchange
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.policy.effects import CannotList
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import Notification, Request
from mcp_tool_filter.protocol.scan import scan

_OURS = frozenset({
    b"host", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
    b"transfer-encoding", b"content-length", b"content-type", b"content-encoding", b"accept",
    b"accept-encoding", b"expect", b"mcp-method", b"mcp-name", b"last-event-id", b"range",
    b"if-range", b"http2-settings",
})  # fmt: skip
"""Headers that describe a request, not its client."""
_ABOUT_CLIENT = "io.modelcontextprotocol/"
_FIRST_ID = 2**52  # so high that no client uses the same number in this session


@dataclass(frozen=True, slots=True)
class AskedBy:
    """The client's request that makes us ask."""

    head: Head
    headers: tuple[tuple[str, str], ...] = ()
    """The operator's headers for it."""
    meta: str | None = None
    """Its ``_meta`` about the client, as JSON, if each request has one."""
    uses_login: bool = False
    """True if it is sent with the stored login."""
    page: str | None = None
    """Where it opened its stream, in the older transport."""
    revision: str | None = None
    capabilities: str | None = None
    """What it said in its ``initialize``, in the older transport; the capabilities are JSON."""


def asked_by(
    listener: Listener, exchange: HttpExchange, message: Request | Notification
) -> AskedBy:
    """Return who asks with this message."""
    head, session = exchange.head, exchange.conversation.client.session
    meta = message.params.get("_meta") if message.params else None
    return AskedBy(
        head,
        headers=tuple(listener.headers_for(head)),
        meta=message.place.cut(meta) if meta else None,
        uses_login=listener.takes_headers(head.target) and not head.credentials,
        page=exchange.page,
        revision=session.revision if session else None,
        capabilities=session.capabilities if session else None,
    )


async def fetch_as_client(
    target: Target, asked_by: AskedBy, room: Room | None = None
) -> tuple[bytes, ...]:
    """Return all pages of the tool list. Raises CannotList. ``room`` limits connections."""
    origin = parse_origin(target.url)
    try:
        login = login_to(target) if asked_by.uses_login else None
    except StartError as error:  # the stored login cannot be read
        raise CannotList(f"{error.what}. {error.why}", is_refusal=True) from None
    headers = _headers_of(asked_by)
    http = HttpClient(
        origin, headers=headers, tls=target.tls, login=login, room=room, answer=target.answer
    )
    try:
        async with asyncio.timeout(target.list_timeout), AsyncExitStack() as opened:
            if asked_by.page is not None:
                client = LegacyClient(http, asked_by.page, limit=target.limit)
                opened.push_async_callback(client.close)
                await _shake_hands(client, asked_by)
                return await fetch_pages(client.request, target.limit)
            poster = Poster(http, asked_by.head.target, limit=target.limit)
            poster.begin_at(_FIRST_ID + randbelow(_FIRST_ID // 2))
            has_method = asked_by.head.said.method is not None
            named = [(b"mcp-method", b"tools/list")] if has_method else []
            ask = partial(poster.ask, headers=named)
            return await fetch_pages(ask, target.limit, _meta_in(asked_by.meta))
    except (TimeoutError, Refused, ProtocolError, HttpFailed, OSError, TypeError) as error:
        # TypeError: orjson does not write half a surrogate pair, such as in an upstream's cursor.
        why = str(error) or "it took too long"
        raise CannotList(why, is_refusal=_refuses(error, asked_by)) from None
    finally:
        await http.close()


def _refuses(error: Exception, asked_by: AskedBy) -> bool:
    """Tell whether the upstream refuses the client, and not only its request for the list."""
    if not isinstance(error, Refused):
        return isinstance(error, NotConnected | LoginNeeded)
    if error.status in (400, 404):
        return asked_by.head.said.session_id is not None
    return error.status == 401 or (error.status == 403 and error.says_how_to_log_in)


async def _shake_hands(client: LegacyClient, asked_by: AskedBy) -> None:
    """Open a session as the client did: the list may depend on what it said."""
    said: dict[str, object] = dict(INITIALIZE)
    if asked_by.revision:
        said["protocolVersion"] = asked_by.revision
    if asked_by.capabilities and asked_by.capabilities.startswith("{"):
        capabilities = asked_by.capabilities.partition(VARIANT)[0]
        said["capabilities"] = orjson.Fragment(capabilities)
    await client.open()
    reply = await client.request("initialize", said)
    await client.initialized(str(reply.result.get("protocolVersion")))


def _meta_in(written: str | None) -> dict[str, object]:
    """Return the part of a request's ``_meta`` that is about the client, not about that request.

    It is sent as the client wrote it: parsed and written again, long numbers and half surrogate
    pairs would be lost.
    """
    raw = (written or "null").encode()
    text, root = scan(raw, {}, Limits(message=len(raw)))
    said = [one for one in root.members or () if one.key.startswith(_ABOUT_CLIENT)]
    about = ",".join(text[one.start : one.value.end] for one in said)
    return {"_meta": orjson.Fragment(f"{{{about}}}")} if about else {}


def _headers_of(asked_by: AskedBy) -> Headers:
    left_out = _OURS if asked_by.page is None else _OURS | {b"mcp-protocol-version"}
    ours = [(name.encode(), value.encode()) for name, value in asked_by.headers]
    replaced = {name.lower() for name, _ in ours}
    theirs = [
        (name, value)
        for name, value in asked_by.head.headers
        if name.lower() not in left_out and name.lower() not in replaced
    ]
    return [*theirs, *ours]
